-- list_audit_entries: entries of the audit log, the latest first.
select a.seq, (date_part('epoch', a.at) * 1000)::bigint as at_ms, a.actor, a.action, a.id, a.before, a.after, a.note
  from oncegate.audit as a
 where a.service = $1::text
   and ($2::bytea is null or a.id = $2)
   and ($3::bigint is null or a.seq < $3)
 order by a.seq desc
 limit $4::bigint
