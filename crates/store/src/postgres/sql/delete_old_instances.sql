-- delete_old_instances: instances whose lease ended a day ago. An expired lease and a missing one mean the same; until
-- then the row is for people who look.
delete from oncegate.instances as i where i.lease_until < least(:now, :as_of) - 86400000
