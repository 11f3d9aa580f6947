-- reserved: the state of a reservation's key, as long as it is the newest attempt's.
select state from keys where id = :id and token = :token and service = :service
