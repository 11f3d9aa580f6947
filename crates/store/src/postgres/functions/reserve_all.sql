-- reserve_all: reserve for many keys at once. It returns those that it has reserved.
--
-- The settings hold inside the function only. A plan that is kept was made for a table that may have been empty: it
-- must be the one that is right for a large one, and that is always the primary key, row by row.
create function oncegate.reserve_all({reservation arrays}, _time_limit_ms bigint[]) returns table (id bytea)
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
declare
  moment constant bigint := oncegate.begin_write();
begin
  return query
  insert into oncegate.keys
         ({reservation names}, state, attempt, created_at, reserved_at, deadline)
  select {reservation values of s}, 'in_flight', 1, moment, moment, moment + s.time_limit_ms
    from unnest({reservation values}, _time_limit_ms) as s ({reservation names}, time_limit_ms)
   order by s.id -- two batches with two keys in common must not deadlock
      on conflict (id) do nothing
  returning id;
end
