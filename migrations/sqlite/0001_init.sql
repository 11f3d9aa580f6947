-- The schema of the store: the records of keys, the instances that hold leases, and what the store knows of itself.
--
-- The same tables as in PostgreSQL. Times are milliseconds since 1970; strict tables hold columns to their types.

-- "Once": tells a store of ours from other people's databases, and from newer layouts of the file.
pragma application_id = 0x4f6e6365;

create table migrations (
  version         integer primary key,
  name            text not null,
  -- The newest migration that a program must know at least to work on a store that has this one.
  oldest_program  integer not null check (oldest_program between 1 and version),
  sha256          blob not null check (length(sha256) = 32),
  applied_at      integer not null default (unixepoch() * 1000)
) strict;

-- The salt of each service's scopes: 32 bytes in clear, or one encrypted copy for each secret. Without it no key is
-- found.
create table salts (
  service  text primary key,
  value    blob not null
) strict;

-- Running proxies. A missing instance means the same as one whose lease has expired.
create table instances (
  id           integer primary key,
  started_at   integer not null,
  renewed_at   integer not null,
  lease_until  integer not null,
  services     text not null,
  -- The purge count up to which the instance has emptied its cache.
  purges_seen  integer not null
) strict;

-- purges: grows with every purge, in its transaction. Each instance reads it with its heartbeat and empties its cache.
create table counters (
  name   text primary key,
  value  integer not null
) strict;
insert into counters (name, value) values ('purges', 0);

