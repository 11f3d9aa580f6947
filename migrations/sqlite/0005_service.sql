-- What services say of their own attempts.

-- How far the newest life's attempts have come, by their service's word.
alter table keys add column recovery_point text
  constraint keys_recovery_point_short check (length(recovery_point) between 1 and 128);

-- Attempts of which their service has said "not executed" while they were still running. It counts once they have ended.
create table denials (
  id      blob primary key not null,
  token   blob not null check (length(token) = 16),
  ttl_ms  integer not null
) strict;
