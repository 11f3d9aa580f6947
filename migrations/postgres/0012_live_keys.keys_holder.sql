-- For the count of a holder's live keys: only keys of routes with such a limit are in it.
create index concurrently if not exists keys_holder on oncegate.keys (holder) where holder is not null;
