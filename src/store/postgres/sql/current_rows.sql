-- current_rows: the current state of keys that a decision left unchanged, and the last audit entry of each.
select wanted.id, k.token, k.state,
       (date_part('epoch', k.deadline - clock_timestamp()) * 1000)::bigint as deadline_in_ms,
       last.actor, last.action, last.after
  from unnest($1::bytea[]) as wanted (id)
  left join oncegate.keys as k on k.id = wanted.id and k.service = $2::text
  left join lateral (
         select a.actor, a.action, a.after
           from oncegate.audit as a
          where a.id = wanted.id and a.service = $2::text
          order by a.seq desc
          limit 1) as last on true
