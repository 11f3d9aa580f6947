-- SQLite: the statements, and the triggers of events, as they are sent.
-- Made by `make docs-write` from crates/store/src. The schema is in migrations.

-- add_weekly_counts: adds counts to the week that has begun.
insert into weekly_counts as c (week, service, route, caller, kind, count)
select -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
(:now + 259200000) / 604800000 * 604800000 - 259200000,
       n.value ->> 'service', n.value ->> 'route', n.value ->> 'caller', n.value ->> 'kind', n.value ->> 'count'
  from json_each(:counts) as n
 where true
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count;

-- applied_migrations: the migrations that this file has.
select version, name, sha256, oldest_program from migrations order by version;

-- apply_deferred_reports: reports of "not executed" whose attempt has ended since without a response.
select k.id, k.token, k.service, k.state, d.ttl_ms
  from deferred_reports as d
       -- A cross join keeps its order in SQLite: few reports, if any, and each finds its key. The other order reads all
       -- keys.
 cross join keys as k on k.id = d.id and k.token = d.token
 where k.state in ('dead', 'unknown')
   -- After a response that leaves the outcome unknown, the cause is another one. Rows of earlier releases have none.
   and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout'))
 order by d.id
 limit :limit;

-- apply_inquiry_finding: applies a reconciler's verdict to an unknown key.
-- inquiry_finding: applies a reconciler's verdict to an unknown key. Only a deliverer tries an accepted key again. A
-- response is proof whenever it comes. Any other verdict counts only as the answer to the last inquiry.
update keys as k
   set state = case when :state = 'retryable' and k.accepted_at is not null then 'queued' else :state end,
       absences = coalesce(:absences, k.absences),
       settled_at = case when :state = 'unknown' then k.settled_at else :now end,
       expires_at = case when :state <> 'retryable' or k.accepted_at is null then :now + :ttl_ms end,
       due_at = case when :state = 'retryable' and k.accepted_at is not null then :now
                     when :state = 'unknown' then k.due_at end,
       remember_ms = :remember_ms, status = :status, fields = :fields, body = :body
 where k.id = :id
   and k.token = :token
   and k.state = 'unknown'
   and (:state = 'completed' or k.inquiries = :inquiry)
returning service, state;

-- apply_operator_decision: applies an operator's decision to a key that is still as it was seen.
update keys
   -- Only a deliverer tries an accepted key again; a release gives it to the next request.
   set state = case when accepted_at is null or :action = 'release' then :state
                    when :state = 'retryable' or (:action = 'requeue' and due_at is not null) then 'queued'
                    else :state end,
       -- A withdrawn response had ended its attempt. A new token keeps that attempt from ending a second time.
       token = iif(:seen_state = 'completed', :new_token, token),
       hand_token = iif(:state <> 'completed', null, iif(:seen_state = 'completed', :new_token, token)),
       settled_at = iif(:state = 'unknown' and due_at is null, settled_at, :now),
       expires_at = iif(accepted_at is not null and :state = 'retryable' and :action <> 'release', null, :now + :ttl_ms),
       -- A release starts the operation from the beginning.
       recovery_point = iif(:action = 'release', null, recovery_point),
       accepted_at = iif(:action = 'release', null, accepted_at),
       attempt = iif(:action = 'release', max(attempt, 1), attempt),
       due_at = case when accepted_at is null or :action = 'release' or :state = 'completed' then null
                     when :state = 'retryable' or due_at is not null then :now end,
       remember_ms = :remember_ms, status = :status, fields = :fields, body = :body,
       -- A key that is to be asked again is asked from the first inquiry on.
       inquiries = iif(:state in ('completed', 'retryable'), inquiries, null),
       absences = iif(:state in ('completed', 'retryable'), absences, null),
       inquire_at = null
 where id = :id
   and service = :service
   and token = :token
   and state = :seen_state
   -- A service's own response is never replaced.
   and (:action <> 'replace' or hand_token = token)
   and (:quiet_after_ms is null or deadline + :quiet_after_ms <= :as_of)
returning state;

-- audit_discarded_events: writes the dead events of a sink that are discarded into the audit log: the key's state is
-- what it was.
insert into audit (at, service, actor, action, id, before, after, note)
select :now, :service, :actor, 'discard event', e.id, coalesce(e.state, 'none'), coalesce(e.state, 'none'),
       coalesce(:types ->> e.outcome, e.outcome) || ' ' || e.seq || ' for ' || :sink || coalesce(': ' || e.note, '')
  from events as e
 where e.service = :service and e.sink = :sink and e.due_at is null
 order by e.seq
 limit 10000;

-- claim_events: takes events that are due for a publisher, the oldest first; of each key only the oldest that waits.
update events
   set due_at = :now + :lease_ms, tries = tries + 1
 where seq in (
  select f.seq
    from events as f
   where f.service = :service and f.sink = :sink and f.due_at <= :now
     and not exists (select 1 from events as g
                      where g.id = f.id and g.sink = f.sink and g.seq < f.seq and g.due_at is not null and g.service = f.service)
   order by f.due_at, f.seq
   limit :limit
 )
returning seq, at, created_at, reserved_at, settled_at, attempt, since, tries, status, id, token, outcome, state, route, key, cause, fields, body;

-- claim_inquiries: claims unknown keys that are due for an inquiry. Counts the inquiry and sets the time of the next before
-- the service is asked.
update keys
   set inquiries = coalesce(inquiries, 0) + 1,
       absences = coalesce(absences, 0),
       -- Doubled each time, and up to a quarter longer, so that keys that became unknown together are asked about apart.
       inquire_at = :now + min(:pause_first_ms * (1 << min(coalesce(inquiries, 0), 20)), :pause_cap_ms)
                       * (1000 + (:spread + 101 * rowid) % 250) / 1000
 where id in (
         select id
           from keys
          where service = :service
            and state = 'unknown'
            and route = :route
            -- Before that, the service could answer "not executed" for a request that is still on its way.
            and deadline + :quiet_after_ms <= :as_of
            and coalesce(inquire_at, settled_at) <= :as_of
          order by coalesce(inquire_at, settled_at)
          limit :limit)
