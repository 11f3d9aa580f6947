-- What instances that remember responses need, to forget what was purged.
--
-- A step of its own: heartbeats must not be held up by the wait for the lock on the keys.

create table oncegate.counters (
  name   text primary key,
  value  bigint not null
);
insert into oncegate.counters (name, value) values ('purges', 0);
comment on table oncegate.counters is
  'purges: grows with every purge, in its transaction. Instances read it with each heartbeat and drop what they remember.';

alter table oncegate.instances
  add column service      text,
  -- The purges that it has seen: what was purged before is in its memory no more.
  add column purges_seen  bigint not null default 0;
