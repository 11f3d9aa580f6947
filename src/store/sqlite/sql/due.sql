-- due: what of a route is due to be delivered, with the reason why it is not tried again where there is one.
select k.id, k.token, k.state, k.route, k.attempt, k.attempt - o.attempts_before as spent,
       o.since + :give_up_after_ms - :now as give_up_in_ms,
       case when o.id is null then 'its request is not in the store any more'
            when k.attempt - o.attempts_before >= :max_attempts
              then format('tried %s times', k.attempt - o.attempts_before)
            when o.since + :give_up_after_ms <= :now
              then format('not delivered in time, after %s attempts', k.attempt - o.attempts_before)
       end as note
  from keys as k
  left join outbox as o on o.id = k.id
 where k.service = :service
   and k.route = :route
   and (   (k.state = 'queued' and k.due_at <= :now)
        or (k.state = 'unknown' and k.accepted_at is not null and coalesce(k.due_at, k.settled_at) <= :now
            -- Its last attempt cannot be running any more, unless the route does not mind.
            and (:on_unknown = 'retry'
                 or (:on_unknown = 'retry-when-quiet' and k.deadline + :quiet_after_ms <= :now))))
 order by coalesce(k.due_at, k.settled_at)
 limit :limit
