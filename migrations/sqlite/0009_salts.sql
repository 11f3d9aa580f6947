-- A salt for each service, in place of one for the store: services that share a store may have secrets of their own, and a
-- salt is encrypted under its service's.

-- The salt of each service's scopes: 32 bytes in clear, or one encrypted copy for each secret. Without it no key is found.
create table salts (
  service  text primary key,
  value    blob not null
) strict;

-- All tables that name a service: one with keys may have no other rows in a store that several share.
insert into salts (service, value)
select known.service, m.value
  from meta as m
 cross join (
   select r.service from rules as r
   union
   select i.service from instances as i where i.service is not null
   union
   select k.service from keys as k
 ) as known
 where m.name = 'salt';

-- Nothing of the table stays in free pages of the file.
pragma secure_delete = on;
drop table meta;
pragma secure_delete = off;
