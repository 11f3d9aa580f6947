-- settle_each: settle for many attempts of a cluster, one after the other. It returns those that it has ended.
create function oncegate.settle_each(
  _id bytea[], _token bytea[], _state text[], _ttl_ms bigint[], {outcome arrays}, _due_ms bigint[]
) returns table (id bytea, expires_at bigint)
declare
  settled record;
begin
  for i in 1 .. array_length(_id, 1) loop
    settled := oncegate.{function settle}(_id[i], _token[i], _state[i], _ttl_ms[i], {outcome of i}, _due_ms[i]);
    if settled.done then
      id := _id[i];
      expires_at := settled.expires_at;
      return next;
    end if;
  end loop;
end
