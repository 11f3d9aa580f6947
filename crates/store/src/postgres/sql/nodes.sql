-- nodes: the number of nodes that hold keys; 0 where the keys are not distributed.
select pg_catalog.count(distinct (s.nodename, s.nodeport)) as nodes
  from citus_shards as s
 where s.table_name::oid = 'oncegate.keys'::regclass::oid and s.citus_table_type = 'distributed'
