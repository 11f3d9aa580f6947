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
  select {reservation of i}, 'in_flight', 1, moment, moment, moment + _time_limit_ms[i]
    -- By place: `unnest` of so many arrays makes a table of each one first, which cost a batch a tenth of its time. In
    -- the order of ids, for two batches with two keys in common must not deadlock.
    from (select i from generate_series(1, cardinality(_id)) as g (i) order by _id[i]) as s
      on conflict (id) do nothing
  returning id;
end
