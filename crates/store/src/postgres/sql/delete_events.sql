-- delete_events: deletes events that were published.
delete from oncegate.events where seq in (select value::bigint from json_array_elements_text(:seqs::json) as s (value))
