-- replace_salt: stores a service's salt in another form, unless another instance has just done so.
update oncegate.salts as s set value = $3 where s.service = $1 and s.value = $2 returning s.service
