-- delete_events: deletes events that were published, and no other that has got the number of one since a failover.
delete from oncegate.events as e
 using json_to_recordset(:events::json) as n (seq bigint, at bigint)
 where e.seq = n.seq and e.at = n.at
