-- end_repeats: a key whose window has closed is not repeated any more.
update keys set due_at = null where id = :id and accepted_at is null and state = 'unknown'
