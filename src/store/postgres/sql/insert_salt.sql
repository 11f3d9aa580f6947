-- insert_salt: stores a service's salt, unless it has one.
insert into oncegate.salts (service, value) values ($1, $2) on conflict (service) do nothing returning service
