-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
select id, token, route
  from keys
 where state = 'in_flight' and instance = :instance and reserved_at <= :now - :older_than_ms
