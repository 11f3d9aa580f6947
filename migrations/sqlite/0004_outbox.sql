-- What asynchronous delivery needs: keys that wait for an attempt of ours, and the requests that are to be sent.

-- SQLite cannot change a constraint: the table is made anew.
create table keys_anew (
  -- The SHA-256 of exactly (service, scope, space, key), so that this is the uniqueness of the four.
  id           blob primary key not null,
  token        blob not null,
  state        text not null,
  attempt      integer not null,
  instance     integer not null,
  created_at   integer not null,
  reserved_at  integer not null,
  deadline     integer not null,
  settled_at   integer,
  expires_at   integer,
  -- How long past expires_at the key is remembered, to refuse late retries; null where it is forgotten.
  remember_ms  integer,
  status       integer,
  fingerprint  blob not null,
  recipe       text not null,
  service      text not null,
  route        text not null,
  scope        blob not null,
  space        blob not null,
  key          blob not null,
  -- The path as sent, with its query, where the route's reconciliation asks with it.
  path         blob,
  -- How often the service was asked what became of the newest attempt, how many times in a row it knew of none, and
  -- when to ask again. Null where it was not asked.
  probes       integer,
  absences     integer,
  probe_at     integer,
  -- When the key was accepted for asynchronous delivery; null where its client waits for the answer.
  accepted_at  integer,
  -- When its next attempt is due. In a dead key: it is known not to have executed; null where nobody knows.
  due_at       integer,
  fields       blob,
  -- Null in a completed record: the body was too large to keep. Last, so that the rest is read without it.
  body         blob,

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
  constraint keys_probes_count check (probes >= 0 and absences between 0 and probes),
  -- Nobody but we sends what was accepted: it is never for the next request to take over, and waits without an attempt.
  constraint keys_accepted check (
    case when accepted_at is null then attempt >= 1 and due_at is null and state <> 'queued'
         else attempt >= 0 and state <> 'retryable' and (state <> 'queued' or due_at is not null)
    end)
) strict;

insert into keys_anew
      (id, token, state, attempt, instance, created_at, reserved_at, deadline, settled_at, expires_at, remember_ms,
       status, fingerprint, recipe, service, route, scope, space, key, path, probes, absences, probe_at, fields, body)
select id, token, state, attempt, instance, created_at, reserved_at, deadline, settled_at, expires_at, remember_ms,
       status, fingerprint, recipe, service, route, scope, space, key, path, probes, absences, probe_at, fields, body
  from keys;

drop table keys;
alter table keys_anew rename to keys;

-- For the sweeper and for an instance's own standing attempts. It holds what is in flight now, which is little.
create index keys_in_flight on keys (instance) where state = 'in_flight';

-- For the reaper: the oldest end of life first.
create index keys_expiring on keys (expires_at) where expires_at is not null;

-- For operators. It holds what somebody has to look at, which is little.
create index keys_unsettled on keys (service, state, settled_at) where state in ('dead', 'unknown');

-- For the reconciler: the longest due first, however many are not due or nobody's to ask about.
create index keys_due on keys (service, route, coalesce(probe_at, settled_at)) where state = 'unknown';

-- For deliveries: the longest due first.
create index keys_queued on keys (service, route, due_at) where state = 'queued';

-- Apart from the keys, whose rows are small and change often. A request goes with its key's completion, or with the key.
-- Encrypted under a key of `secret`; one that does not open is never sent.
create table outbox (
  id               blob primary key not null check (length(id) = 32),
  -- From here on attempts and time are counted: the acceptance, or an operator's requeue.
  since            integer not null,
  attempts_before  integer not null default 0,
  -- Which secret opens it.
  secret           text not null,
  sealed           blob not null
) strict;
