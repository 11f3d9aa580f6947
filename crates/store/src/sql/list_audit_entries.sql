-- list_audit_entries: entries of the audit log, the latest first.
select a.seq, a.at, a.actor, a.action, a.id, a.before, a.after, a.note
  from oncegate.audit as a
 where a.service = :service
   and (:id is null or a.id = :id)
   and (:before is null or a.seq < :before)
 order by a.seq desc
 limit :limit
