-- The two statements that every guarded request needs, as functions: their plans are made once for each session of the
-- server rather than once for each batch.
--
-- Parsing and planning them cost more of the server's processor than a batch of five rows did. A prepared statement
-- would do, but behind a pooler its name may belong to somebody else's session; a function's plan belongs to the
-- server's session, whoever is connected to it. A later program that needs other statements brings other functions.
--
-- Everybody may execute them, as everybody may execute what PostgreSQL itself brings: they run with the rights of whoever
-- calls them, and convey none. The role that serves need not be their owner, and rights on the tables are all it needs.
--
-- The settings hold inside the functions only. A plan that is kept was made for a table that may have been empty: it
-- must be the one that is right for a large one, and that is always the primary key, row by row.

create function oncegate.reserve_1(
  ids bytea[], services text[], scopes bytea[], spaces bytea[], client_keys bytea[], routes text[], recipes text[],
  fingerprints bytea[], instances bigint[], tokens bytea[], time_limits_ms bigint[], paths bytea[]
) returns setof bytea
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $function$
#variable_conflict use_column
begin
  return query
  with durable as materialized (
    -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
    select set_config('synchronous_commit',
                      case current_setting('synchronous_commit') when 'off' then 'on'
                           else current_setting('synchronous_commit') end,
                      true) as setting,
           clock_timestamp() as now
  )
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token,
          state, attempt, created_at, reserved_at, deadline)
  select a.id, a.service, a.scope, a.space, a.key, a.path, a.route, a.recipe, a.fingerprint, a.instance, a.token,
         'in_flight', 1, durable.now, durable.now, durable.now + a.time_limit_ms * interval '1 millisecond'
    from unnest(ids, services, scopes, spaces, client_keys, routes, recipes, fingerprints, instances, tokens,
                time_limits_ms, paths)
         as a (id, service, scope, space, key, route, recipe, fingerprint, instance, token, time_limit_ms, path)
   cross join durable
   where durable.setting is not null
   order by a.id -- two batches that meet on two keys must not wait for each other
      on conflict (id) do nothing
  returning token;
end
$function$;

comment on function oncegate.reserve_1 is
  'Who inserts the key has it: returns the tokens of those who did. Whoever is not among them asks who was first.';

create function oncegate.settle_1(
  ids bytea[], tokens bytea[], states text[], ttls_ms bigint[], statuses smallint[], fields_of bytea[], bodies bytea[],
  remember_ms_of bigint[], dues_ms bigint[]
) returns table (settled bytea, until_ms bigint)
language plpgsql volatile
set plan_cache_mode = force_generic_plan
set enable_seqscan = off
set enable_hashjoin = off
set enable_mergejoin = off
set jit = off
as $function$
#variable_conflict use_column
begin
  return query
  with durable as materialized (
    -- Shared sessions cannot be configured, so each write asks for its own durability, and only ever raises it.
    select set_config('synchronous_commit',
                      case current_setting('synchronous_commit') when 'off' then 'on'
                           else current_setting('synchronous_commit') end,
                      true) as setting,
           -- A service's open transaction may hold a row. It must not hold up the rest: whoever meets with one settles
           -- around it.
           set_config('lock_timeout', '20ms', true) as patience,
           clock_timestamp() as now
  )
  update oncegate.keys as k
     -- What was accepted is for us to try again, and for nobody else.
     set state = case when k.accepted_at is not null and s.state = 'retryable' then 'queued' else s.state end,
         settled_at = durable.now,
         expires_at = case when k.accepted_at is null or s.state <> 'retryable'
                           then durable.now + s.ttl_ms * interval '1 millisecond' end,
         due_at = case when k.accepted_at is null then null
                       when s.state = 'retryable' then durable.now + coalesce(s.due_ms, 0) * interval '1 millisecond'
                       when s.state = 'unknown' then durable.now + s.due_ms * interval '1 millisecond' end,
         remember_ms = s.remember_ms, status = s.status, fields = s.fields, body = s.body
    from unnest(ids, tokens, states, ttls_ms, statuses, fields_of, bodies, remember_ms_of, dues_ms)
         as s (id, token, state, ttl_ms, status, fields, body, remember_ms, due_ms)
   cross join durable
   where k.id = s.id
     and k.token = s.token
     -- A response counts whatever its key has become meanwhile. Anything else undoes nothing that was decided since: the
     -- service's word, a reconciler's or an operator's.
     and case s.state
           when 'completed' then k.state not in ('completed', 'expired')
           when 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
     and durable.setting is not null and durable.patience is not null
  returning k.id, (date_part('epoch', k.expires_at) * 1000)::bigint;
end
$function$;

comment on function oncegate.settle_1 is
  'Ends attempts, and returns which and until when they are kept. Only the newest attempt''s token fits; what is completed stays as it is, and what was decided since gives way to a response alone.';

-- PostgreSQL parses every check of a table anew for each statement that writes to it: a dozen of them took as long as the
-- rest of a small batch. As one function they are read once for each session.
create function oncegate.is_possible(
  id bytea, token bytea, scope bytea, fingerprint bytea, attempt integer, state text, created_at timestamptz,
  reserved_at timestamptz, deadline timestamptz, settled_at timestamptz, expires_at timestamptz, remember_ms bigint,
  status smallint, fields bytea, body bytea, probes integer, absences integer, accepted_at timestamptz,
  due_at timestamptz, recovery_point text
) returns boolean
language plpgsql immutable parallel safe
as $function$
begin
  return octet_length(id) = 32 and octet_length(token) = 16 and octet_length(scope) = 32
     and octet_length(fingerprint) = 32
     and (recovery_point is null or length(recovery_point) between 1 and 128)
     -- Nobody but we sends what was accepted: it is never for the next request to take over, and waits without an attempt.
     and case when accepted_at is null then attempt >= 1 and due_at is null and state <> 'queued'
              else attempt >= 0 and state <> 'retryable' and (state <> 'queued' or due_at is not null)
         end
     and isfinite(created_at) and isfinite(reserved_at) and isfinite(deadline)
     and (settled_at is null or isfinite(settled_at)) and (expires_at is null or isfinite(expires_at))
     and (probes is null or (probes >= 0 and absences between 0 and probes))
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

comment on function oncegate.is_possible is
  'What a record can be. A state that is new to it needs another function, and another check.';

alter table oncegate.keys
  drop constraint keys_id_length,
  drop constraint keys_token_length,
  drop constraint keys_scope_length,
  drop constraint keys_fingerprint_length,
  drop constraint keys_accepted,
  drop constraint keys_state_known,
  drop constraint keys_status_final,
  drop constraint keys_completed_has_status,
  drop constraint keys_completed_has_fields,
  drop constraint keys_body_is_completed,
  drop constraint keys_ttl_of_settled,
  drop constraint keys_remembers_completed,
  drop constraint keys_in_flight_is_unsettled,
  drop constraint keys_times_finite,
  drop constraint keys_probes_count,
  drop constraint keys_recovery_point_short,
  -- Not valid: what is there satisfied all of those, and need not be read again.
  add constraint keys_are_possible check (
    oncegate.is_possible(id, token, scope, fingerprint, attempt, state, created_at, reserved_at, deadline, settled_at,
                         expires_at, remember_ms, status, fields, body, probes, absences, accepted_at, due_at,
                         recovery_point)
  ) not valid;
