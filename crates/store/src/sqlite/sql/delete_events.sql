-- delete_events: deletes events that were published.
delete from events where seq in (select value from json_each(:seqs))
