-- delete_events: deletes events that were published, and no other that has got the number of one since a failover.
delete from events
 where (seq, at) in (select json_extract(value, '$.seq'), json_extract(value, '$.at') from json_each(:events))
