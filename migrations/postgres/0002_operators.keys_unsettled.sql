-- For operators. It holds what somebody has to look at, which is little.
create index concurrently if not exists keys_unsettled
  on oncegate.keys (service, state, settled_at) where state in ('dead', 'unknown');
