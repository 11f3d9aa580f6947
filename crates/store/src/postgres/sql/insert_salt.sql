-- insert_salt: stores a service's salt, unless it has one.
insert into oncegate.salts (service, value) values (:service, :to) on conflict (service) do nothing returning service
