-- The schema of the store: the records of keys, the instances that hold leases, and what services call.
--
-- Bytes that clients chose are bytea throughout: text and jsonb refuse NUL, bad UTF-8, lone surrogates and huge
-- numbers. Times are milliseconds since 1970, as in SQLite: to_timestamp(settled_at / 1000.0) shows one. A cluster
-- refuses sums of timestamps and intervals where it has to know that a statement is the same on each node. The
-- functions that Oncegate itself calls are not here: see crates/store/src/postgres/functions.

-- What others may create in the schemas of the path means nothing here.
set local search_path = pg_catalog, pg_temp;

create schema if not exists oncegate;

create table oncegate.migrations (
  version         integer primary key,
  name            text not null,
  oldest_program  integer not null check (oldest_program between 1 and version),
  sha256          bytea not null check (octet_length(sha256) = 32),
  applied_at      timestamptz not null default clock_timestamp()
);
comment on column oncegate.migrations.oldest_program is
  'The newest migration that a program must know at least to work on a store that has this one.';

create table oncegate.salts (
  service  text primary key,
  value    bytea not null
);
comment on table oncegate.salts is
  'The salt of each service''s scopes: 32 bytes in clear, or one encrypted copy for each secret. Without it no key is found.';

create table oncegate.instances (
  id           bigint primary key,
  started_at   bigint not null,
  renewed_at   bigint not null,
  lease_until  bigint not null,
  services     text not null,
  purges_seen  bigint not null
);
comment on table oncegate.instances is 'Running proxies. A missing instance means the same as one whose lease has expired.';
comment on column oncegate.instances.services is 'The names of the services that it stands before, with blanks between.';
comment on column oncegate.instances.purges_seen is 'The purge count up to which the instance has emptied its cache.';

create table oncegate.counters (
  name   text primary key,
  value  bigint not null
);
insert into oncegate.counters (name, value) values ('purges', 0);
comment on table oncegate.counters is
  'purges: grows with every purge, in its transaction. Each instance reads it with its heartbeat and empties its cache. '
  'ttls_held_until: no instance takes a record for past its TTL before that time, in milliseconds since 1970.';

create table oncegate.route_identities (
  service     text primary key,
  generation  bigint not null,
  finds       text not null
);
comment on table oncegate.route_identities is
  'How the routes of a service last found their keys (scope, space, the key''s place), so that a start that changes it is refused. '
  'generation: grows with each change.';

create table oncegate.route_retention (
  service       text not null,
  route         text not null,
  ttl_ms        bigint not null check (ttl_ms > 0),
  remember_ms   bigint check (remember_ms > 0),
  body_max      bigint not null,
  drop_headers  text[] not null,
  encrypted     boolean not null,
  primary key (service, route)
);
comment on table oncegate.route_retention is
  'What each route says about what is kept, for the functions that services call. Its proxies write it at start and with each reload.';

-- What a record can be. A state that is new to it needs another function, and another check. PostgreSQL parses every
-- check of a table anew for each statement that writes to it: a dozen of them took as long as the rest of a small
-- batch. As one function they are read once for each session. Its callers have a fixed search path, and each of its
-- operators is one of pg_catalog for exactly these types: a path of its own would cost 2 µs, 5 % of a reservation.
create function oncegate.is_possible(
  id bytea, token bytea, scope bytea, fingerprint bytea, attempt integer, state text, settled_at bigint,
  expires_at bigint, remember_ms bigint, status smallint, fields bytea, body bytea, inquiries integer, absences integer,
  accepted_at bigint, due_at bigint, recovery_point text
) returns boolean
language plpgsql immutable parallel safe
as $function$
begin
  return octet_length(id) = 32 and octet_length(token) = 16 and octet_length(scope) = 32
     and octet_length(fingerprint) = 32
     and (recovery_point is null or length(recovery_point) between 1 and 128)
     -- Nobody but we sends what was accepted: it is never for the next request to take over, and waits without an
     -- attempt.
     and case when accepted_at is null then attempt >= 1 and (due_at is null or state in ('in_flight', 'unknown')) and state <> 'queued'
              else attempt >= 0 and state <> 'retryable' and (state <> 'queued' or due_at is not null)
         end
     and (inquiries is null or (inquiries >= 0 and absences between 0 and inquiries))
     and (state = 'in_flight') = (settled_at is null)
     and (state in ('completed', 'expired', 'retryable')) = (expires_at is not null)
     and (state = 'completed') = (fields is not null)
     and case
           when state = 'completed' then
             status is not null and status between 200 and 599 and (remember_ms is null or remember_ms > 0)
           when state in ('dead', 'expired', 'in_flight', 'queued', 'retryable', 'unknown') then
             status is null and body is null and remember_ms is null
           else false
         end;
