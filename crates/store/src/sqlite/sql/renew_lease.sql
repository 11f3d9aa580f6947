-- renew_lease: takes or renews an instance's lease, stores which purges it has seen, and returns the time, the purge
-- count, and the time until which the ends of TTLs are held.
insert into instances (id, started_at, renewed_at, lease_until, services, purges_seen)
values (:id, :now, :now, :now + :expiry_ms, :services,
        -- An instance that has just started has cached nothing.
        coalesce(:purges_seen, (select value from counters where name = 'purges'), 0))
    on conflict (id) do update
       set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until,
           services = excluded.services,
           -- A first renewal that runs after later ones says nothing about what was cached since.
           purges_seen = coalesce(:purges_seen, purges_seen)
returning :now as now, coalesce((select value from counters where name = 'purges'), 0) as purges,
          coalesce((select value from counters where name = 'ttls_held_until'), 0) as ttls_held_until
