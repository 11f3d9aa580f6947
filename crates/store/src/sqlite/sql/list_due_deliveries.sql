-- list_due_deliveries: a route's deliveries that are due, with the reason where one is not tried again. A key that was
-- not accepted is repeated while its window is open.
select k.id, k.token, k.state,
       k.accepted_at is null as is_repeat,
       coalesce(o.since + :repeat_within_ms > max(:now, :estimate), false) as is_open,
       case when k.accepted_at is null then null
            when o.id is null then 'its request is not in the store any more'
            when k.attempt - o.attempts_before >= :max_attempts
              then format('tried %s times', k.attempt - o.attempts_before)
            when o.since + :give_up_after_ms <= :as_of
              then format('not delivered in time, after %s attempts', k.attempt - o.attempts_before)
       end as note
  from (-- A limit for each state, and queued keys in their index's order: a backlog is not read as a whole.
        select *
          from (select id, token, state, attempt, accepted_at, due_at as since
                  from keys
                 where service = :service and route = :route and state = 'queued' and due_at <= :as_of
                 order by due_at
                 limit :limit)
         union all
        select *
          from (select id, token, state, attempt, accepted_at, coalesce(due_at, settled_at) as since
                  from keys
                 where service = :service and route = :route and state = 'unknown' and not :holds_unknown
                   and (accepted_at is not null or due_at is not null) and coalesce(due_at, settled_at) <= :as_of
                   -- Its last attempt cannot be running any more, unless the route accepts that.
                   and (:quiet_after_ms is null or deadline + :quiet_after_ms <= :as_of)
                 order by coalesce(due_at, settled_at)
                 limit :limit)
         order by since
         limit :limit) as k
  left join outbox as o on o.id = k.id
 order by k.since
