-- find: records by id, without the response where it is larger than the limit. A statement of its own: one snapshot cannot show the row that an insert has just lost to.
select k.id, k.attempt, k.token, k.recipe, k.fingerprint, k.state, k.reserved_at, k.deadline, k.settled_at, k.expires_at,
       k.remember_ms, k.accepted_at, k.recovery_point, k.status,
       -- The lengths are known without reading the values.
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.fields end as fields,
       case when coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) <= $2 then k.body end as body,
       coalesce(length(k.fields), 0)::bigint + coalesce(length(k.body), 0) as bytes
  from oncegate.keys as k
 where k.id = any ($1)