end
$function$;

-- The hashes in the column lookups, one by one. Without a path of its own it becomes a part of the index: as a call it
-- cost a first attempt with an index a fifth of its rate. So each name in it says its schema.
create function oncegate.split_lookups(lookups bytea) returns bytea[]
language sql immutable parallel safe
as $function$
  select pg_catalog.array_remove(array[pg_catalog.substr(lookups, 1, 16), pg_catalog.substr(lookups, 17, 16),
                                       pg_catalog.substr(lookups, 33, 16), pg_catalog.substr(lookups, 49, 16)],
                                 ''::pg_catalog.bytea)
$function$;

-- Fixed widths first: no padding between them.
create table oncegate.keys (
  created_at      bigint not null,
  reserved_at     bigint not null,
  deadline        bigint not null,
  settled_at      bigint,
  expires_at      bigint,
  inquire_at        bigint,
  accepted_at     bigint,
  due_at          bigint,
  remember_ms     bigint,
  instance        bigint not null,
  attempt         integer not null,
  inquiries          integer,
  absences        integer,
  status          smallint,
  id              bytea not null,
  token           bytea not null,
  state           text not null,
  fingerprint     bytea not null,
  recipe          text not null,
  service         text not null,
  route           text not null,
  scope           bytea not null,
  space           bytea not null,
  key             bytea not null,
  holder          bytea,
  path            bytea,
  parts           bytea,
  trace_id        bytea,
  client_address  text,
  lookups         bytea,
  recovery_point  text,
  cause           text,
  hand_token      bytea,
  earlier         text,
  fields          bytea,
  body            bytea,

  -- The uniqueness of the four in it, too: a second unique index would cost a random page for every reservation.
  constraint keys_pkey primary key (id),

  constraint keys_are_possible check (
    oncegate.is_possible(id, token, scope, fingerprint, attempt, state, settled_at, expires_at, remember_ms, status, fields,
                         body, inquiries, absences, accepted_at, due_at, recovery_point))
) with (
  -- Every row is inserted once and updated once: room for that second version on the same page.
  fillfactor = 70,
  -- The defaults wait for a fifth of the table to die, which on millions of rows is a day's worth.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.02
);

comment on column oncegate.keys.id is 'SHA-256 over (service, scope, space, key), each length-prefixed.';
comment on column oncegate.keys.expires_at is 'When the record is forgotten; null where it never lapses.';
comment on column oncegate.keys.remember_ms is
  'How long past expires_at the key is remembered, to refuse late retries; null where it is forgotten.';
comment on column oncegate.keys.absences is 'How many times in a row the service knew of no such request.';
comment on column oncegate.keys.accepted_at is
  'When the key was accepted for asynchronous delivery; null where its client waits for the answer.';
comment on column oncegate.keys.due_at is
  'When the next attempt is due of a key whose request is kept. In a dead key: it is known not to have executed; null where nobody knows.';
comment on column oncegate.keys.holder is
  'The caller or address that the key counts for, as a salted hash; null where its route has no limit of live keys.';
comment on column oncegate.keys.path is
  'The path as sent, with its query, where the route''s reconciliation asks with it. After a blank: the beginning of the path, for people alone.';
comment on column oncegate.keys.parts is
  'A few keyed bits of each part of the request that counts, by which a refused retry is told in which parts it differs.';
comment on column oncegate.keys.trace_id is 'Of the newest request: W3C Trace Context, section 3.2.2.3.';
comment on column oncegate.keys.client_address is 'Of the newest request, where its route keeps it.';
comment on column oncegate.keys.lookups is
  'The salted hashes of the values in `index` of the route, 16 bytes each.';
comment on column oncegate.keys.recovery_point is
  'How far the attempts of this life of the key have come, by their service''s word.';
comment on column oncegate.keys.cause is 'Why the newest attempt''s outcome is or was unknown; null where it was not.';
comment on column oncegate.keys.hand_token is
  'The token with which an operator wrote the response: it is theirs while this is the row''s token.';
