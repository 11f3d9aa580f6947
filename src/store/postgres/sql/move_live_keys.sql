-- move_live_keys: lets a key, and its caller's other keys with the same holder, count for another holder.
with first as (select k.holder from oncegate.keys as k where k.id = $1::bytea),
     moved as (
       update oncegate.keys as k set holder = $3::bytea
        where k.id in (
          select o.id
            from oncegate.keys as o
           -- Not `=`: where there are few holders, the planner would take each for a large part of the table, and read it whole.
           where o.holder between (select f.holder from first as f) and (select f.holder from first as f)
             and o.holder <> $3::bytea and o.scope = $2::bytea
           order by o.id
             -- A batch of settlements may have locked some of them, in another order.
             for update skip locked)
       returning 1)
select count(*) as count from moved
