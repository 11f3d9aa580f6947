-- settle_all: settle for many attempts at once. It returns those that it has ended.
create function oncegate.settle_all(
  _id bytea[], _token bytea[], _state text[], _ttl_ms bigint[], {outcome arrays}, _due_ms bigint[]
) returns table (id bytea, expires_at bigint)
-- As for reserve_all.
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  -- Few batches have such a key, and only they pay for the second statement. Where no TTL is 0 and one is null, the
  -- condition is null, which counts as false.
  if 0 = any (_ttl_ms) then
    return query
    delete from oncegate.keys as k
     using unnest(_id, _token, _state, _ttl_ms) as s (id, token, state, ttl_ms)
     where k.id = s.id
       and k.token = s.token
       and s.state = 'retryable'
       and s.ttl_ms = 0
       and k.accepted_at is null
       and k.attempt = 1
       and k.recovery_point is null
       and k.state in ('in_flight', 'unknown', 'dead')
    returning k.id, null::bigint;
  end if;
  return query
  update oncegate.keys as k
     set state = case when k.accepted_at is not null and s.state = 'retryable' then 'queued' else s.state end,
         settled_at = moment,
         expires_at = case when k.accepted_at is null or s.state <> 'retryable'
                           then moment + case when s.ttl_ms = 0 and s.state = 'retryable' then 86400000
                                              else s.ttl_ms end
                      end,
         due_at = case when k.accepted_at is null then null
                       when s.state = 'retryable' then moment + coalesce(s.due_ms, 0)
                       when s.state = 'unknown' then moment + s.due_ms end,
         {outcome from s}
    from unnest(_id, _token, _state, _ttl_ms, {outcome values}, _due_ms)
         as s (id, token, state, ttl_ms, {outcome names}, due_ms)
   where k.id = s.id
     and k.token = s.token
     and case s.state
           when 'completed' then k.state not in ('completed', 'expired')
           when 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
  returning k.id, k.expires_at;
end
