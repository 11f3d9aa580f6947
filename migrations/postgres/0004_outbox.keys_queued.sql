-- For deliveries: the longest due first.
create index concurrently if not exists keys_queued
  on oncegate.keys (service, route, due_at) where state = 'queued';
