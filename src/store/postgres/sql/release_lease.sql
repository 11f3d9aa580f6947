-- release_lease: gives an instance's lease back.
delete from oncegate.instances as i
 using durable
 where i.id = $1::bigint and durable.setting is not null
