-- defer_not_executed: stores a report of "not executed" for an attempt that is still in flight: see
-- apply_deferred_reports.
insert into deferred_reports (id, token, ttl_ms)
values (:id, :token, :ttl_ms)
    on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms
