-- claim_inquiry: claims an unknown key for an inquiry. Counts the inquiry and sets the time of the next before the service is
-- asked.
create function oncegate.claim_inquiry(
  _id bytea, _token bytea, _as_of bigint, _quiet_after_ms bigint, _pause_first_ms bigint, _pause_cap_ms bigint,
  out done boolean, out id bytea, out token bytea, out scope bytea, out key bytea, out route text, out path bytea,
  out inquiries integer, out absences integer, out settled_at bigint
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
  due constant bigint := least(moment, _as_of);
  -- Up to a quarter longer, so that keys that became unknown together are asked about apart.
  longer constant double precision := 1 + random() / 4;
begin
  update oncegate.keys as k
     set inquiries = coalesce(k.inquiries, 0) + 1,
         absences = coalesce(k.absences, 0),
         inquire_at = moment + (longer * least(_pause_first_ms * power(2, least(coalesce(k.inquiries, 0), 30)), _pause_cap_ms))::bigint
   where k.id = _id
     and k.token = _token
     and k.state = 'unknown'
     and coalesce(k.inquire_at, k.settled_at) <= due
     -- Before that, the service could answer "not executed" for a request that is still on its way.
     and k.deadline + _quiet_after_ms <= due
  returning k.id, k.token, k.scope, k.key, k.route, k.path, k.inquiries, k.absences, k.settled_at
    into id, token, scope, key, route, path, inquiries, absences, settled_at;
  done := found;
end
