-- insert_salt: stores the salt, unless there is one.
insert into oncegate.meta (name, value)
select 'salt', $1::bytea
  from durable
 where durable.setting is not null
    on conflict (name) do nothing
