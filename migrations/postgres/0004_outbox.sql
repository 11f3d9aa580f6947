-- What asynchronous delivery needs: keys that wait for an attempt of ours, and the requests that are to be sent.
--
-- The index that goes with it stands in a file of its own, because the table is in use: 0004_outbox.keys_queued.sql.

alter table oncegate.keys
  -- When the key was accepted for asynchronous delivery; null where its client waits for the answer.
  add column accepted_at  timestamptz,
  -- When its next attempt is due. In a dead key: it is known not to have executed; null where nobody knows.
  add column due_at       timestamptz,
  drop constraint keys_state_known,
  drop constraint keys_attempt_counts,
  -- Not valid: what is there satisfied stricter ones, and need not be read again.
  add constraint keys_state_known
    check (state in ('completed', 'dead', 'expired', 'in_flight', 'queued', 'retryable', 'unknown')) not valid,
  -- Nobody but we sends what was accepted: it is never for the next request to take over, and waits without an attempt.
  add constraint keys_accepted check (
    case when accepted_at is null then attempt >= 1 and due_at is null and state <> 'queued'
         else attempt >= 0 and state <> 'retryable' and (state <> 'queued' or due_at is not null)
    end) not valid;

-- Apart from the keys, whose rows are small and change often. A request goes with its key's completion, or with the key.
create table oncegate.outbox (
  id               bytea primary key check (octet_length(id) = 32),
  -- From here on attempts and time are counted: the acceptance, or an operator's requeue.
  since            timestamptz not null,
  attempts_before  integer not null default 0,
  -- Which secret opens it.
  secret           text not null,
  sealed           bytea not null
);
comment on table oncegate.outbox is
  'Requests accepted for asynchronous delivery, encrypted under a key of `secret`. One that does not open is never sent.';
