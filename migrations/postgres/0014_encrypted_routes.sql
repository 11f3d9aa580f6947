-- A service that completes its keys in its own transaction writes the response itself, and cannot encrypt it. Where the proxies encrypt
-- responses, the functions refuse.

alter table oncegate.terms add column encrypted boolean not null default false;

create or replace function oncegate.reserved(
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
  if exists (select from oncegate.terms as t
              where t.service = reserved.service and t.route = reserved.route and t.encrypted) then
    raise exception 'the responses of this route are encrypted, and this function cannot encrypt'
      using errcode = 'OG003', hint = 'Report over HTTP instead, or set store.encrypt = false.';
  end if;
  -- A response counts as stored once this transaction has committed, so the commit must be durable. This raises the setting
  -- only, and for this transaction alone.
  perform set_config('synchronous_commit',
                     case current_setting('synchronous_commit') when 'off' then 'on'
                          else current_setting('synchronous_commit') end,
                     true);
end
$$;
