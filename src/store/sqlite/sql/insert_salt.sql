-- insert_salt: stores a service's salt, unless it has one.
insert into salts (service, value) values (:service, :value) on conflict (service) do nothing
