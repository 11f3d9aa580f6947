-- The key table of the service: a key belongs to its caller. A row without a status is reserved.
create table if not exists idempotency_keys (
    caller bytea not null,
    key text not null,
    fingerprint bytea not null,
    status smallint,
    body text,
    created_at timestamptz not null default now(),
    primary key (caller, key)
);
-- To delete old keys by. Keys come in the order of time, so the smallest index serves.
create index if not exists idempotency_keys_age on idempotency_keys using brin (created_at);
