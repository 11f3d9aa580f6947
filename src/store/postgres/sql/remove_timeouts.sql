-- remove_timeouts: removes the role's time limits from this transaction or this session.
select set_config(s.name, case s.name when 'lock_timeout' then '10min' else '0' end, $1::boolean)
  from pg_catalog.pg_settings as s
 where s.name in ('idle_in_transaction_session_timeout', 'lock_timeout', 'statement_timeout', 'transaction_timeout')
