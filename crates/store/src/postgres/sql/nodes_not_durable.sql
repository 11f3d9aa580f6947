-- nodes_not_durable: the number of nodes whose commits are not durable.
select count(*) as nodes from run_command_on_all_nodes('show synchronous_commit') as r where r.result = 'off'
