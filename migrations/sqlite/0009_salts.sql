-- A salt for each service, in place of one for the store: services that share a store may have secrets of their own, and a
-- salt is encrypted under its service's.

-- The salt of each service's scopes: 32 bytes in clear, or one encrypted copy for each secret. Without it no key is found.
create table salts (
  service  text primary key,
  value    blob not null
) strict;

-- Every service that has been started since 0002 is in rules. The keys are read only where none has.
insert into salts (service, value)
select known.service, m.value
  from meta as m
 cross join (
   select r.service from rules as r
   union
   select i.service from instances as i where i.service is not null
   union
   select k.service from keys as k where not exists (select 1 from rules)
 ) as known
 where m.name = 'salt';

-- Nothing of the table stays in free pages of the file.
pragma secure_delete = on;
drop table meta;
pragma secure_delete = off;
