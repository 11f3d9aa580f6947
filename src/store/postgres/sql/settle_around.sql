-- settle_around: settle, but for rows that somebody's open transaction holds: those are tried again.
with durable as materialized (
  -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
  select set_config('synchronous_commit',
                    case current_setting('synchronous_commit') when 'off' then 'on'
                         else current_setting('synchronous_commit') end,
                    true) as setting,
         clock_timestamp() as now
),
free as materialized (
  -- It costs a third more than not asking, so it is asked only after settle has met with such a row.
  select k.id
    from unnest($1::bytea[]) as wanted (id)
    join oncegate.keys as k on k.id = wanted.id
   order by k.id
     for no key update of k skip locked
)
update oncegate.keys as k
   set state = case when k.accepted_at is not null and s.state = 'retryable' then 'queued' else s.state end,
       settled_at = durable.now,
       expires_at = case when k.accepted_at is null or s.state <> 'retryable'
                         then durable.now + s.ttl_ms * interval '1 millisecond' end,
       due_at = case when k.accepted_at is null then null
                     when s.state = 'retryable' then durable.now + coalesce(s.due_ms, 0) * interval '1 millisecond'
                     when s.state = 'unknown' then durable.now + s.due_ms * interval '1 millisecond' end,
       remember_ms = s.remember_ms, status = s.status, fields = s.fields, body = s.body
  from unnest($1::bytea[], $2::bytea[], $3::text[], $4::bigint[], $5::smallint[], $6::bytea[], $7::bytea[],
              $8::bigint[], $9::bigint[])
       as s (id, token, state, ttl_ms, status, fields, body, remember_ms, due_ms)
  join free on free.id = s.id
 cross join durable
 where k.id = s.id
   and k.token = s.token
   -- A response counts whatever its key has become meanwhile. Anything else undoes nothing that was decided since: the
   -- service's word, a reconciler's or an operator's.
   and case s.state
         when 'completed' then k.state not in ('completed', 'expired')
         when 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
         else k.state = 'in_flight'
       end
   and durable.setting is not null
returning k.id, k.token, (date_part('epoch', k.expires_at) * 1000)::bigint as expires_at_ms
