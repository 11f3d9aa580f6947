-- forget_caller: takes a caller's name from its counts.
update oncegate.weekly_counts
   set caller = :replacement
 where service = :service
   and caller = :caller
