-- replace_salt: stores a service's salt in another form, unless another instance has just done so.
update oncegate.salts as s set value = :to where s.service = :service and s.value = :from returning s.service
