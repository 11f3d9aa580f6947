-- delete_orphaned_requests: deletes requests without a key; older versions leave them when they reap or purge one.
-- Each call reads a part of the table from a random id and a part from its beginning, whatever the table's size.
delete from outbox
 where id in (select id from (select id from outbox where id >= (select randomblob(32)) order by id limit :limit)
               union
              select id from (select id from outbox order by id limit :limit))
   and not exists (select 1 from keys as k where k.id = outbox.id)
