-- The two statements of a guarded request for a single row: reserve_2 and settle_3, for a request that arrives alone.
--
-- A plan over arrays of one element costs several times as much as one for the row itself.

create function oncegate.reserve_one_1(
  id bytea, service text, scope bytea, space bytea, client_key bytea, route text, recipe text, fingerprint bytea,
  instance bigint, token bytea, time_limit_ms bigint, path bytea, holder bytea
) returns boolean
language plpgsql volatile
as $function$
#variable_conflict use_column
declare
  moment constant timestamptz := clock_timestamp();
begin
  -- Sessions behind a pooler are shared and cannot be configured, so each write sets its own durability, and only ever
  -- raises it.
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  insert into oncegate.keys
         (id, service, scope, space, key, path, route, recipe, fingerprint, instance, token, holder,
          state, attempt, created_at, reserved_at, deadline)
  values ($1, $2, $3, $4, $5, $12, $6, $7, $8, $9, $10, $13,
          'in_flight', 1, moment, moment, moment + $11 * interval '1 millisecond')
      on conflict (id) do nothing;
  return found;
end
$function$;

comment on function oncegate.reserve_one_1 is 'Inserts a key without a record. Returns whether it was inserted.';

create function oncegate.settle_one_1(
  id bytea, token bytea, state text, ttl_ms bigint, status smallint, fields bytea, body bytea, remember_ms bigint,
  due_ms bigint, cause text, out changed boolean, out expires_at_ms bigint
)
language plpgsql volatile
-- A plan that is kept was made for a table that may have been empty: it must be the one that is right for a large one.
set enable_seqscan = off
as $function$
#variable_conflict use_column
declare
  moment constant timestamptz := clock_timestamp();
begin
  if current_setting('synchronous_commit') = 'off' then
    perform set_config('synchronous_commit', 'on', true);
  end if;
  -- A service's open transaction may have locked the row. The settlement does not wait for it here, where others wait too.
  perform set_config('lock_timeout', '20ms', true);
  if $3 = 'retryable' and $4 = 0 then
    delete from oncegate.keys as k
     where k.id = $1
       and k.token = $2
       -- An accepted key is queued again instead. Earlier attempts, and how far they have come, are not forgotten: the next
       -- attempt has to know.
       and k.accepted_at is null
       and k.attempt = 1
       and k.recovery_point is null
       -- As in the update below.
       and k.state in ('in_flight', 'unknown', 'dead');
    if found then
      changed := true;
      return;
    end if;
  end if;
  update oncegate.keys as k
     -- An accepted key is queued for the next delivery; no other request may take it over.
     set state = case when k.accepted_at is not null and $3 = 'retryable' then 'queued' else $3 end,
         settled_at = moment,
         expires_at = case when k.accepted_at is null or $3 <> 'retryable'
                           -- A key that was not deleted above is remembered for a day.
                           then moment + case when $4 = 0 and $3 = 'retryable' then interval '1 day'
                                              else $4 * interval '1 millisecond' end
                      end,
         due_at = case when k.accepted_at is null then null
                       when $3 = 'retryable' then moment + coalesce($9, 0) * interval '1 millisecond'
                       when $3 = 'unknown' then moment + $9 * interval '1 millisecond' end,
         remember_ms = $8, status = $5, fields = $6, body = $7, cause = $10
   where k.id = $1
     and k.token = $2
     -- A response counts whatever its key has become meanwhile. Any other outcome undoes nothing that the service, a
     -- reconciler or an operator has decided since.
     and case $3
           when 'completed' then k.state not in ('completed', 'expired')
           when 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
           else k.state = 'in_flight'
         end
  returning (date_part('epoch', k.expires_at) * 1000)::bigint into expires_at_ms;
  changed := found;
end
$function$;

comment on function oncegate.settle_one_1 is
  'Ends an attempt. Returns whether it changed the key, and when the key is forgotten; null for a key that never is, and for one that is forgotten at once.';
