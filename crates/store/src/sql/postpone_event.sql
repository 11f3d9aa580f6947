-- postpone_event: lets an event be tried again later, or makes it dead where there is no later. A later claim stays.
update oncegate.events set due_at = :now + :retry_ms, note = :note where seq = :seq and at = :at and tries = :tries
