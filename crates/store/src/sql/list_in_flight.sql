-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
select k.id, k.token, k.route
  from oncegate.keys as k
 where k.state = 'in_flight'
   and k.instance = :instance
   -- From later than now: reserved before the clock was set back, nobody knows how long ago.
   and (k.reserved_at <= :now - :older_than_ms or k.reserved_at > :now)