returning id, token, scope, key, route, path, inquiries, absences, settled_at;

-- count_events: counts the waiting and the dead events of a sink, up to 10,000 of each, with the oldest that waits, and
-- why one of them waits and the newest is dead.
select w.waiting, d.dead, w.oldest_at, w.waiting_note,
       (select e.note from events as e where e.service = :service and e.sink = :sink and e.due_at is null
         order by e.seq desc limit 1) as note
  from (select count(*) as waiting, min(f.at) as oldest_at, max(f.note) as waiting_note
          from (select e.at, e.note from events as e
                 where e.service = :service and e.sink = :sink and e.due_at is not null
                 order by e.due_at, e.seq limit 10000) as f) as w,
       (select count(*) as dead
          from (select 1 from events as e
                 where e.service = :service and e.sink = :sink and e.due_at is null limit 10000) as f) as d;

-- count_instances_behind: counts living instances of a service that may still cache a purged response.
select count(*) as behind
  from instances as i
 where replace(' ' || i.services || ' ', ' ' || :service || ' ', '') <> ' ' || i.services || ' '
   and i.lease_until > :now and i.purges_seen < :purges;

-- count_live_keys: a holder's live keys, up to a limit. The index alone has the answer.
select count(*) as count from (select 1 from keys where holder = :holder limit :limit);

-- count_settled_keys: the first rows in the order of ids. Ids are hashes, so this is a fair sample, or all rows.
with scanned_rows as materialized (
  select k.id, k.service, k.route, k.state from keys as k order by k.id limit :scan_limit
)
select scan.scanned, scan.last, c.route, c.state, c.rows
  from (select count(*) as scanned, (select s.id from scanned_rows as s order by s.id desc limit 1) as last
          from scanned_rows) as scan
  left join (select s.route, s.state, count(*) as rows
               from scanned_rows as s
              where s.service = :service and s.state in ('completed', 'expired', 'retryable')
              group by s.route, s.state) as c on true;

-- count_unsettled_keys: keys in flight, queued, unknown or dead, by route; at most so many of each state.
select u.route, u.state, count(*) as rows
  from (-- A limit for each state: a backlog in one state hides nothing of another.
        select f.* from (select k.route, k.state from keys as k
                        where k.state = 'in_flight' and k.service = :service limit :limit) as f
         union all
        select q.* from (select k.route, k.state from keys as k
                        where k.state = 'queued' and k.service = :service limit :limit) as q
         union all
        select u.* from (select k.route, k.state from keys as k
                        where k.state in ('dead', 'unknown') -- as in the index, which is not used otherwise
                          and k.state = 'unknown' and k.service = :service limit :limit) as u
         union all
        select d.* from (select k.route, k.state from keys as k
                        where k.state in ('dead', 'unknown') and k.state = 'dead' and k.service = :service limit :limit) as d) as u
 group by u.route, u.state;

-- current_row: the current state of a key that a decision left unchanged, and its last audit entry.
select k.token, k.state, k.deadline, a.actor, a.action, a.after, :now as now
  from (select 1 as one) as none
  left join keys as k on k.id = :id and k.service = :service
  left join (select l.actor, l.action, l.after
               from audit as l
              where l.id = :id and l.service = :service
              order by l.seq desc
              limit 1) as a on true;

-- defer_not_executed: stores a report of "not executed" for an attempt that is still in flight: see
-- apply_deferred_reports.
insert into deferred_reports (id, token, ttl_ms)
values (:id, :token, :ttl_ms)
    on conflict (id) do update set token = excluded.token, ttl_ms = excluded.ttl_ms;

-- delete_events: deletes events that were published, and no other that has got the number of one since a failover.
delete from events
 where (seq, at) in (select json_extract(value, '$.seq'), json_extract(value, '$.at') from json_each(:events));

-- delete_expired_requests: deletes requests of expired keys that were not deleted when their keys were completed.
delete from outbox
 where id in (select id
                from (select id, settled_at from keys where expires_at <= :as_of order by expires_at limit :limit)
               where settled_at >= :settled_since);

-- delete_folded_callers: deletes the callers that fold_callers has added to the others.
delete from weekly_counts
 where (week, service, route, caller) in (
         select week, service, route, caller
           from (select week, service, route, caller,
                        row_number() over (partition by week, service, route order by sum(count) desc, caller) as place
                   from weekly_counts
                  where week in (-- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
                  (:now + 259200000) / 604800000 * 604800000 - 259200000, -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
                  (:now + 259200000) / 604800000 * 604800000 - 259200000 - 604800000)
                    and service = :service
                    and route = :route
                    and length(caller) = 16
                  group by week, service, route, caller)
          where place > :limit);

-- delete_old_batches: forgets the batches of instances that have added none for 30 days.
delete from weekly_batches where added_at < :now - 2592000000;

-- delete_old_weeks: deletes the counts of weeks that ended a year ago.
delete from weekly_counts where week < :now - 32054400000;

-- delete_request: deletes the request of a key that needs it no more, or that is gone.
delete from outbox
 where id = :id
   and not exists (select 1 from keys as k
                    where k.id = :id and k.state not in ('completed', 'expired', 'retryable'));

-- delete_spent_reports: deletes reports whose attempt ended otherwise, was followed by the next one, or was released.
delete from deferred_reports
 where not exists (select 1
                     from keys as k
                    where k.id = deferred_reports.id and k.token = deferred_reports.token
                      and (k.state = 'in_flight'
                           or (k.state in ('dead', 'unknown')
                               and (k.cause is null or k.cause in ('broken', 'crashed', 'store', 'timeout')))));

