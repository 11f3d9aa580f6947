-- What services say of their own attempts: how far they have come, that they were not executed, and, inside a service's own
-- transaction, their response.

alter table oncegate.keys
  add column recovery_point text,
  -- Not valid: what is there has none, and need not be read.
  add constraint keys_recovery_point_short check (length(recovery_point) between 1 and 128) not valid;
comment on column oncegate.keys.recovery_point is
  'How far the attempts of this life of the key have come, by their service''s word.';

create table oncegate.denials (
  id      bytea primary key,
  token   bytea not null check (octet_length(token) = 16),
  ttl_ms  bigint not null
);
comment on table oncegate.denials is
  'Attempts of which their service has said "not executed" while they were still running. It counts once they have ended.';

create table oncegate.terms (
  service       text not null,
  route         text not null,
  ttl_ms        bigint not null check (ttl_ms > 0),
  remember_ms   bigint check (remember_ms > 0),
  body_max      bigint not null,
  drop_headers  text[] not null,
  primary key (service, route)
);
comment on table oncegate.terms is
  'What each route says about what is kept, for the functions below; written by its proxies at start and with each reload.';

-- A response's fields as the proxy keeps them: hop-by-hop fields, those of the moment and Oncegate's own are left out, and
-- what the route leaves out; then lines of "name: value", those of one name together, and an empty line.
create function oncegate.response_fields(headers jsonb, dropped text[]) returns bytea
language plpgsql stable
set search_path = pg_catalog, pg_temp
as $$
declare
  fields bytea;
  count_max constant integer := 100;
  bytes_max constant integer := 65536;
begin
  if headers is null or jsonb_typeof(headers) = 'null' then
    return '\x0d0a';
  end if;
  if jsonb_typeof(headers) <> 'array' then
    raise exception 'headers are no array of [name, value]' using errcode = 'invalid_parameter_value';
  end if;
  if jsonb_array_length(headers) > count_max then
    raise exception 'there are more than % headers', count_max using errcode = 'invalid_parameter_value';
  end if;
  perform from jsonb_array_elements(headers) as h (pair)
    where case when jsonb_typeof(h.pair) = 'array'
               then jsonb_array_length(h.pair) <> 2 or jsonb_typeof(h.pair -> 0) <> 'string' or jsonb_typeof(h.pair -> 1) <> 'string'
                    -- RFC 9110, sections 5.1 and 5.5: a token, and no control characters but tabs.
                    or h.pair ->> 0 !~ '^[!#$%&''*+.^_`|~0-9A-Za-z-]+$'
                    or h.pair ->> 1 ~ '[\x01-\x08\x0a-\x1f\x7f]'
               else true end;
  if found then
    -- Which one is not said: errors end up in logs.
    raise exception 'a header is no [name, value], or has characters that no field has'
      using errcode = 'invalid_parameter_value';
  end if;
  with field as (
    select lower((h.pair ->> 0) collate "C") as name, btrim(h.pair ->> 1, E' \t') as value, h.place
      from jsonb_array_elements(headers) with ordinality as h (pair, place)
  ),
  nominated as (
    select btrim(n.name, E' \t') as name
      from field as f
     cross join lateral unnest(string_to_array(lower(f.value collate "C"), ',')) as n (name)
     where f.name = 'connection'
  ),
  kept as (
    select f.name, f.value, f.place, min(f.place) over (partition by f.name) as first
      from field as f
     where f.name not in ('connection', 'http2-settings', 'keep-alive', 'proxy-authenticate', 'proxy-authorization',
                          'proxy-connection', 'te', 'trailer', 'transfer-encoding', 'upgrade', 'content-length', 'expect',
                          'idempotent-replayed', 'oncegate-status', 'idempotency-key-expires', 'oncegate-original-date',
                          'oncegate-decision', 'oncegate-ttl',
                          'age', 'alt-svc', 'server-timing', 'traceparent')
       and f.name not like 'ratelimit%'
       and not f.name = any (dropped)
       and f.name not in (select n.name from nominated as n)
  )
  select coalesce(string_agg(convert_to(k.name || ': ' || k.value, 'UTF8') || '\x0d0a', '' order by k.first, k.place), '')
         || '\x0d0a'
    into fields
    from kept as k;
  if octet_length(fields) > bytes_max then
    raise exception 'the headers are over % bytes', bytes_max using errcode = 'invalid_parameter_value';
  end if;
  return fields;
end
$$;

-- The row of a reservation, locked until the transaction ends: whoever else would begin the next attempt waits, or goes
-- around it. SQLSTATE OG001 unless the token is the newest attempt's.
create function oncegate.reserved(
  reservation text, out id bytea, out service text, out route text, out state text, out status smallint, out fields bytea,
  out body bytea
)
language plpgsql
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
begin
  if reservation ~ '^[0-9a-fA-F]{96}$' then
    select k.id, k.service, k.route, k.state, k.status, k.fields, k.body
      into reserved.id, reserved.service, reserved.route, reserved.state, reserved.status, reserved.fields, reserved.body
      from oncegate.keys as k
     where k.id = decode(left(reservation, 64), 'hex')
       and k.token = decode(right(reservation, 32), 'hex')
       and k.state <> 'expired'
       for no key update;
  end if;
  if reserved.id is null then
    raise exception 'this reservation is over: a later attempt has begun, or its key was forgotten'
      using errcode = 'OG001', hint = 'Roll back: this attempt must leave nothing behind.';
  end if;
  -- What is told as stored must be stored. Only ever raised, and for this transaction alone.
  perform set_config('synchronous_commit',
                     case current_setting('synchronous_commit') when 'off' then 'on'
                          else current_setting('synchronous_commit') end,
                     true);
