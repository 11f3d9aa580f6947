-- reserve: reserves a key without a record. Where nothing is inserted, find returns who has it.
insert into keys
       ({reservation names}, state, attempt, created_at, reserved_at, deadline)
values ({reservation values}, 'in_flight', 1, :now, :now, :now + :time_limit_ms)
    on conflict (id) do nothing