-- How the routes of a service last found their keys (scope, space, the key's place), so that a start that changes it is
-- refused.
create table route_identities (
  service     text primary key not null,
  -- Grows with each change.
  generation  integer not null,
  finds       text not null
) strict;

create table keys (
  -- The SHA-256 of exactly (service, scope, space, key), so that this is the uniqueness of the four.
  id              blob primary key not null,
  token           blob not null,
  state           text not null,
  attempt         integer not null,
  instance        integer not null,
  created_at      integer not null,
  reserved_at     integer not null,
  deadline        integer not null,
  settled_at      integer,
  expires_at      integer,
  -- How long past expires_at the key is remembered, to refuse late retries; null where it is forgotten.
  remember_ms     integer,
  status          integer,
  fingerprint     blob not null,
  recipe          text not null,
  -- A few keyed bits of each part of the request that counts, by which a refused retry is told in which parts it differs.
  parts           blob,
  -- Of the newest request: W3C Trace Context, section 3.2.2.3.
  trace_id        blob,
  -- Of the newest request, where its route keeps it.
  client_address  text,
  -- The salted hashes of the values in `index` of the route, 16 bytes each.
  lookups         blob,
  service         text not null,
  route           text not null,
  scope           blob not null,
  space           blob not null,
  key             blob not null,
  -- The caller or address that the key counts for, as a salted hash; null where its route has no limit of live keys.
  holder          blob,
  -- The path as sent, with its query, where the route's reconciliation asks with it. After a blank: the beginning of
  -- the path, for people alone.
  path            blob,
  -- How often the service was asked what became of the newest attempt, how many times in a row it knew of none, and
  -- when to ask again. Null where it was not asked.
  inquiries          integer,
  absences        integer,
  inquire_at        integer,
  -- When the key was accepted for asynchronous delivery; null where its client waits for the answer.
  accepted_at     integer,
  -- When the next attempt of an accepted key is due. In a dead key: it is known not to have executed; null where nobody
  -- knows.
  due_at          integer,
  -- How far the attempts of this life of the key have come, by their service's word.
  recovery_point  text,
  -- Why the newest attempt's outcome is or was unknown; null where it was not.
  cause           text,
  -- The token with which an operator wrote the response: it is theirs while this is the row's token.
  hand_token      blob,
  -- The attempts before the newest one as a JSON array, the oldest first, at most 20; null where there are none.
  earlier         text,
  fields          blob,
  -- Null in a completed record: the body was too large to keep. Last, so that the rest is read without it.
  body            blob,

  constraint keys_id_length check (length(id) = 32),
  constraint keys_token_length check (length(token) = 16),
  constraint keys_scope_length check (length(scope) = 32),
  constraint keys_fingerprint_length check (length(fingerprint) = 32),
  constraint keys_state_known check (state in ('completed', 'dead', 'expired', 'in_flight', 'queued', 'retryable', 'unknown')),
  constraint keys_status_final check (status between 200 and 599),
  constraint keys_completed_has_status check ((state = 'completed') = (status is not null)),
  constraint keys_completed_has_fields check ((state = 'completed') = (fields is not null)),
  constraint keys_body_is_completed check (body is null or state = 'completed'),
  constraint keys_ttl_of_settled check ((state in ('completed', 'expired', 'retryable')) = (expires_at is not null)),
  constraint keys_remembers_completed check (remember_ms is null or (state = 'completed' and remember_ms > 0)),
  constraint keys_in_flight_is_unsettled check ((state = 'in_flight') = (settled_at is null)),
  constraint keys_inquiries_count check (inquiries >= 0 and absences between 0 and inquiries),
  constraint keys_recovery_point_short check (length(recovery_point) between 1 and 128),
  -- Nobody but we sends what was accepted: it is never for the next request to take over, and waits without an attempt.
  constraint keys_accepted check (
    case when accepted_at is null then attempt >= 1 and (due_at is null or state in ('in_flight', 'unknown')) and state <> 'queued'
         else attempt >= 0 and state <> 'retryable' and (state <> 'queued' or due_at is not null)
    end)
) strict;

-- For the sweeper, and for an instance's own attempts. It holds what is in flight now, which is little.
create index keys_in_flight on keys (instance) where state = 'in_flight';
-- For the reaper: the oldest end of life first.
create index keys_expiring on keys (expires_at) where expires_at is not null;
-- For operators, who look for the newest first. Those in flight are few, and a reservation would pay for them.
create index keys_created on keys (created_at) where settled_at is not null;
-- For operators who look for a value of a request: only keys of routes with an `index` are in them.
create index keys_lookup_1 on keys (substr(lookups, 1, 16)) where lookups is not null;
create index keys_lookup_2 on keys (substr(lookups, 17, 16)) where lookups is not null;
create index keys_lookup_3 on keys (substr(lookups, 33, 16)) where lookups is not null;
create index keys_lookup_4 on keys (substr(lookups, 49, 16)) where lookups is not null;
-- For operators. It holds what somebody has to look at, which is little.
create index keys_unsettled on keys (service, state, settled_at) where state in ('dead', 'unknown');
-- For the reconciler: the longest due first, however many are not due or not to be asked about.
create index keys_due on keys (service, route, coalesce(inquire_at, settled_at)) where state = 'unknown';
-- For deliveries: the longest due first.
create index keys_queued on keys (service, route, due_at) where state = 'queued';
-- For deliveries whose last attempt has an unknown outcome. With the deadline in the index, a pick-up reads no row that
-- is not due or not quiet.
create index keys_unknown_deliveries on keys (service, route, coalesce(due_at, settled_at), deadline)
  where state = 'unknown' and (accepted_at is not null or due_at is not null);
-- For the count of a holder's live keys: only keys of routes with such a limit are in it.
create index keys_holder on keys (holder) where holder is not null;

-- Apart from the keys, whose rows are small and change often. A request goes with its key's completion, or with the
-- key. Encrypted under a key of `secret`; one that does not open is never sent.
create table outbox (
  id               blob primary key not null check (length(id) = 32),
  -- From here on attempts and time are counted: the acceptance, or an operator's requeue.
  since            integer not null,
  attempts_before  integer not null,
  -- Which secret opens it.
  secret           text not null,
  sealed           blob not null
) strict;

-- Attempts of which their service has said "not executed" while they were still running. It counts once they have
-- ended.
create table deferred_reports (
  id      blob primary key not null,
  token   blob not null check (length(token) = 16),
  ttl_ms  integer not null
) strict;

-- What operators, services and the reconciler decided about keys; written with the decision.
create table audit (
  seq      integer primary key autoincrement,
  at       integer not null,
  service  text not null,
  actor    text not null,
  action   text not null,
  id       blob not null,
  before   text not null,
  after    text not null,
  note     text
) strict;
create index audit_of_a_key on audit (id, seq);

-- Which routes tell which places about their keys. Its proxy writes it at start and with each reload.
create table event_routes (
  service   text not null,
  route     text not null,
  sink      text not null,
  -- Between commas: the outcomes that make an event for the place.
  outcomes  text not null,
  body      integer not null,
  primary key (service, route, sink)
) strict;

-- What is to be told, and has not been yet. The triggers that write it are there once the proxy has events. Those of
-- one key have the order in which they happened.
create table events (
  seq          integer primary key autoincrement,
  at           integer not null,
  created_at   integer not null,
  reserved_at  integer not null,
  settled_at   integer,
  -- From here on the time of tries is counted: the event, or an operator's requeue.
  since        integer not null,
  -- When it is tried next; null in a dead event, which an operator may requeue.
  due_at       integer,
  attempt      integer not null,
  tries        integer not null default 0,
  status       integer,
  id           blob not null,
  token        blob not null,
  -- The facts that the event's type follows from, as the triggers write them.
  outcome      text not null,
  -- The state of the key then; null where its record was deleted.
  state        text,
  service      text not null,
  sink         text not null,
  route        text not null,
  -- Null where the key was purged, and so are fields and body.
  key          blob,
  cause        text,
  -- Why the last try has failed.
  note         text,
  fields       blob,
  body         blob
) strict;
-- For the publisher: the longest due first, however many are not due.
create index events_waiting on events (service, sink, due_at, seq) where due_at is not null;
-- For operators.
create index events_dead on events (service, sink, seq) where due_at is null;
-- For the order of each key, and for its purge.
create index events_of_a_key on events (id, sink, seq);

-- For the owner of an API: what Oncegate has answered without an execution, and what nothing guards. Added up by all
-- instances, and kept for 53 weeks. No decision rests on it.
create table weekly_counts (
  -- Its Monday, 00:00 UTC.
  week     integer not null,
  service  text not null,
  -- Empty where no route matches.
  route    text not null,
  -- The first 16 digits of a scope; `none` where nobody is named, `others` past the first 100 of a route, `erased-` and
  -- a number.
  caller   text not null,
  kind     text not null,
  count    integer not null,
  primary key (week, service, route, caller, kind)
) strict, without rowid;

-- The last batch of counts that each instance has added, so that none is added twice.
create table weekly_batches (
  instance  integer primary key,
  batch     integer not null,
  added_at  integer not null
) strict;

-- The audit log can be appended to and not changed. Programs that can write the file can drop the triggers.
create trigger audit_is_not_updated before update on audit
begin
  select raise(abort, 'entries of the audit log cannot be changed or deleted');
end;
create trigger audit_is_not_deleted before delete on audit
begin
  select raise(abort, 'entries of the audit log cannot be changed or deleted');
end;
