-- The records of keys, the instances that hold leases, and what the store knows of itself.
--
-- Bytes that clients chose are bytea throughout: text and jsonb refuse NUL, bad UTF-8, lone surrogates and huge numbers.

create schema if not exists oncegate;

create table oncegate.migrations (
  version     integer primary key,
  name        text not null,
  sha256      bytea not null check (octet_length(sha256) = 32),
  applied_at  timestamptz not null default clock_timestamp()
);

create table oncegate.meta (
  name   text primary key,
  value  bytea not null
);
comment on table oncegate.meta is 'What is drawn once for this store: the salt of its scopes.';

create table oncegate.instances (
  id           bigint primary key,
  started_at   timestamptz not null,
  renewed_at   timestamptz not null,
  lease_until  timestamptz not null
);
comment on table oncegate.instances is
  'Running proxies. An instance that is not here is as good as one whose lease has run out.';

-- Fixed widths first: no padding between them.
create table oncegate.keys (
  created_at   timestamptz not null,
  reserved_at  timestamptz not null,
  deadline     timestamptz not null,
  settled_at   timestamptz,
  expires_at   timestamptz,
  remember_ms  bigint,
  instance     bigint not null,
  attempt      integer not null,
  status       smallint,
  id           bytea not null,
  token        bytea not null,
  state        text not null,
  fingerprint  bytea not null,
  recipe       text not null,
  service      text not null,
  route        text not null,
  scope        bytea not null,
  space        bytea not null,
  key          bytea not null,
  fields       bytea,
  body         bytea,

  -- The id is the SHA-256 of exactly (service, scope, space, key), so this is the uniqueness of the four. A second
  -- unique index over them would say the same again, and cost a random page for every reservation.
  constraint keys_pkey primary key (id),

  constraint keys_id_length check (octet_length(id) = 32),
  constraint keys_token_length check (octet_length(token) = 16),
  constraint keys_scope_length check (octet_length(scope) = 32),
  constraint keys_fingerprint_length check (octet_length(fingerprint) = 32),
  constraint keys_attempt_counts check (attempt >= 1),
  constraint keys_state_known check (state in ('completed', 'expired', 'in_flight', 'retryable', 'unknown')),
  constraint keys_status_final check (status between 200 and 599),
  constraint keys_completed_has_status check ((state = 'completed') = (status is not null)),
  constraint keys_completed_has_fields check ((state = 'completed') = (fields is not null)),
  constraint keys_body_is_completed check (body is null or state = 'completed'),
  constraint keys_ttl_of_settled check ((state in ('completed', 'expired', 'retryable')) = (expires_at is not null)),
  constraint keys_remembers_completed check (remember_ms is null or (state = 'completed' and remember_ms > 0)),
  constraint keys_in_flight_is_unsettled check ((state = 'in_flight') = (settled_at is null)),
  constraint keys_times_finite check (
    isfinite(created_at) and isfinite(reserved_at) and isfinite(deadline)
    and isfinite(coalesce(settled_at, created_at)) and isfinite(coalesce(expires_at, created_at)))
) with (
  -- Every row is inserted once and updated once: room for that second version on the same page.
  fillfactor = 70,
  -- The defaults wait for a fifth of the table to die, which on millions of rows is a day's worth.
  autovacuum_vacuum_scale_factor = 0.02,
  autovacuum_analyze_scale_factor = 0.02
);

comment on column oncegate.keys.id is
  'SHA-256 over (service, scope, space, key), each length-prefixed: the primary key is the uniqueness of the four.';
comment on column oncegate.keys.token is 'The newest attempt''s fencing token.';
comment on column oncegate.keys.deadline is 'When the newest attempt''s own time limit ends.';
comment on column oncegate.keys.expires_at is 'When the record is forgotten; null where it never lapses.';
comment on column oncegate.keys.remember_ms is
  'How long past expires_at the key is remembered, to refuse late retries; null where it is forgotten.';
comment on column oncegate.keys.fields is 'Header and trailer fields: lines of "name: value", an empty line between.';
comment on column oncegate.keys.body is 'Null in a completed record: the body was too large to keep.';

-- For the sweeper and for an instance's own standing attempts. It holds what is in flight now, which is little.
create index keys_in_flight on oncegate.keys (instance) where state = 'in_flight';

-- For the reaper: the oldest end of life first.
create index keys_expiring on oncegate.keys (expires_at) where expires_at is not null;