-- discard_events: deletes dead events of a sink, those that audit_discarded_events has written down.
delete from events
 where seq in (select e.seq from events as e
                where e.service = :service and e.sink = :sink and e.due_at is null
                order by e.seq
                limit 10000);

-- discount_unsent_attempt: an attempt under which nothing was sent does not count, while it is the newest.
update outbox
   set attempts_before = attempts_before + 1
 where id = :id
   and attempts_before < (select k.attempt from keys as k where k.id = :id and k.token = :token);

-- end_repeats: a key whose window has closed is not repeated any more.
update keys set due_at = null where id = :id and accepted_at is null and state = 'unknown';

-- enqueue: reserves a key without a record, or accepts it where its attempt has no time limit. Where nothing is
-- inserted, find returns who has it.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :parts, :trace_id, :client_address, :lookups, :instance, :token, :holder, iif(:time_limit_ms is null, 'queued', 'in_flight'), iif(:time_limit_ms is null, 0, 1),
        :now, :now, :now + coalesce(:time_limit_ms, 0), iif(:time_limit_ms is null, :now, null),
        iif(:time_limit_ms is null, :now, null), :now)
    on conflict (id) do nothing
returning attempt, recovery_point;

-- enqueue_over: enqueue for a key that has a record, if it is still as it was seen; past its TTL a new life begins.
update keys as k
   set state = iif(:time_limit_ms is null, 'queued', 'in_flight'),
       attempt = iif(:past_ttl_at is null, attempt, 0) + iif(:time_limit_ms is null, 0, 1),
       deadline = :now + coalesce(:time_limit_ms, 0), settled_at = iif(:time_limit_ms is null, :now, null),
       accepted_at = iif(:time_limit_ms is null, :now, null), due_at = :now,
       -- taken_over: the columns of a key that the next request has taken over. Past its TTL a new life begins.
       space = :space, key = :key, path = :path, route = :route, recipe = :recipe, fingerprint = :fingerprint, parts = :parts, trace_id = :trace_id, client_address = :client_address, lookups = :lookups, instance = :instance, token = :token,
       created_at = case when :past_ttl_at is null then k.created_at else :now end,
       reserved_at = :now,
       remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
       recovery_point = case when :past_ttl_at is null then k.recovery_point end,
       earlier = case when :past_ttl_at is null then -- At most 20 earlier attempts. A request that was accepted for delivery and not tried yet is no attempt.
       case when attempt = 0 or reserved_at = accepted_at then earlier
            else json_insert(iif(json_array_length(earlier) >= 20, json_remove(earlier, '$[0]'), coalesce(earlier, '[]')), '$[#]',
                             json_object('attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                                         'reserved_ms', reserved_at, 'settled_ms', settled_at))
       end end
 where
   -- may_take_over: whether the next request may have a key, whose record must be as it was seen. Nobody takes over a key
   -- that is running or queued, awaits an operator, or has a response within its TTL. The TTL has passed as of the time
   -- when it was seen: nobody has judged one that was written since. A redelivery does not wait for the end of the time for
   -- which a key is remembered past its TTL.
   k.id = :id
   and k.token = :seen_token
   and k.state = :seen_state
   and k.state not in ('dead', 'in_flight', 'queued')
   and (k.state not in ('completed', 'expired') or :past_ttl_at is not null)
   and (:past_ttl_at is null
        or (:redelivered and k.state = 'expired')
        or k.expires_at + case when :redelivered then 0 else coalesce(k.remember_ms, 0) end
           <= case when :past_ttl_at < :now then :past_ttl_at else :now end)
returning attempt, recovery_point;

-- expire_responses: drops the response of a record that is remembered past its TTL; the record stays.
update keys
   set state = 'expired', expires_at = expires_at + remember_ms, remember_ms = null, status = null, fields = null, body = null
 where id in (select id
                from (select id, settled_at
                        from keys
                       where expires_at <= :as_of and remember_ms is not null
                       order by expires_at
                       limit :limit)
               -- Not above, so that a call reads no more rows than its limit where it leaves many of them.
               where settled_at >= :settled_since);

-- extend_deadline: moves the deadline of an attempt in flight. It never comes earlier.
update keys
   set deadline = max(deadline, :now + :time_limit_ms)
 where id = :id and token = :token and state = 'in_flight';

-- file_properties: the size of the file and its journal, for a report.
select c.page_count, s.page_size, f.freelist_count, j.journal_mode
  from pragma_page_count as c, pragma_page_size as s, pragma_freelist_count as f, pragma_journal_mode as j;

-- find: a record by its id.
select id, attempt, token, recipe, fingerprint, state, reserved_at, deadline, settled_at, expires_at, remember_ms,
       accepted_at, recovery_point, cause, inquire_at, status, fields, body
  from keys
 where id = :id;

-- find_parts: the bits of a record's parts, for a request that was refused because of another fingerprint. A record that
-- came since is another one.
select k.parts
  from keys as k
 where k.id = :id
   and k.fingerprint = :fingerprint
   and k.parts is not null;

-- find_reservation: the key of a reservation, with the token of its newest attempt.
select token, service, route, state, settled_at from keys where id = :id;

-- find_salt: a service's salt, whichever instance drew it.
select s.value from salts as s where s.service = :service;

-- fold_callers: adds the callers of a route and week past those with the highest counts to the others.
insert into weekly_counts as c (week, service, route, caller, kind, count)
select f.week, f.service, f.route, 'others', f.kind, sum(f.count)
  from weekly_counts as f
  join (select week, service, route, caller,
               row_number() over (partition by week, service, route order by sum(count) desc, caller) as place
          from weekly_counts
         where week in (-- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
         (:now + 259200000) / 604800000 * 604800000 - 259200000, -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
         (:now + 259200000) / 604800000 * 604800000 - 259200000 - 604800000)
           and service = :service
           and route = :route
           and length(caller) = 16
         group by week, service, route, caller) as r
    on f.week = r.week and f.service = r.service and f.route = r.route and f.caller = r.caller
 where r.place > :limit
 group by f.week, f.service, f.route, f.kind
    on conflict (week, service, route, caller, kind) do update set count = c.count + excluded.count;

-- forget: ends an attempt that the service has refused to its caller, and deletes the key. What is left, settle ends.
delete from keys as k
 where
   -- may_forget: whether an attempt that the service has refused to its caller may end with the deletion of its key. An
   -- accepted key is queued again instead. The next attempt has to know of earlier ones, and how far they have come.
   -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
   -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
   -- decided since.
   k.id = :id
   and k.token = :token
   and case
         when :state = 'completed' then k.state not in ('completed', 'expired')
         when :state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
         else k.state = 'in_flight'
       end
   and k.accepted_at is null
   and k.attempt = 1
   and k.recovery_point is null;

-- forget_caller: takes a caller's name from its counts.
update weekly_counts
   set caller = :replacement
 where service = :service
   and caller = :caller;

-- forget_event_routes: forgets which routes of a service tell anybody about their keys.
delete from event_routes where service = :service;

-- forget_key_of_events: takes what belongs to a purged key's caller from its events, the one that the purge has written
-- too.
update events set key = null, fields = null, body = null where id = :id;

-- give_up: marks an accepted key dead that is not tried again.
update keys
   set state = 'dead', settled_at = :now, due_at = iif(state = 'unknown', null, :now)
 where id = :id and token = :token and state = :state and accepted_at is not null
returning service;

-- has_event_triggers: whether changes of keys write their events.
select count(*) > 0 as there from sqlite_schema where type = 'trigger' and name = 'keys_tell_their_state';

-- hold_ttls: moves the time until which no instance takes a record for past its TTL. It never comes earlier.
insert into counters (name, value)
values ('ttls_held_until', :hold_ttls_until)
    on conflict (name) do update set value = max(value, excluded.value);

-- increment_purge_count: increments the purge count.
update counters set value = value + 1 where name = 'purges' returning value;

-- insert_audit_entry: adds an entry to the audit log.
insert into audit (at, service, actor, action, id, before, after, note)
values (:now, :service, :actor, :action, :id, :before, :after, :note);

-- list_audit_entries: entries of the audit log, the latest first.
select a.seq, a.at, a.actor, a.action, a.id, a.before, a.after, a.note
  from audit as a
 where a.service = :service
   and (:id is null or a.id = :id)
   and (:before is null or a.seq < :before)
 order by a.seq desc
 limit :limit;

-- list_callers_of_week: the counts of a service's week by route, caller and kind, the callers with most of them first.
-- Without a week, of the one that has begun.
select c.route, c.caller, c.kind, c.count
  from weekly_counts as c
 where c.week = coalesce(
         :week,
         -- this_week: the Monday, 00:00 UTC, of the week that has begun. 1 January 1970 was a Thursday.
         (:now + 259200000) / 604800000 * 604800000 - 259200000)
   and c.service = :service
 order by sum(c.count) over (partition by c.route, c.caller) desc, c.route, c.caller, c.kind
 limit 10000;

-- list_due_deliveries: a route's deliveries that are due, with the reason where one is not tried again. A key that was
-- not accepted is repeated while its window is open.
select k.id, k.token, k.state,
       k.accepted_at is null as is_repeat,
       coalesce(o.since + :repeat_within_ms > max(:now, :estimate), false) as is_open,
       case when k.accepted_at is null then null
            when o.id is null then 'its request is not in the store any more'
            when k.attempt - o.attempts_before >= :max_attempts
              then format('tried %s times', k.attempt - o.attempts_before)
            when o.since + :give_up_after_ms <= :as_of
              then format('not delivered in time, after %s attempts', k.attempt - o.attempts_before)
       end as note
  from (-- A limit for each state, and queued keys in their index's order: a backlog is not read as a whole.
        select *
          from (select id, token, state, attempt, accepted_at, due_at as since
                  from keys
                 where service = :service and route = :route and state = 'queued' and due_at <= :as_of
                 order by due_at
                 limit :limit)
         union all
        select *
          from (select id, token, state, attempt, accepted_at, coalesce(due_at, settled_at) as since
                  from keys
                 where service = :service and route = :route and state = 'unknown' and not :holds_unknown
                   and (accepted_at is not null or due_at is not null) and coalesce(due_at, settled_at) <= :as_of
                   -- Its last attempt cannot be running any more, unless the route accepts that.
                   and (:quiet_after_ms is null or deadline + :quiet_after_ms <= :as_of)
                 order by coalesce(due_at, settled_at)
                 limit :limit)
         order by since
         limit :limit) as k
  left join outbox as o on o.id = k.id
 order by k.since;

-- list_in_flight: keys in flight under an instance's name, which the instance compares with its running attempts.
select k.id, k.token, k.route
  from keys as k
 where k.state = 'in_flight'
   and k.instance = :instance
   -- From later than now: reserved before the clock was set back, nobody knows how long ago.
   and (k.reserved_at <= :now - :older_than_ms or k.reserved_at > :now);

-- list_instances: the instances of a service, the one that has renewed its lease last before the others.
select i.id, i.started_at, i.renewed_at, i.lease_until, :now as now
  from instances as i
 where replace(' ' || i.services || ' ', ' ' || :service || ' ', '') <> ' ' || i.services || ' '
 order by i.renewed_at desc, i.id
 limit :limit;

-- list_keys: the keys that fit the filter among the next rows, the newest first.
with settled_rows as materialized (
  -- Rows of all services: a limit on rows that fit would not limit the rows that are read.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from keys as k
   where k.settled_at is not null
     and k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
scanned_rows as materialized (
  select * from settled_rows
  union all
  -- The index of newest keys has none in flight. They are few, and are sorted here.
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from keys as k
   where k.state = 'in_flight'
     and k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by created_at desc, id desc
   limit :scan_limit
),
-- newest_page: a page of the keys that fit the filter among scanned rows, the newest first, and where the scan ended.
fitting as materialized (
  select id, created_at
    from scanned_rows
   where
     -- fits_filter: whether a key fits an operator's filter.
     service = :service
     and (:state is null or state = :state)
     and (:scope_low is null or scope between :scope_low and :scope_high)
     and (:route is null or route = :route)
     and (:key is null or key = :key)
     -- The target, or the path for people.
     and (:path is null or substr(path, 1, :path_length) = :path or substr(path, 1, :path_length + 1) = :people_path)
     and (:older_than_ms is null or coalesce(settled_at, created_at) <= :now - :older_than_ms)
     and created_at >= :created_from
     and created_at < :created_until
   order by created_at desc, id desc
   limit :limit
)
select scan.scanned, scan.last_at, scan.last, page.*
  from (select count(*) as scanned,
               (select s.created_at from scanned_rows as s order by s.created_at, s.id limit 1) as last_at,
               (select s.id from scanned_rows as s order by s.created_at, s.id limit 1) as last
          from scanned_rows) as scan
  left join (select
                    -- key_columns: the columns of a key that operators see.
                    k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
                    k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
                    coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
                    length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
                    k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
               from fitting
               join keys as k on k.id = fitting.id) as page on true
 order by page.created_at desc, page.id desc;

-- list_keys_by_age: dead or unknown keys that fit the filter, the oldest first.
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
  from keys as k
 where k.service = :service
   and k.state in ('dead', 'unknown')
   and k.state = :state
   and (k.settled_at, k.id) >= (:at, :from)
   and
     -- fits_filter: whether a key fits an operator's filter.
     service = :service
     and (:state is null or state = :state)
     and (:scope_low is null or scope between :scope_low and :scope_high)
     and (:route is null or route = :route)
     and (:key is null or key = :key)
     -- The target, or the path for people.
     and (:path is null or substr(path, 1, :path_length) = :path or substr(path, 1, :path_length + 1) = :people_path)
     and (:older_than_ms is null or coalesce(settled_at, created_at) <= :now - :older_than_ms)
     and created_at >= :created_from
     and created_at < :created_until
 order by k.settled_at, k.id
 limit :limit;

-- list_keys_by_id: the keys whose ids begin so. Ids are hashes: few do.
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
  from keys as k
 where k.id between :low and :high
   and k.service = :service
 order by k.id
 limit :limit;

-- list_keys_by_lookup: the keys that fit the filter among the next ones with a value, the newest first.
-- Each page reads all keys with the value: most values have few.
with found (id) as materialized (
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 1, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 17, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 33, 16) = :lookup
  union
  select k.id from keys as k where k.lookups is not null and substr(k.lookups, 49, 16) = :lookup
),
scanned_rows as materialized (
  select k.id, k.service, k.state, k.scope, k.route, k.key, k.path, k.created_at, k.settled_at
    from found
   -- In this order: the values are few.
   cross join keys as k on k.id = found.id
   where k.created_at between :created_from and :at
     and (k.created_at < :at or k.id < :from)
   order by k.created_at desc, k.id desc
   limit :scan_limit
),
-- newest_page: a page of the keys that fit the filter among scanned rows, the newest first, and where the scan ended.
fitting as materialized (
  select id, created_at
    from scanned_rows
   where
     -- fits_filter: whether a key fits an operator's filter.
     service = :service
     and (:state is null or state = :state)
     and (:scope_low is null or scope between :scope_low and :scope_high)
     and (:route is null or route = :route)
     and (:key is null or key = :key)
     -- The target, or the path for people.
     and (:path is null or substr(path, 1, :path_length) = :path or substr(path, 1, :path_length + 1) = :people_path)
     and (:older_than_ms is null or coalesce(settled_at, created_at) <= :now - :older_than_ms)
     and created_at >= :created_from
     and created_at < :created_until
   order by created_at desc, id desc
   limit :limit
)
select scan.scanned, scan.last_at, scan.last, page.*
  from (select count(*) as scanned,
               (select s.created_at from scanned_rows as s order by s.created_at, s.id limit 1) as last_at,
               (select s.id from scanned_rows as s order by s.created_at, s.id limit 1) as last
          from scanned_rows) as scan
  left join (select
                    -- key_columns: the columns of a key that operators see.
                    k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
                    k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
                    coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
                    length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
                    k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
               from fitting
               join keys as k on k.id = fitting.id) as page on true
 order by page.created_at desc, page.id desc;

-- list_keys_in_flight: keys in flight that fit the filter; there are few.
select
  -- key_columns: the columns of a key that operators see.
  k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
  k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
  coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
  length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
  k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
  from keys as k
 where k.state = 'in_flight'
   and k.id >= :from
   and
     -- fits_filter: whether a key fits an operator's filter.
     service = :service
     and (:state is null or state = :state)
     and (:scope_low is null or scope between :scope_low and :scope_high)
     and (:route is null or route = :route)
     and (:key is null or key = :key)
     -- The target, or the path for people.
     and (:path is null or substr(path, 1, :path_length) = :path or substr(path, 1, :path_length + 1) = :people_path)
     and (:older_than_ms is null or coalesce(settled_at, created_at) <= :now - :older_than_ms)
     and created_at >= :created_from
     and created_at < :created_until
 order by k.id
 limit :limit;

-- list_route_identities: how the routes of each service find their keys, as it was stored last.
select r.service, r.generation, r.finds from route_identities as r order by r.service;

-- list_settled_keys: keys after this id. Reads at most so many rows, whether they were settled lately or not.
select k.id, k.token, k.scope, k.key, k.route, k.path, k.state, k.status,
       k.service = :service
         and k.state in ('completed', 'dead', 'retryable', 'unknown')
         and coalesce(k.settled_at, 0) >= :now - :since_ms as fits
  from keys as k
 where k.id > :after
 order by k.id
 limit :limit;

-- list_weeks: the counts of a service's last 13 weeks by route and kind, the latest first.
select c.week, c.route, c.kind, cast(sum(c.count) as bigint) as count
  from weekly_counts as c
 where c.week > :now - 7862400000
   and c.service = :service
 group by c.week, c.route, c.kind
 order by c.week desc, c.route, c.kind
 limit 10000;

-- mark_interrupted_unknown: at opening, this process alone has the file, so no attempt in flight is running any more.
update keys
   set state = 'unknown', settled_at = :now, cause = 'crashed'
 where state = 'in_flight'
returning id, route, attempt, instance;

-- move_live_keys: lets a key, and its caller's other keys with the same holder, count for another holder.
update keys set holder = :holder
 where holder = (select holder from keys where id = :id) and scope = :scope and holder <> :holder;

-- note_weekly_batch: notes a batch of an instance's counts, unless it was added before.
insert into weekly_batches as b (instance, batch, added_at)
values (:instance, :batch, :now)
    on conflict (instance) do update set batch = excluded.batch, added_at = excluded.added_at
 where b.batch < excluded.batch;

-- postpone_event: lets an event be tried again later, or makes it dead where there is no later. A later claim stays.
update events set due_at = :now + :retry_ms, note = :note where seq = :seq and at = :at and tries = :tries;

-- propose: writes an operator's proposal about a key that is still as it was seen into the audit log.
insert into audit (at, service, actor, action, id, before, after, note)
select :now, :service, :actor, :action, k.id, k.state, k.state, :note
  from keys as k
 where k.id = :id
   and k.service = :service
   and k.token = :token
   and k.state = :seen_state;

-- purge: deletes a key that is still as it was seen.
delete from keys
 where id = :id
   and service = :service
   and token = :token
   and state = :seen_state
   and state <> 'in_flight';

-- purge_count: how often keys were purged.
select c.value as purges from counters as c where c.name = 'purges';

-- reap: deletes records past their TTL, oldest first.
delete from keys
 where id in (select id
                from (select id, settled_at
                        from keys
                       where expires_at <= :as_of and remember_ms is null
                       order by expires_at
                       limit :limit)
               -- Not above, so that a call reads no more rows than its limit where it leaves many of them.
               where settled_at >= :settled_since);

-- redact: takes what belongs to its caller from a key that is still as it was seen.
update keys as k
   set -- redacted: the columns of a key without what belongs to its caller. It stays, so that no retry is executed: one that
   -- was not executed is refused as late, and a response that is not kept is not replayed.
   key = :nothing, space = :no_space, holder = null, path = null, parts = null, trace_id = null, client_address = null,
   lookups = null, recovery_point = null,
   hand_token = null, body = null, fields = case when k.state = 'completed' then :no_fields end,
   state = case when k.state = 'completed' then k.state else 'expired' end
 where k.id = :id
   and k.service = :service
   and k.token = :token
   and k.state = :seen_state
   and k.state in ('completed', 'expired', 'retryable')
returning state;

-- release_lease: gives an instance's lease back.
delete from instances where id = :id;

-- remember_route_identities: stores how a service's routes find their keys, if what is stored is still what was read,
-- or if nothing was and nothing is.
insert into route_identities as r (service, generation, finds)
select :service, 1, :finds
 where :generation is null
    or exists (select 1 from route_identities as o where o.service = :service and o.generation = :generation)
    on conflict (service) do update
   set generation = r.generation + case when r.finds = excluded.finds then 0 else 1 end, finds = excluded.finds
 where r.generation = :generation
returning generation;

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
          coalesce((select value from counters where name = 'ttls_held_until'), 0) as ttls_held_until;

-- replace_salt: stores a service's salt, if the stored one is still the one that was read, or if none was and none is.
insert into salts (service, value)
select :service, :to
 where :from is null or exists (select 1 from salts where service = :service and value = :from)
    on conflict (service) do update set value = excluded.value where value = :from;

-- report_not_executed: a service reports that its attempt, which has ended, was not executed.
update keys
   -- Only a deliverer tries an accepted key again.
   set state = iif(accepted_at is null, 'retryable', 'queued'), settled_at = :now,
       expires_at = iif(accepted_at is null, :now + :ttl_ms, null), due_at = iif(accepted_at is null, null, :now)
 where id = :id and token = :token and service = :service and state in ('dead', 'unknown')
returning state;

-- report_recovery_point: a service reports its attempt's recovery point.
update keys
   set recovery_point = :recovery_point
 where id = :id and token = :token and service = :service and state not in ('completed', 'expired');

-- requeue_events: lets dead events of a sink be tried again from now on.
update events
   set due_at = :now, since = :now, note = null
 where seq in (select e.seq from events as e
                where e.service = :service and e.sink = :sink and e.due_at is null
                order by e.seq
                limit 10000)
returning seq;

-- reserve: reserves a key without a record. Where nothing is inserted, find returns who has it.
insert into keys
       (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, state, attempt, created_at, reserved_at, deadline)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :parts, :trace_id, :client_address, :lookups, :instance, :token, :holder, 'in_flight', 1, :now, :now, :now + :time_limit_ms)
    on conflict (id) do nothing;

-- reset_retry_budget: a delivery has all its attempts and its time again.
update outbox
   set since = :now, attempts_before = (select k.attempt from keys as k where k.id = :id)
 where id = :id;

-- restore: writes the row of an ended attempt that the file has lost.
-- restored: the whole row of an ended attempt that the store has lost, or whose takeover it has lost. The time when it
-- began is lost. Late is the safe side: an unknown key becomes quiet later than it could. A completed record may also
-- have been reaped or purged, and this be its settlement a second time, after an outage. Then it lives for one more
-- TTL.
insert into keys as k
       (id, service, scope, space, key, path, route, recipe, fingerprint, parts, trace_id, client_address, lookups, instance, token, holder, attempt, created_at, reserved_at, deadline, state, settled_at, expires_at, remember_ms, status, fields, body, cause,
        accepted_at, due_at)
values (:id, :service, :scope, :space, :key, :path, :route, :recipe, :fingerprint, :parts, :trace_id, :client_address, :lookups, :instance, :token, :holder, :attempt, :now, :now, :now + :time_limit_ms, :state, :now, :now + :ttl_ms, :remember_ms, :status, :fields, :body, :cause,
        :accepted_at, case when :accepted_at is not null then :now + :due_ms end)
    on conflict (id) do update
   set space = excluded.space, key = excluded.key, path = excluded.path, route = excluded.route, recipe = excluded.recipe, fingerprint = excluded.fingerprint, parts = excluded.parts, trace_id = excluded.trace_id, client_address = excluded.client_address, lookups = excluded.lookups, instance = excluded.instance, token = excluded.token, remember_ms = excluded.remember_ms, status = excluded.status, fields = excluded.fields, body = excluded.body, cause = excluded.cause, state = excluded.state, attempt = excluded.attempt,
       reserved_at = excluded.reserved_at, deadline = excluded.deadline, settled_at = excluded.settled_at,
       expires_at = excluded.expires_at, accepted_at = excluded.accepted_at, due_at = excluded.due_at,
       inquiries = null, absences = null, inquire_at = null,
       created_at = case when k.attempt < excluded.attempt then k.created_at else excluded.created_at end,
       recovery_point = case when k.attempt < excluded.attempt then k.recovery_point end,
       earlier = case when k.attempt < excluded.attempt then k.earlier end
 -- Only the row that the takeover had replaced: each attempt replaces the token, so none has begun since.
 where k.token = :replaced_token
   -- A row that was completed only since it was lost keeps its response.
   and (:replaced_was_completed or k.state not in ('completed', 'expired'))
   -- One that was given up since counts as any other that is dead: a response settles it.
   and (k.state <> 'dead' or excluded.state = 'completed')
returning expires_at;

-- settle: ends an attempt. A completed key stays as it is.
update keys as k
   set
     -- settled: the columns of a key whose attempt has ended. An accepted one is queued for the next delivery: no other
     -- request may take it over. A kept request stays due while its outcome is unknown, and so does one whose repetition (it
     -- was due before) was not executed: the attempt before may have been. One that may_forget has left is remembered for a
     -- day.
     state = case when :state <> 'retryable' then :state
                  when k.accepted_at is not null then 'queued'
                  when k.due_at < k.reserved_at then 'unknown'
                  else :state end,
     settled_at = :now,
     expires_at = case when :state <> 'retryable' or (k.accepted_at is null and coalesce(k.due_at >= k.reserved_at, true))
                       then :now + case when :ttl_ms = 0 and :state = 'retryable' then 86400000 else :ttl_ms end
                  end,
     due_at = case when :state = 'unknown' and k.accepted_at is null
                     then case when k.due_at is not null then :now + coalesce(:due_ms, 0) end
                   when :state = 'unknown' then :now + :due_ms
                   when :state = 'retryable' and (k.accepted_at is not null or k.due_at < k.reserved_at)
                     then :now + coalesce(:due_ms, 0) end,
     remember_ms = :remember_ms, status = :status, fields = :fields, body = :body, cause = :cause
 where
   -- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
   -- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
   -- decided since.
   k.id = :id
   and k.token = :token
   and case
         when :state = 'completed' then k.state not in ('completed', 'expired')
         when :state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
         else k.state = 'in_flight'
       end
returning expires_at;

-- start_delivery: a due delivery becomes an attempt.
update keys
   set state = 'in_flight', attempt = attempt + 1, token = :token, instance = :instance,
       reserved_at = :now, deadline = :now + :time_limit_ms,
       settled_at = null, due_at = iif(accepted_at is null, min(due_at, :now - 1), null), remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
       earlier = -- At most 20 earlier attempts. A request that was accepted for delivery and not tried yet is no attempt.
       case when attempt = 0 or reserved_at = accepted_at then earlier
            else json_insert(iif(json_array_length(earlier) >= 20, json_remove(earlier, '$[0]'), coalesce(earlier, '[]')), '$[#]',
                             json_object('attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                                         'reserved_ms', reserved_at, 'settled_ms', settled_at))
       end
 where id = :id and state in ('queued', 'unknown')
returning scope, space, key, path, recipe, fingerprint, parts, attempt, recovery_point, accepted_at,
          attempt - 1 - (select o.attempts_before from outbox as o where o.id = keys.id) as spent,
          (select o.since from outbox as o where o.id = keys.id) + :give_up_after_ms - :as_of as give_up_in_ms,
          (select o.secret from outbox as o where o.id = keys.id) as secret,
          (select o.sealed from outbox as o where o.id = keys.id) as sealed;

-- store_event_route: stores that a route tells a place about its keys, unless it is stored.
insert into event_routes (service, route, sink, outcomes, body) values (:service, :route, :sink, :outcomes, :body)
    on conflict (service, route, sink) do nothing;

-- store_request: stores the request of a key. Replaces a request that is left over from an earlier life of the
-- key.
insert into outbox (id, since, attempts_before, secret, sealed)
select id, :now, attempt - iif(:time_limit_ms is null, 0, 1), :secret, :sealed from keys where id = :id
    on conflict (id) do update
   set since = excluded.since, attempts_before = excluded.attempts_before, secret = excluded.secret,
       sealed = excluded.sealed;

-- sweep: makes keys unknown whose attempt nobody can be running any more.
update keys
   set state = 'unknown', settled_at = :now, cause = 'crashed'
 where id in (
         select k.id
           from keys as k
           left join instances as i on i.id = k.instance
          where k.state = 'in_flight'
            and (i.lease_until is null
                 or i.lease_until <= :as_of
                 -- The clock was set back, and the instance has not renewed its lease since.
                 or i.renewed_at > max(:now, :estimate) + :expiry_ms
                 or k.deadline <= :as_of - :expiry_ms)
          limit :limit)
returning id, route, attempt, instance;

-- take_over: starts the next attempt of a key, if its record is still as it was seen; past its TTL a new life begins.
update keys as k
   set state = 'in_flight', attempt = iif(:past_ttl_at is null, attempt + 1, 1),
       deadline = :now + :time_limit_ms, settled_at = null, accepted_at = null, due_at = null,
       -- taken_over: the columns of a key that the next request has taken over. Past its TTL a new life begins.
       space = :space, key = :key, path = :path, route = :route, recipe = :recipe, fingerprint = :fingerprint, parts = :parts, trace_id = :trace_id, client_address = :client_address, lookups = :lookups, instance = :instance, token = :token,
       created_at = case when :past_ttl_at is null then k.created_at else :now end,
       reserved_at = :now,
       remember_ms = null, status = null, fields = null, body = null, cause = null, inquiries = null, absences = null, inquire_at = null, expires_at = null,
       recovery_point = case when :past_ttl_at is null then k.recovery_point end,
       earlier = case when :past_ttl_at is null then -- At most 20 earlier attempts. A request that was accepted for delivery and not tried yet is no attempt.
       case when attempt = 0 or reserved_at = accepted_at then earlier
            else json_insert(iif(json_array_length(earlier) >= 20, json_remove(earlier, '$[0]'), coalesce(earlier, '[]')), '$[#]',
                             json_object('attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                                         'reserved_ms', reserved_at, 'settled_ms', settled_at))
       end end
 where
   -- may_take_over: whether the next request may have a key, whose record must be as it was seen. Nobody takes over a key
   -- that is running or queued, awaits an operator, or has a response within its TTL. The TTL has passed as of the time
   -- when it was seen: nobody has judged one that was written since. A redelivery does not wait for the end of the time for
   -- which a key is remembered past its TTL.
   k.id = :id
   and k.token = :seen_token
   and k.state = :seen_state
   and k.state not in ('dead', 'in_flight', 'queued')
   and (k.state not in ('completed', 'expired') or :past_ttl_at is not null)
   and (:past_ttl_at is null
        or (:redelivered and k.state = 'expired')
        or k.expires_at + case when :redelivered then 0 else coalesce(k.remember_ms, 0) end
           <= case when :past_ttl_at < :now then :past_ttl_at else :now end)
returning attempt, recovery_point;

-- event_triggers: lets each change of a key that is told about write its events in its own transaction, as in
-- PostgreSQL. They are due at once by any clock: a simulation has its own.
drop view if exists key_changes;
-- What the triggers of keys have in common: they insert a change, and this one the events.
create view key_changes as select id, state as before, state as after from keys;
create trigger key_changes_are_told instead of insert on key_changes
begin
  insert into events (at, created_at, reserved_at, settled_at, since, due_at, attempt, status, id, token, outcome, state,
                      service, sink, route, key, cause, fields, body)
  select k.at, k.created_at, k.reserved_at, k.settled_at, k.at, 0, k.attempt, iif(new.after = 'completed', k.status, null),
         k.id, k.token, k.outcome, nullif(new.after, 'none'), k.service, r.sink, k.route, nullif(k.key, x''),
         iif(new.after = 'unknown', k.cause, null), iif(r.body and new.after = 'completed', k.fields, null),
         iif(r.body and new.after = 'completed', k.body, null)
    from (select k.*, cast(unixepoch('subsec') * 1000 as integer) as at,
                 case when new.after <> 'completed' then new.after || ' after ' || new.before
                      else 'completed ' || (k.status / 100) || 'xx'
                           || case when instr(x'0d0a' || k.fields, x'0d0a' || 'grpc-status: ') = 0 then ''
                                   when instr(x'0d0a' || k.fields, x'0d0a' || 'grpc-status: 0' || x'0d0a') > 0
                                     then ' grpc-status 0'
                                   else ' grpc-status not 0' end
                 end as outcome
            from keys as k
           where k.id = new.id) as k
    join event_routes as r on r.service = k.service and r.route = k.route
   where instr(r.outcomes, ',' || k.outcome || ',') > 0;
end;
drop trigger if exists keys_tell_their_birth;
create trigger keys_tell_their_birth after insert on keys
when new.state not in ('in_flight', 'queued')
begin
  insert into key_changes (id, before, after) values (new.id, 'none', new.state);
end;
drop trigger if exists keys_tell_their_state;
create trigger keys_tell_their_state after update of state on keys
when (old.state <> new.state or old.token <> new.token) and new.state not in ('expired', 'in_flight')
 and (old.state <> 'in_flight' or new.state not in ('queued', 'retryable'))
begin
  insert into key_changes (id, before, after)
  values (new.id, iif(old.accepted_at is new.accepted_at, old.state, 'none'), new.state);
end;
drop trigger if exists keys_tell_their_end;
-- Before the deletion, so that the row is there.
create trigger keys_tell_their_end before delete on keys
when old.expires_at is null and old.state <> 'in_flight'
begin
  insert into key_changes (id, before, after) values (old.id, old.state, 'none');
end;
