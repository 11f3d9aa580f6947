-- For the reconciler: the longest due first, however many are not due or nobody's to ask about.
create index concurrently if not exists keys_due
  on oncegate.keys (service, route, coalesce(probe_at, settled_at)) where state = 'unknown';
