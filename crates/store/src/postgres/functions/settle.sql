-- settle: ends an attempt. A completed key stays as it is.
create function oncegate.settle(
  _id bytea, _token bytea, _state text, _ttl_ms bigint, {outcome parameters}, _due_ms bigint, out done boolean, out expires_at bigint
)
-- A plan that is kept was made for a table that may have been empty: it must be the one that is right for a large one.
set enable_seqscan = off
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  if _state = 'retryable' and _ttl_ms = 0 then
    delete from oncegate.keys as k
     where
       {may_forget};
    done := found;
    if done then
      -- Its request, if it was kept.
      delete from oncegate.outbox as o where o.id = _id;
      return;
    end if;
  end if;
  update oncegate.keys as k
     set
       {settled}
   where
     {may_settle}
  returning k.expires_at into expires_at;
  done := found;
end