comment on column oncegate.keys.earlier is
  'The attempts before the newest one as a JSON array, the oldest first, at most 20; null where there are none.';
comment on column oncegate.keys.fields is 'Header and trailer fields: lines of "name: value", an empty line between.';
comment on column oncegate.keys.body is 'Null in a completed record: the body was too large to keep.';

-- For the sweeper, and for an instance's own attempts. It holds what is in flight now, which is little.
create index keys_in_flight on oncegate.keys (instance) where state = 'in_flight';
-- For the reaper: the oldest end of life first.
create index keys_expiring on oncegate.keys (expires_at) where expires_at is not null;
-- For operators, who look for the newest first. Those in flight are few, and a reservation would pay for them.
create index keys_created on oncegate.keys (created_at) where settled_at is not null;
-- For operators who look for a value of a request: only keys of routes with an `index` are in it.
create index keys_lookups on oncegate.keys using gin (oncegate.split_lookups(lookups)) where lookups is not null;
-- For operators. It holds what somebody has to look at, which is little.
create index keys_unsettled on oncegate.keys (service, state, settled_at) where state in ('dead', 'unknown');
-- For the reconciler: the longest due first, however many are not due or not to be asked about.
create index keys_due on oncegate.keys (service, route, coalesce(inquire_at, settled_at)) where state = 'unknown';
-- For deliveries: the longest due first.
create index keys_queued on oncegate.keys (service, route, due_at) where state = 'queued';
-- For deliveries whose last attempt has an unknown outcome. With the deadline in the index, a pick-up reads no row that
-- is not due or not quiet.
create index keys_unknown_deliveries on oncegate.keys (service, route, coalesce(due_at, settled_at), deadline)
  where state = 'unknown' and (accepted_at is not null or due_at is not null);
-- For the count of a holder's live keys: only keys of routes with such a limit are in it.
create index keys_holder on oncegate.keys (holder) where holder is not null;

-- Apart from the keys, whose rows are small and change often. A request goes with its key's completion, or with the
-- key.
create table oncegate.outbox (
  id               bytea primary key check (octet_length(id) = 32),
  -- From here on attempts and time are counted: the acceptance, or an operator's requeue.
  since            bigint not null,
  attempts_before  integer not null,
  -- Which secret opens it.
  secret           text not null,
  sealed           bytea not null
);
comment on table oncegate.outbox is
  'Requests accepted for asynchronous delivery, encrypted under a key of `secret`. One that does not open is never sent.';

create table oncegate.deferred_reports (
  id      bytea primary key,
  token   bytea not null check (octet_length(token) = 16),
  ttl_ms  bigint not null
);
comment on table oncegate.deferred_reports is
  'Attempts of which their service has said "not executed" while they were still running. It counts once they have ended.';

create table oncegate.audit (
  seq      bigint generated always as identity primary key,
  at       bigint not null,
  service  text not null,
  actor    text not null,
  action   text not null,
  id       bytea not null,
  before   text not null,
  after    text not null,
  note     text
);
comment on table oncegate.audit is 'What operators, services and the reconciler decided about keys; written with the decision.';
create index audit_of_a_key on oncegate.audit (id, seq);

create table oncegate.event_routes (
  service   text not null,
  route     text not null,
  sink      text not null,
  outcomes  text[] not null,
  body      boolean not null,
  primary key (service, route, sink)
);
comment on table oncegate.event_routes is
  'Which routes tell which places about their keys. Its proxies write it at start and with each reload.';
comment on column oncegate.event_routes.outcomes is
  'The outcomes that make an event for the place: what the proxies'' types of events mean, see crates/store/src/events.rs.';

-- What is to be told, and has not been yet. The triggers that write it are there once a proxy has events, see
-- crates/store/src/postgres/event_triggers.sql: who has none pays nothing.
create table oncegate.events (
  seq          bigint generated always as identity primary key,
  at           bigint not null,
  created_at   bigint not null,
  reserved_at  bigint not null,
  settled_at   bigint,
  since        bigint not null,
  due_at       bigint,
  attempt      integer not null,
  tries        integer not null default 0,
  status       smallint,
  id           bytea not null,
  token        bytea not null,
  outcome      text not null,
  state        text,
  service      text not null,
  sink         text not null,
  route        text not null,
  key          bytea,
  cause        text,
  note         text,
  fields       bytea,
  body         bytea
);
comment on table oncegate.events is
  'Events about settled keys that are to be published, written with the settlement; deleted once the broker or the receiver has them.';
