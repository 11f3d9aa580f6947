-- A salt for each service, in place of one for the store: services that share a store may have secrets of their own, and a
-- salt is encrypted under its service's.

create table oncegate.salts (
  service  text primary key,
  value    bytea not null
);
comment on table oncegate.salts is
  'The salt of each service''s scopes: 32 bytes in clear, or one encrypted copy for each secret. Without it no key is found.';

-- All tables that name a service: one with keys may have no other rows in a store that several share.
insert into oncegate.salts (service, value)
select known.service, m.value
  from oncegate.meta as m
 cross join (
   select r.service from oncegate.rules as r
   union
   select i.service from oncegate.instances as i where i.service is not null
   union
   select k.service from oncegate.keys as k
 ) as known
 where m.name = 'salt';

drop table oncegate.meta;
