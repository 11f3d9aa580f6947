-- purge: deletes a key that is still as it was seen.
delete from keys
 where id = :id
   and service = :service
   and token = :token
   and state = :seen_state
   and state <> 'in_flight'
