-- count_live_keys: a holder's live keys, up to a limit. The index alone has the answer.
select count(*) as count from (select 1 from keys where holder = :holder limit :limit)
