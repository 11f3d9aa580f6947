-- end_delivery: deletes the request of a key that was delivered. Spares the request of a later life, if the key is
-- accepted anew at this moment.
create function oncegate.end_delivery(_id bytea) returns boolean
begin
  perform oncegate.begin_write('20ms');
  -- Locked, so that the key is not accepted anew before its old request is gone.
  perform from oncegate.keys as k where k.id = _id and k.state in ('completed', 'expired', 'retryable') for no key update;
  if not found then
    return false;
  end if;
  delete from oncegate.outbox as o where o.id = _id;
  return found;
end