end
$$;

create function oncegate.complete(token text, status integer, headers jsonb, body bytea) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  its record;
  route oncegate.terms;
  kept_fields bytea;
  kept_body constant bytea := coalesce(complete.body, '');
begin
  select r.* into its from oncegate.reserved(complete.token) as r;
  select t.* into route from oncegate.terms as t where t.service = its.service and t.route = its.route;
  if route.route is null then
    -- No proxy that knows this table has had the route: what routes say where they say nothing.
    route.ttl_ms := 24 * 60 * 60 * 1000;
    route.body_max := 1024 * 1024;
    route.drop_headers := array['set-cookie'];
  end if;
  if complete.status is null or complete.status not between 200 and 599 then
    raise exception 'the status is none from 200 to 599' using errcode = 'invalid_parameter_value';
  end if;
  if complete.status in (204, 205, 304) and octet_length(kept_body) > 0 then
    raise exception 'no response with the status % has a body', complete.status using errcode = 'invalid_parameter_value';
  end if;
  if octet_length(kept_body) > route.body_max then
    raise exception 'the body is over %, the route''s max_response_body', route.body_max
      using errcode = 'invalid_parameter_value';
  end if;
  kept_fields := oncegate.response_fields(complete.headers, route.drop_headers);
  if its.state = 'completed' then
    if its.status = complete.status and its.fields = kept_fields and its.body is not distinct from kept_body then
      return;
    end if;
    raise exception 'the key is completed with another response'
      using errcode = 'OG002', hint = 'Roll back: retries get the response that is stored.';
  end if;
  update oncegate.keys as k
     set state = 'completed', settled_at = clock_timestamp(),
         expires_at = clock_timestamp() + route.ttl_ms * interval '1 millisecond',
         remember_ms = route.remember_ms, due_at = null, status = complete.status, fields = kept_fields, body = kept_body
   where k.id = its.id;
  -- A request that was accepted is of no use any more.
  delete from oncegate.outbox as o where o.id = its.id;
end
$$;
comment on function oncegate.complete(text, integer, jsonb, bytea) is
  'Completes the key of an attempt with its response, exactly when the service''s own transaction commits. token: the '
  'Oncegate-Reservation field. headers: an array of [name, value]. OG001: the attempt is over; OG002: the key is completed '
  'with another response; 22023: the response is none.';

create function oncegate.recovery_point(token text, name text) returns void
language plpgsql security definer
set search_path = pg_catalog, pg_temp
as $$
#variable_conflict use_column
declare
  its record;
begin
  select r.* into its from oncegate.reserved(recovery_point.token) as r;
  if recovery_point.name is null or recovery_point.name !~ '^[A-Za-z0-9._:-]{1,128}$' then
    raise exception 'the name is not 1 to 128 letters, digits, `.`, `_`, `:` and `-`'
      using errcode = 'invalid_parameter_value';
  end if;
  if its.state = 'completed' then
    raise exception 'the key is completed' using errcode = 'OG002';
  end if;
  update oncegate.keys as k set recovery_point = recovery_point.name where k.id = its.id;
end
$$;
comment on function oncegate.recovery_point(text, text) is
  'Names what the attempt has put behind it for good; the next attempt is told, as Oncegate-Recovery-Point. OG001: the '
  'attempt is over; OG002: the key is completed; 22023: the name is none.';

revoke all on function oncegate.response_fields(jsonb, text[]) from public;
revoke all on function oncegate.reserved(text) from public;
revoke all on function oncegate.complete(text, integer, jsonb, bytea) from public;
revoke all on function oncegate.recovery_point(text, text) from public;

-- A role is of the whole server. Another database's migration may have made it, and whoever migrates may not be allowed to.
do $$
begin
  if not exists (select from pg_catalog.pg_roles where rolname = 'oncegate_app') then
    begin
      create role oncegate_app nologin;
    exception
      when duplicate_object or unique_violation then
        null; -- another one was faster
      when insufficient_privilege then
        raise notice 'the role oncegate_app is missing, and % may not create it', current_user
          using hint = 'Services need it to complete keys in SQL: see the README for what to create and to grant.';
    end;
  end if;
  if exists (select from pg_catalog.pg_roles where rolname = 'oncegate_app') then
    grant usage on schema oncegate to oncegate_app;
    grant execute on function oncegate.complete(text, integer, jsonb, bytea) to oncegate_app;
    grant execute on function oncegate.recovery_point(text, text) to oncegate_app;
  end if;
end
$$;
