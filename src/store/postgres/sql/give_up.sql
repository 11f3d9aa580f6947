-- give_up: marks an accepted key dead that is not tried again, with the reason in the audit log.
, available as materialized (
  -- A row that another transaction has locked is left to it.
  select k.id, k.state from oncegate.keys as k where k.id = $1::bytea for no key update of k skip locked
),
given_up as (
  update oncegate.keys as k
     set state = 'dead', settled_at = durable.now,
         due_at = case available.state when 'unknown' then null else durable.now end
    from available
   cross join durable
   where k.id = available.id
     and k.token = $2::bytea
     and k.accepted_at is not null
     and k.state = any ($3::text[])
     and durable.setting is not null
  returning k.id, k.service, available.state as was
),
audited as (
  insert into oncegate.audit (at, service, actor, action, id, before, after, note)
  select durable.now, g.service, 'delivery', 'give_up', g.id, g.was, 'dead', $4::text
    from given_up as g
   cross join durable
)
select g.id from given_up as g
