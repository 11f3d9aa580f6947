-- server_settings: the settings of the server that decide about durability and load, for a report.
select s.name, s.setting, s.unit
  from pg_catalog.pg_settings as s
 where s.name in ('autovacuum', 'fsync', 'max_connections', 'server_version', 'shared_buffers', 'synchronous_commit')
 order by s.name
