-- What reconciliation and operators need: keys that are given up, what asking about them has come to, who decided what.
--
-- The indexes that go with it stand in files of their own, because the table is in use: 0002_operators.*.sql.

alter table oncegate.keys
  -- The path as sent, with its query, where the route's reconciliation asks with it.
  add column path      bytea,
  -- How often the service was asked what became of the newest attempt, how many times in a row it knew of none, and
  -- when to ask again. Null where it was not asked.
  add column probes    integer,
  add column absences  integer,
  add column probe_at  timestamptz,
  drop constraint keys_state_known,
  -- Not valid: what is there satisfied the stricter one, and need not be read again.
  add constraint keys_state_known
    check (state in ('completed', 'dead', 'expired', 'in_flight', 'retryable', 'unknown')) not valid,
  add constraint keys_probes_count check (probes >= 0 and absences between 0 and probes) not valid;

create table oncegate.audit (
  seq      bigint generated always as identity primary key,
  at       timestamptz not null default clock_timestamp(),
  service  text not null,
  actor    text not null,
  action   text not null,
  id       bytea not null,
  before   text not null,
  after    text not null,
  note     text
);
comment on table oncegate.audit is 'What operators and the reconciler decided about keys; written with the decision.';
create index audit_of_a_key on oncegate.audit (id, seq);

create table oncegate.rules (
  service  text not null,
  route    text not null,
  finds    text not null,
  primary key (service, route)
);
comment on table oncegate.rules is
  'How each route last found its keys (scope, space, the key''s place), so that a restart that changes it can warn.';
