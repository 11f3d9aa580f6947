-- discount_unsent_attempt: an attempt under which nothing was sent does not count, while it is the newest.
update outbox
   set attempts_before = attempts_before + 1
 where id = :id
   and attempts_before < (select k.attempt from keys as k where k.id = :id and k.token = :token)
