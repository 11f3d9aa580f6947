-- For people who ask what happened to a key: the cause of an unknown outcome, and the attempts before the newest one.
--
-- Neither column has a default, so the table is not rewritten. settle_2 stays for the version before.

alter table oncegate.keys add column cause text, add column earlier jsonb;

comment on column oncegate.keys.cause is 'Why the newest attempt''s outcome is or was unknown; null where it was not.';
comment on column oncegate.keys.earlier is 'The attempts before the newest one, the oldest first, at most 20; null where there are none.';

-- Statements that start the next attempt of a key keep what they overwrite of the attempt before.
create function oncegate.with_attempt(
  earlier jsonb, attempt integer, instance bigint, reserved_at timestamptz, settled_at timestamptz,
  accepted_at timestamptz, state text, cause text
) returns jsonb
language sql stable
as $function$
  select case
           -- A request that was accepted for delivery and not tried yet is no attempt.
           when attempt = 0 or reserved_at = accepted_at then earlier
           else case when jsonb_array_length(earlier) >= 20 then earlier - 0 else coalesce(earlier, '[]') end
                || jsonb_build_array(jsonb_build_object(
                     'attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                     'reserved_ms', (date_part('epoch', reserved_at) * 1000)::bigint,
                     'settled_ms', (date_part('epoch', settled_at) * 1000)::bigint))
         end
$function$;

comment on function oncegate.with_attempt is 'Appends an attempt to the earlier ones of its key.';

create function oncegate.settle_3(
  ids bytea[], tokens bytea[], states text[], ttls_ms bigint[], statuses smallint[], fields_of bytea[], bodies bytea[],
  remember_ms_of bigint[], dues_ms bigint[], causes text[]
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
  -- Few batches have such a key, and only they pay for the second statement. Where no ttl is 0 and one is null, the
  -- condition is null, which counts as false.
  if 0 = any (ttls_ms) then
    return query
    with durable as materialized (
      select set_config('synchronous_commit',
                        case current_setting('synchronous_commit') when 'off' then 'on'
                             else current_setting('synchronous_commit') end,
                        true) as setting,
             set_config('lock_timeout', '20ms', true) as patience
    )
    delete from oncegate.keys as k
     using unnest(ids, tokens, states, ttls_ms) as s (id, token, state, ttl_ms)
     cross join durable
     where k.id = s.id
       and k.token = s.token
       and s.state = 'retryable'
       and s.ttl_ms = 0
       -- An accepted key is queued again instead. Earlier attempts, and how far they have come, are not forgotten: the next
       -- attempt has to know.
       and k.accepted_at is null
       and k.attempt = 1
       and k.recovery_point is null
       -- As in the update below.
       and k.state in ('in_flight', 'unknown', 'dead')
       and durable.setting is not null and durable.patience is not null
    returning k.id, null::bigint;
  end if;
  return query
  with durable as materialized (
    -- Sessions behind a pooler are shared and cannot be configured, so each write sets its own durability, and only ever
    -- raises it.
    select set_config('synchronous_commit',
                      case current_setting('synchronous_commit') when 'off' then 'on'
                           else current_setting('synchronous_commit') end,
                      true) as setting,
           -- A service's open transaction may have locked a row. The batch does not wait for it: a second statement settles
           -- the other rows.
           set_config('lock_timeout', '20ms', true) as patience,
           clock_timestamp() as now
  )
  update oncegate.keys as k
     -- An accepted key is queued for the next delivery; no other request may take it over.
     set state = case when k.accepted_at is not null and s.state = 'retryable' then 'queued' else s.state end,
         settled_at = durable.now,
         expires_at = case when k.accepted_at is null or s.state <> 'retryable'
                           -- A key that was not deleted above is remembered for a day.
                           then durable.now + case when s.ttl_ms = 0 and s.state = 'retryable' then interval '1 day'
                                                   else s.ttl_ms * interval '1 millisecond' end
                      end,
         due_at = case when k.accepted_at is null then null
                       when s.state = 'retryable' then durable.now + coalesce(s.due_ms, 0) * interval '1 millisecond'
                       when s.state = 'unknown' then durable.now + s.due_ms * interval '1 millisecond' end,
         remember_ms = s.remember_ms, status = s.status, fields = s.fields, body = s.body, cause = s.cause
    from unnest(ids, tokens, states, ttls_ms, statuses, fields_of, bodies, remember_ms_of, dues_ms, causes)
         as s (id, token, state, ttl_ms, status, fields, body, remember_ms, due_ms, cause)
   cross join durable
   where k.id = s.id
     and k.token = s.token
     -- A response counts whatever its key has become meanwhile. Any other outcome undoes nothing that the service, a
     -- reconciler or an operator has decided since.
     and case s.state
           when 'completed' then k.state not in ('completed', 'expired')
           when 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
     and durable.setting is not null and durable.patience is not null
  returning k.id, (date_part('epoch', k.expires_at) * 1000)::bigint;
end
$function$;

comment on function oncegate.settle_3 is
  'Ends attempts. Returns the keys that it changed, and when each of them is forgotten; null for a key that never is, and for one that is forgotten at once.';
