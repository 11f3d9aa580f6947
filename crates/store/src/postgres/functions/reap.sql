-- reap: deletes those of the records that are past their TTL; of those that are remembered it drops the response only.
-- Many ids at once: as many records must go as come.
create function oncegate.reap(
  _id bytea[], _as_of bigint, _settled_since bigint, out done boolean, out deleted bigint, out responses_dropped bigint
)
set enable_seqscan = off
set jit = off
declare
  passed constant bigint := least(oncegate.begin_write('20ms'), _as_of);
begin
  delete from oncegate.keys as k
   where k.id = any (_id) and k.expires_at <= passed and k.settled_at >= _settled_since and k.remember_ms is null;
  get diagnostics deleted = row_count;
  update oncegate.keys as k
     set state = 'expired', expires_at = k.expires_at + k.remember_ms, {response resets}
   where k.id = any (_id) and k.expires_at <= passed and k.settled_at >= _settled_since and k.remember_ms is not null;
  get diagnostics responses_dropped = row_count;
  -- Requests that were not deleted when their keys were completed. A key that is accepted anew waits for the statements
  -- above, or is queued by now.
  delete from oncegate.outbox as o
   where o.id = any (_id)
     and not exists (select from oncegate.keys as k where k.id = o.id and k.state <> 'expired');
  done := true;
end
