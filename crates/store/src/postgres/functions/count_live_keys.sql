-- count_live_keys: a holder's keys, up to a limit: by the index alone, where the pages are vacuumed.
--
-- The settings hold inside the function only. Where one holder has a large part of the table, the planner would read
-- the table until it has found enough rows; these may be at its end.
create function oncegate.count_live_keys(_holder bytea, _limit bigint, out done boolean, out count bigint)
stable
set enable_seqscan = off
set enable_bitmapscan = off
set jit = off
begin
  select true, count(*) into done, count from (select 1 from oncegate.keys as k where k.holder = _holder limit _limit) as live;
end
