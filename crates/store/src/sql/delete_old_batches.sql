-- delete_old_batches: forgets the batches of instances that have added none for 30 days.
delete from oncegate.weekly_batches where added_at < :now - 2592000000
