-- orphans: whoever opens the file is alone with it, so what is in flight is run by nobody.
update keys
   set state = 'unknown', settled_at = :now
 where state = 'in_flight'
returning id, route, attempt, instance