comment on column oncegate.events.seq is 'Those of one key have the order in which they happened.';
comment on column oncegate.events.outcome is
  'The facts that the event''s type follows from, as the trigger writes them: see crates/store/src/postgres/event_triggers.sql.';
comment on column oncegate.events.state is 'The state of the key then; null where its record was deleted.';
comment on column oncegate.events.since is 'From here on the time of tries is counted: the event, or an operator''s requeue.';
comment on column oncegate.events.due_at is 'When it is tried next; null in a dead event, which an operator may requeue.';
comment on column oncegate.events.key is 'Null where the key was purged, and so are fields and body.';
comment on column oncegate.events.note is 'Why the last try has failed.';
-- For publishers: the longest due first, however many are not due.
create index events_waiting on oncegate.events (service, sink, due_at, seq) where due_at is not null;
-- For operators.
create index events_dead on oncegate.events (service, sink, seq) where due_at is null;
-- For the order of each key, and for its purge.
create index events_of_a_key on oncegate.events (id, sink, seq);

-- For the owner of an API. No decision rests on it.
create table oncegate.weekly_counts (
  week     bigint not null,
  service  text not null,
  route    text not null,
  caller   text not null,
  kind     text not null,
  count    bigint not null,
  constraint weekly_counts_pkey primary key (week, service, route, caller, kind)
);
comment on table oncegate.weekly_counts is
  'What Oncegate has answered without an execution, and what nothing guards: added up by all instances, and kept for 53 weeks.';
comment on column oncegate.weekly_counts.week is 'Its Monday, 00:00 UTC.';
comment on column oncegate.weekly_counts.route is 'Empty where no route matches.';
comment on column oncegate.weekly_counts.caller is
  'The first 16 digits of a scope; `none` where nobody is named, `others` past the first 100 of a route, `erased-` and a number.';

create table oncegate.weekly_batches (
  instance  bigint primary key,
  batch     bigint not null,
  added_at  bigint not null
);
comment on table oncegate.weekly_batches is 'The last batch of counts that each instance has added, so that none is added twice.';

-- The audit log can be appended to and not changed: a stolen password of the serving role must not be enough to hide a
-- decision. The owner of the table can drop the triggers; give the serving role the rights that it needs, and not the
-- table.
create function oncegate.refuse_audit_change() returns trigger
language plpgsql
set search_path = pg_catalog, pg_temp
as $function$
begin
  raise exception 'entries of the audit log cannot be changed or deleted' using errcode = 'insufficient_privilege';
end
$function$;

create trigger audit_is_append_only before update or delete on oncegate.audit
  for each row execute function oncegate.refuse_audit_change();

create trigger audit_is_not_truncated before truncate on oncegate.audit
  for each statement execute function oncegate.refuse_audit_change();

-- Each function that writes calls this first, and judges everything by the moment that it returns. Sessions behind a
-- pooler are shared and cannot be configured, so each write sets its own durability, and only ever raises it. A
-- service's open transaction may have locked a row: nobody waits for it for longer than the limit. It is also called
-- alone, on sessions with any search path, so each name in it says its schema: a path of its own would cost 2 µs, 5 %
-- of a reservation.
create function oncegate.begin_write(lock_limit text default null) returns bigint
language plpgsql volatile
as $function$
begin
  if pg_catalog.current_setting('synchronous_commit') operator(pg_catalog.=) 'off' then
    perform pg_catalog.set_config('synchronous_commit', 'on', true);
  end if;
  if lock_limit is not null then
    perform pg_catalog.set_config('lock_timeout', lock_limit, true);
  end if;
  return pg_catalog.floor(pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
                          operator(pg_catalog.*) 1000::double precision);
end
$function$;

