-- due: what of a route is due to be delivered, with the reason why it is not tried again where there is one.
select k.id, k.token, k.state, k.route, k.attempt, k.attempt - o.attempts_before as spent,
       o.since + :give_up_after_ms - :now as give_up_in_ms,
       case when o.id is null then 'its request is not in the store any more'
            when k.attempt - o.attempts_before >= :max_attempts
              then format('tried %s times', k.attempt - o.attempts_before)
            when o.since + :give_up_after_ms <= :now
              then format('not delivered in time, after %s attempts', k.attempt - o.attempts_before)
       end as note
  from (-- Each with a limit of its own, and what is queued in its index's order: a backlog is not gone through as a whole.
        select *
          from (select id, token, state, route, attempt, due_at as since
                  from keys
                 where service = :service and route = :route and state = 'queued' and due_at <= :now
                 order by due_at
                 limit :limit)
         union all
        select *
          from (select id, token, state, route, attempt, coalesce(due_at, settled_at) as since
                  from keys
                 where service = :service and route = :route and state = 'unknown'
                   and accepted_at is not null and coalesce(due_at, settled_at) <= :now
                   -- Its last attempt cannot be running any more, unless the route does not mind.
                   and (:on_unknown = 'retry'
                        or (:on_unknown = 'retry-when-quiet' and deadline + :quiet_after_ms <= :now))
                 order by coalesce(due_at, settled_at)
                 limit :limit)
         order by since
         limit :limit) as k
  left join outbox as o on o.id = k.id
 order by k.since
