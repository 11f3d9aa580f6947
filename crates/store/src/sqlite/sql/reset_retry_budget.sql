-- reset_retry_budget: a delivery has all its attempts and its time again.
update outbox
   set since = :now, attempts_before = (select k.attempt from keys as k where k.id = :id)
 where id = :id
