-- shred_orphans: requests without a key, as older versions leave them when they reap or purge one. A stretch of the table
-- at each time, from anywhere on and from the beginning, whatever its size.
delete from outbox
 where id in (select id from (select id from outbox where id >= (select randomblob(32)) order by id limit :limit)
               union
              select id from (select id from outbox order by id limit :limit))
   and not exists (select 1 from keys as k where k.id = outbox.id)
