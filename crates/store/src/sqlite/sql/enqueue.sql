-- enqueue: accepts a key without a record. Where nothing is inserted, find returns who has it.
insert into keys
       ({reservation names}, state, attempt, created_at, reserved_at, deadline, settled_at, accepted_at, due_at)
values ({reservation values}, 'queued', 0, :now, :now, :now, :now, :now, :now)
    on conflict (id) do nothing
