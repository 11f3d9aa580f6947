-- renew: takes or prolongs an instance's lease, notes which purges it has seen, and tells their count.
insert into instances (id, started_at, renewed_at, lease_until, service, purges_seen)
values (:instance, :now, :now, :now + :expiry_ms, :service,
        -- Who has just been started remembers nothing.
        coalesce(:purges_seen, (select value from counters where name = 'purges'), 0))
    on conflict (id) do update
       set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
           service = excluded.service,
           -- A first renewal that is carried out after others does not speak for what was remembered since.
           purges_seen = coalesce(:purges_seen, purges_seen)
returning coalesce((select value from counters where name = 'purges'), 0) as purges
