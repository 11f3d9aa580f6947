-- For deliveries whose last attempt has an unknown outcome. Only accepted keys are in it, and with the deadline in the
-- index a pick-up reads no row that is not due or not quiet.
create index keys_unknown_deliveries on keys (service, route, coalesce(due_at, settled_at), deadline)
  where state = 'unknown' and accepted_at is not null;
