-- hold_ttls: moves the time until which no instance takes a record for past its TTL. It never comes earlier.
insert into counters (name, value)
values ('ttls_held_until', :hold_ttls_until)
    on conflict (name) do update set value = max(value, excluded.value)
