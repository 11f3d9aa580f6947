-- insert_salt: stores a service's salt, unless it has one.
insert into oncegate.salts (service, value)
select $1::text, $2::bytea
  from durable
 where durable.setting is not null
    on conflict (service) do nothing
