-- renew: takes or prolongs an instance's lease.
insert into instances (id, started_at, renewed_at, lease_until)
values (:instance, :now, :now, :now + :expiry_ms)
    on conflict (id) do update set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until
