-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
select id, token, route
  from keys
 where state = 'in_flight'
   and instance = :instance
   -- From later than now: reserved before the clock was set back, nobody knows how long ago.
   and (reserved_at <= :now - :older_than_ms or reserved_at > :now)
