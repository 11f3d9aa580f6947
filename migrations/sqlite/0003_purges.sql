-- What instances that remember responses need, to forget what was purged.

-- purges: grows with every purge, in its transaction. Instances read it with each heartbeat and drop what they remember.
create table counters (
  name   text primary key,
  value  integer not null
) strict;
insert into counters (name, value) values ('purges', 0);

alter table instances add column service text;
-- The purges that it has seen: what was purged before is in its memory no more.
alter table instances add column purges_seen integer not null default 0;
