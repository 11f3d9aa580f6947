-- settle: ends an attempt. Only the newest attempt's token fits, and a completed key stays as it is.
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
     where k.id = _id
       and k.token = _token
       -- An accepted key is queued again instead. Earlier attempts, and how far they have come, are not forgotten: the next
       -- attempt has to know.
       and k.accepted_at is null
       and k.attempt = 1
       and k.recovery_point is null
       -- As in the update below.
       and k.state in ('in_flight', 'unknown', 'dead');
    done := found;
    if done then
      return;
    end if;
  end if;
  update oncegate.keys as k
     -- An accepted key is queued for the next delivery; no other request may take it over.
     set state = case when k.accepted_at is not null and _state = 'retryable' then 'queued' else _state end,
         settled_at = moment,
         expires_at = case when k.accepted_at is null or _state <> 'retryable'
                           -- A key that was not deleted above is remembered for a day.
                           then moment + case when _ttl_ms = 0 and _state = 'retryable' then 86400000
                                              else _ttl_ms end
                      end,
         due_at = case when k.accepted_at is null then null
                       when _state = 'retryable' then moment + coalesce(_due_ms, 0)
                       when _state = 'unknown' then moment + _due_ms end,
         {outcome assignments}
   where k.id = _id
     and k.token = _token
     -- A response counts whatever its key has become meanwhile. Any other outcome undoes nothing that the service, a
     -- reconciler or an operator has decided since.
     and case
           when _state = 'completed' then k.state not in ('completed', 'expired')
           when _state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
  returning k.expires_at into expires_at;
  done := found;
end
