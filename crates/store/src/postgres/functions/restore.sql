-- restore: writes the row of an ended attempt that the store has lost.
create function oncegate.restore(
  {reservation parameters}, _time_limit_ms bigint, _state text, _ttl_ms bigint, {outcome parameters}, _due_ms bigint,
  _attempt integer, _accepted_at bigint, _replaced_token bytea, _replaced_was_completed boolean,
  out done boolean, out expires_at bigint
)
declare
  moment constant bigint := oncegate.begin_write('20ms');
begin
  {restored}
  returning k.expires_at into expires_at;
  done := found;
end
