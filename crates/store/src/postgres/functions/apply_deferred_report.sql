-- apply_deferred_report: makes a key retryable whose service reported "not executed" while the attempt ran, if the
-- attempt has ended since without a response. A report whose attempt ended otherwise is deleted.
create function oncegate.apply_deferred_report(_id bytea, _token bytea) returns boolean
declare
  seen record;
  reported_ttl_ms bigint;
begin
  perform oncegate.begin_write('20ms');
  select k.service, k.state, k.cause into seen
    from oncegate.keys as k
   where k.id = _id and k.token = _token
     for no key update;
  if seen.state = 'in_flight' then
    return false;
  end if;
  delete from oncegate.deferred_reports as d where d.id = _id and d.token = _token returning d.ttl_ms into reported_ttl_ms;
  -- After a response that leaves the outcome unknown, the cause is another one, and the response decides.
  if reported_ttl_ms is not null and seen.state in ('dead', 'unknown')
     and (seen.cause is null or seen.cause in ('broken', 'crashed', 'store', 'timeout')) then
    perform oncegate.{function report}(_id, _token, seen.service, reported_ttl_ms, null);
    return true;
  end if;
  return false;
end