-- Appends an attempt to the earlier ones of its key: statements that start the next one keep what they overwrite.
-- Without a search path of its own, it becomes a part of these statements; the functions around them have one.
create function oncegate.with_attempt(
  earlier text, attempt integer, instance bigint, reserved_at bigint, settled_at bigint, accepted_at bigint, state text,
  cause text
) returns text
-- Its parts are stable for types whose text depends on settings. There is none among these.
language sql immutable
as $function$
  select case
           -- A request that was accepted for delivery and not tried yet is no attempt.
           when attempt = 0 or reserved_at = accepted_at then earlier
           else ((case when jsonb_array_length(earlier::jsonb) >= 20 then earlier::jsonb - 0
                       else coalesce(earlier, '[]')::jsonb end)
                 || jsonb_build_array(jsonb_build_object(
                      'attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                      'reserved_ms', reserved_at, 'settled_ms', settled_at)))::text
         end
$function$;

-- What services call. The names stay: services have them in their code.

-- A response's fields as the proxy keeps them: hop-by-hop fields, those of the moment and Oncegate's own are left out,
-- and what the route leaves out; then lines of "name: value", those of one name together, and an empty line.
create function oncegate.response_fields(headers jsonb, dropped text[]) returns bytea
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  given constant jsonb := coalesce(nullif(headers, 'null'), '[]');
  fields bytea;
begin
  if jsonb_typeof(given) <> 'array' then
    raise exception 'headers are no array of [name, value]' using errcode = 'invalid_parameter_value';
  end if;
  if jsonb_array_length(given) > 100 then
    raise exception 'there are more than 100 headers' using errcode = 'invalid_parameter_value';
  end if;
  perform from jsonb_array_elements(given) as h (pair)
    where case when jsonb_typeof(h.pair) = 'array'
               then jsonb_array_length(h.pair) <> 2 or jsonb_typeof(h.pair -> 0) <> 'string' or jsonb_typeof(h.pair -> 1) <> 'string'
                    -- RFC 9110, sections 5.1 and 5.5: a token, and no control characters but tabs.
                    or h.pair ->> 0 !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$'
                    or h.pair ->> 1 ~ '[\x01-\x08\x0a-\x1f\x7f]'
               else true end;
  if found then
    -- Which one is not said: errors end up in logs.
    raise exception 'a header is no [name, value], or has characters that no field has'
      using errcode = 'invalid_parameter_value';
  end if;
  with field as (
    select lower((h.pair ->> 0) collate "C") as name, btrim(h.pair ->> 1, E' \t') as value, h.place
      from jsonb_array_elements(given) with ordinality as h (pair, place)
  ),
  nominated as (
    select btrim(n.name, E' \t') as name
      from field as f
     cross join lateral unnest(string_to_array(lower(f.value collate "C"), ',')) as n (name)
     where f.name = 'connection'
  ),
  kept as (
    select f.name, f.value, f.place, min(f.place) over (partition by f.name) as first
      from field as f
     -- The lists of crates/http/src/protocol/fields.rs. A test there holds that they are the same.
     where f.name not in ('connection', 'http2-settings', 'keep-alive', 'proxy-authenticate', 'proxy-authorization',
                          'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'expect',
                          'age', 'alt-svc', 'server-timing', 'traceparent')
       and f.name not like 'ratelimit%'
       and replace(f.name, '_', '-') not in ('content-length', 'idempotent-replayed', 'idempotency-key-expires')
       and replace(f.name, '_', '-') not like 'oncegate-%'
       and not f.name = any (dropped)
       and f.name not in (select n.name from nominated as n)
  )
  select coalesce(string_agg(convert_to(k.name || ': ' || k.value, 'UTF8') || '\x0d0a', '' order by k.first, k.place), '')
         || '\x0d0a'
    into fields
    from kept as k;
  if octet_length(fields) > 65536 then
    raise exception 'the headers are over 65536 bytes' using errcode = 'invalid_parameter_value';
  end if;
  return fields;
end
$$;

-- The row of a reservation, locked until the transaction ends: whoever else would begin the next attempt waits, or goes
-- around it. SQLSTATE OG001 unless the token is the newest attempt's.
create function oncegate.reserved(reservation text) returns record
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
declare
  its record;
begin
  if reservation ~ '^[0-9a-fA-F]{96}$' then
    select k.* into its
      from oncegate.keys as k
     where k.id = decode(left(reservation, 64), 'hex')
       and k.token = decode(right(reservation, 32), 'hex')
       and k.state <> 'expired'
       for no key update;
  end if;
  if not found then
    raise exception 'this reservation is over: a later attempt has begun, or its key was forgotten'
      using errcode = 'OG001', hint = 'Roll back: this attempt must leave nothing behind.';
  end if;
  if exists (select from oncegate.route_retention as t
              where t.service = its.service and t.route = its.route and t.encrypted) then
    raise exception 'the responses of this route are encrypted, and this function cannot encrypt'
      using errcode = 'OG003', hint = 'Report over HTTP instead, or set store.encrypt = false.';
  end if;
  return its;
end
$$;

create function oncegate.complete(token text, status integer, headers jsonb, body bytea) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  its constant record := oncegate.reserved(complete.token);
  moment constant bigint := oncegate.begin_write();
  route oncegate.route_retention;
  kept_fields bytea;
  kept_body constant bytea := coalesce(complete.body, '');
  wrong text;
begin
  select t.* into route from oncegate.route_retention as t where t.service = its.service and t.route = its.route;
  if not found then
    -- No proxy that knows this table has had the route: what routes say where they say nothing.
    route.ttl_ms := 24 * 60 * 60 * 1000;
    route.body_max := 1024 * 1024;
    route.drop_headers := array['set-cookie'];
  end if;
  wrong := case
             when complete.status is null or complete.status not between 200 and 599 then 'the status is none from 200 to 599'
             when complete.status in (204, 205, 304) and octet_length(kept_body) > 0
               then format('no response with the status %s has a body', complete.status)
             when octet_length(kept_body) > route.body_max
               then format('the body is over %s, the route''s max_response_body', route.body_max)
           end;
  if wrong is not null then
    raise exception '%', wrong using errcode = 'invalid_parameter_value';
  end if;
  kept_fields := oncegate.response_fields(complete.headers, route.drop_headers);
  if its.state = 'completed' then
    if its.status = complete.status and its.fields = kept_fields and its.body is not distinct from kept_body then
      return;
    end if;
    raise exception 'the key is completed with another response'
      using errcode = 'OG002', hint = 'Roll back: retries get the response that is stored.';
  end if;
  update oncegate.keys as k
     set state = 'completed', settled_at = moment, expires_at = moment + route.ttl_ms,
         remember_ms = route.remember_ms, due_at = null, status = complete.status, fields = kept_fields, body = kept_body
   where k.id = its.id;
  -- A request that was accepted is of no use any more.
  delete from oncegate.outbox as o where o.id = its.id;
end
$$;
comment on function oncegate.complete is
  'Completes the key of an attempt with its response, exactly when the service''s own transaction commits. token: the '
  'Oncegate-Reservation field. headers: an array of [name, value]. OG001: the attempt is over; OG002: the key is completed '
  'with another response; 22023: the response is none.';

create function oncegate.recovery_point(token text, name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  its constant record := oncegate.reserved(recovery_point.token);
begin
  perform oncegate.begin_write();
  if recovery_point.name is null or recovery_point.name !~ '^[A-Za-z0-9._:-]{1,128}$' then
    raise exception 'the name is not 1 to 128 letters, digits, `.`, `_`, `:` and `-`'
      using errcode = 'invalid_parameter_value';
  end if;
  if its.state = 'completed' then
    raise exception 'the key is completed' using errcode = 'OG002';
  end if;
  update oncegate.keys as k set recovery_point = recovery_point.name where k.id = its.id;
end
$$;
comment on function oncegate.recovery_point is
  'Names what the attempt has put behind it for good; the next attempt is told, as Oncegate-Recovery-Point. OG001: the '
  'attempt is over; OG002: the key is completed; 22023: the name is none.';

revoke all on function oncegate.response_fields, oncegate.reserved, oncegate.complete, oncegate.recovery_point from public;

-- A role is of the whole server. Another database's migration may have made it, and whoever migrates may not be allowed
-- to.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'oncegate_app') then
    begin
      create role oncegate_app nologin;
    exception
      when duplicate_object or unique_violation then
        null; -- another one was faster
      when insufficient_privilege then
        raise notice 'the role oncegate_app is missing, and % may not create it', current_user
          using hint = 'Services need it to complete keys in SQL: see the README for what to create and to grant.';
    end;
  end if;
  if exists (select from pg_catalog.pg_roles where rolname = 'oncegate_app') then
    grant usage on schema oncegate to oncegate_app;
    grant execute on function oncegate.complete, oncegate.recovery_point to oncegate_app;
  end if;
end
$$;
