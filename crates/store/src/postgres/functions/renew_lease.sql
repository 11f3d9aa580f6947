-- renew_lease: takes or renews an instance's lease, stores which purges it has seen, and returns the time, the purge
-- count, and the time until which the ends of TTLs are held.
create function oncegate.renew_lease(
  _id bigint, _services text, _expiry_ms bigint, _purges_seen bigint, _hold_ttls_until bigint,
  out done boolean, out now bigint, out purges bigint, out ttls_held_until bigint
)
begin
  now := oncegate.begin_write();
  ttls_held_until := coalesce((select c.value from oncegate.counters as c where c.name = 'ttls_held_until'), 0);
  -- Another counter beside `purges`. Each heartbeat tells it while it lasts: where it does not grow, no renewal waits
  -- for another's.
  if _hold_ttls_until > ttls_held_until then
    insert into oncegate.counters as c (name, value) values ('ttls_held_until', _hold_ttls_until)
        on conflict (name) do update set value = greatest(c.value, excluded.value)
        returning c.value into ttls_held_until;
  end if;
  purges := coalesce((select c.value from oncegate.counters as c where c.name = 'purges'), 0);
  insert into oncegate.instances as i (id, started_at, renewed_at, lease_until, services, purges_seen)
  -- An instance that has just started has cached nothing.
  values (_id, now, now, now + _expiry_ms, _services, coalesce(_purges_seen, purges))
      on conflict (id) do update
     set renewed_at = excluded.renewed_at, lease_until = excluded.lease_until, services = excluded.services,
         -- A first renewal that runs after later ones says nothing about what was cached since.
         purges_seen = coalesce(_purges_seen, i.purges_seen);
  done := true;
end
