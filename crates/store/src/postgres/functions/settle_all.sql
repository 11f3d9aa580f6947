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
    with forgotten as (
      delete from oncegate.keys as k
       using unnest(_id, _token, _state, _ttl_ms) as s (id, token, state, ttl_ms)
       where s.state = 'retryable' and s.ttl_ms = 0 and
         {may_forget of s}
      returning k.id),
    -- Their requests, if they were kept.
    requests as (delete from oncegate.outbox as o using forgotten where o.id = forgotten.id)
    select forgotten.id, null::bigint from forgotten;
  end if;
  return query
  update oncegate.keys as k
     set
       {settled of s}
    -- By place, as there.
    from (select _id[i] as id, _token[i] as token, _state[i] as state, _ttl_ms[i] as ttl_ms, {outcome elements},
                 _due_ms[i] as due_ms
            from generate_series(1, cardinality(_id)) as g (i)) as s
   where
     {may_settle of s}
  returning k.id, k.expires_at;
end
