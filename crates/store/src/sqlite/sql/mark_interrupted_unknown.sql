-- mark_interrupted_unknown: at opening, this process alone has the file, so no attempt in flight is running any more.
update keys
   set state = 'unknown', settled_at = :now, cause = 'crashed'
 where state = 'in_flight'
returning id, route, attempt, instance
