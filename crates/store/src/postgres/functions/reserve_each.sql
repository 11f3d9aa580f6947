-- reserve_each: reserve for many keys of a cluster, one after the other. It returns those that it has reserved.
create function oncegate.reserve_each({reservation arrays}, _time_limit_ms bigint[]) returns table (id bytea)
begin
  for i in 1 .. array_length(_id, 1) loop
    if oncegate.{function reserve}({reservation of i}, _time_limit_ms[i]) then
      id := _id[i];
      return next;
    end if;
  end loop;
end
