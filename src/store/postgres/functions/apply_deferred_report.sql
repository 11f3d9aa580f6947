-- apply_deferred_report: makes a key retryable whose service reported "not executed" while the attempt ran, if the attempt
-- has ended since without a response. A report whose attempt ended otherwise is deleted.
create function oncegate.apply_deferred_report(_id bytea, _token bytea) returns boolean
language plpgsql
as $function$
declare
  moment constant bigint := oncegate.begin_write('20ms');
  seen record;
  after text;
begin
  select k.service, k.state, d.ttl_ms
    into seen
    from oncegate.deferred_reports as d
    left join oncegate.keys as k on k.id = d.id and k.token = d.token
   where d.id = _id and d.token = _token;
  if not found or seen.state = 'in_flight' then
    return false;
  end if;
  update oncegate.keys as k
     -- Only a deliverer tries an accepted key again.
     set state = case when k.accepted_at is null then 'retryable' else 'queued' end, settled_at = moment,
         expires_at = case when k.accepted_at is null then moment + seen.ttl_ms end,
         due_at = case when k.accepted_at is not null then moment end
   where k.id = _id
     and k.token = _token
     -- Not the state as it was seen: somebody may have given the key up since, and the report still counts.
     and k.state in ('dead', 'unknown')
     -- After a response that leaves the outcome unknown, the cause is another one, and the response decides.
     and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout'))
  returning k.state into after;
  if found then
    insert into oncegate.audit (at, service, actor, action, id, before, after)
    values (moment, seen.service, 'service', 'not_executed', _id, seen.state, after);
  end if;
  delete from oncegate.deferred_reports as d where d.id = _id and d.token = _token;
  return after is not null;
end
$function$
