-- The records of keys, the instances that hold leases, and what the store knows of itself.
--
-- The same shape as in PostgreSQL. Times are milliseconds since 1970; strict tables hold columns to their types.

-- "Once": tells a store of ours from other people's databases, and from newer layouts of the file.
pragma application_id = 0x4f6e6365;

create table migrations (
  version     integer primary key,
  name        text not null,
  sha256      blob not null check (length(sha256) = 32),
  applied_at  integer not null default (unixepoch() * 1000)
) strict;

-- What is drawn once for this store: the salt of its scopes.
create table meta (
  name   text primary key,
  value  blob not null
) strict;

-- Running proxies. An instance that is not here is as good as one whose lease has run out.
create table instances (
  id           integer primary key,
  started_at   integer not null,
  renewed_at   integer not null,
  lease_until  integer not null
) strict;

create table keys (
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
  fields       blob,
  -- Null in a completed record: the body was too large to keep. Last, so that the rest is read without it.
  body         blob,

  constraint keys_id_length check (length(id) = 32),
  constraint keys_token_length check (length(token) = 16),
  constraint keys_scope_length check (length(scope) = 32),
  constraint keys_fingerprint_length check (length(fingerprint) = 32),
  constraint keys_attempt_counts check (attempt >= 1),
  constraint keys_state_known check (state in ('completed', 'expired', 'in_flight', 'retryable', 'unknown')),
  constraint keys_status_final check (status between 200 and 599),
  constraint keys_completed_has_status check ((state = 'completed') = (status is not null)),
  constraint keys_completed_has_fields check ((state = 'completed') = (fields is not null)),
  constraint keys_body_is_completed check (body is null or state = 'completed'),
  constraint keys_ttl_of_settled check ((state in ('completed', 'expired', 'retryable')) = (expires_at is not null)),
  constraint keys_remembers_completed check (remember_ms is null or (state = 'completed' and remember_ms > 0)),
  constraint keys_in_flight_is_unsettled check ((state = 'in_flight') = (settled_at is null))
) strict;

-- For the sweeper and for an instance's own standing attempts. It holds what is in flight now, which is little.
create index keys_in_flight on keys (instance) where state = 'in_flight';

-- For the reaper: the oldest end of life first.
create index keys_expiring on keys (expires_at) where expires_at is not null;
