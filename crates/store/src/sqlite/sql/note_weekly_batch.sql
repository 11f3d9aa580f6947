-- note_weekly_batch: notes a batch of an instance's counts, unless it was added before.
insert into weekly_batches as b (instance, batch, added_at)
values (:instance, :batch, :now)
    on conflict (instance) do update set batch = excluded.batch, added_at = excluded.added_at
 where b.batch < excluded.batch
