-- replace_salt: stores a service's salt in another form, unless another instance has just done so.
update oncegate.salts as s
   set value = $3::bytea
  from durable
 where s.service = $1::text
   and s.value = $2::bytea
   and durable.setting is not null
