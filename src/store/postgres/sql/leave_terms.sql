-- leave_terms: what a service's routes say about what is kept, for the functions that services call.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting
)
insert into oncegate.terms as t (service, route, ttl_ms, remember_ms, body_max, drop_headers)
select $1::text, n.route, n.ttl_ms, n.remember_ms, n.body_max, string_to_array(n.drop_headers, ',')
  from unnest($2::text[], $3::bigint[], $4::bigint[], $5::bigint[], $6::text[])
       as n (route, ttl_ms, remember_ms, body_max, drop_headers)
 cross join durable
 where durable.setting is not null
 order by n.route -- proxies that start together must not wait for each other
    on conflict (service, route) do update
       set ttl_ms = excluded.ttl_ms, remember_ms = excluded.remember_ms, body_max = excluded.body_max,
           drop_headers = excluded.drop_headers
     where (t.ttl_ms, t.remember_ms, t.body_max, t.drop_headers)
           is distinct from (excluded.ttl_ms, excluded.remember_ms, excluded.body_max, excluded.drop_headers)
