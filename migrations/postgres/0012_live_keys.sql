-- The holders of live keys, for routes that limit how many one caller or address may have.
--
-- The column is null for routes without such a limit, and is never changed. It has no default, so no row is written anew.
-- Its index alone: 0012_live_keys.keys_holder.sql, because the table is in use.

alter table oncegate.keys add column holder bytea;

comment on column oncegate.keys.holder is
  'The caller or address that the key counts for, as a salted hash; null where its route has no limit of live keys.';

-- reserve_2: reserve_1, which stays for the version before, with the holders.
create function oncegate.reserve_2(
  ids bytea[], services text[], scopes bytea[], spaces bytea[], client_keys bytea[], routes text[], recipes text[],
  fingerprints bytea[], instances bigint[], tokens bytea[], time_limits_ms bigint[], paths bytea[], holders bytea[]
) returns setof bytea
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $function$
#variable_conflict use_column
begin
  return query
  with durable as materialized (
    -- Sessions behind a pooler are shared and cannot be configured, so each write sets its own durability, and only ever
    -- raises it.
    select set_config('synchronous_commit',
                      case current_setting('synchronous_commit') when 'off' then 'on'
                           else current_setting('synchronous_commit') end,
                      true) as setting,
           clock_timestamp() as now
  )
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, holder,
          state, attempt, created_at, reserved_at, deadline)
  select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token, a.holder,
         'in_flight', 1, durable.now, durable.now, durable.now + a.time_limit_ms * interval '1 millisecond'
    from unnest(ids, services, scopes, spaces, client_keys, routes, recipes, fingerprints, instances, tokens,
                time_limits_ms, paths, holders)
         as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, time_limit_ms, path, holder)
   cross join durable
   where durable.setting is not null
   order by a.id -- two batches with two keys in common must not deadlock
      on conflict (id) do nothing
  returning token;
end
$function$;

comment on function oncegate.reserve_2 is
  'Inserts keys without a record, and returns the tokens of those that it inserted. The caller asks for the record of the others.';

-- The settings hold inside the function only. Where one holder has a large part of the table, the planner would read the table
-- until it has found enough rows; these may be at its end.
create function oncegate.count_live_keys_1(of_holder bytea, at_most bigint) returns bigint
language sql stable
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
as $function$
  select count(*) from (select 1 from oncegate.keys as k where k.holder = of_holder limit at_most) as live
$function$;

comment on function oncegate.count_live_keys_1 is
  'Counts a holder''s keys, up to a limit: by the index alone, where the pages are vacuumed.';
