-- replace_salt: stores a service's salt, if the stored one is still the one that was read, or if none was and none is.
insert into salts (service, value)
select :service, :to
 where :from is null or exists (select 1 from salts where service = :service and value = :from)
    on conflict (service) do update set value = excluded.value where value = :from
