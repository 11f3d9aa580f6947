-- end_delivery: deletes the request of a key that was delivered. Spares the request of a later life, if the key is accepted
-- anew at this moment.
create function oncegate.end_delivery(_id bytea) returns boolean
language plpgsql
as $function$
begin
  perform oncegate.begin_write('20ms');
  delete from oncegate.outbox as o
   where o.id = _id
     and o.since <= (select k.settled_at from oncegate.keys as k where k.id = _id and k.state in ('completed', 'expired'));
  return found;
end
$function$
