-- ended_reports: reports "not executed" whose attempt is not in flight any more, see apply_deferred_report.
select d.id, d.token
  from oncegate.deferred_reports as d
 -- Not a join: while the table of reports has no statistics, the planner would read all keys for it.
 where (select k.state from oncegate.keys as k where k.id = d.id and k.token = d.token) is distinct from 'in_flight'
 limit :limit
