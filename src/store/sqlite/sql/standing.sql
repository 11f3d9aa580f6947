-- standing: what is in flight under an instance's name, for it to compare with what it is running.
select id, token
  from keys
 where state = 'in_flight' and instance = :instance and reserved_at <= :now - :older_than_ms
