-- For people who ask what happened to a key: the cause of an unknown outcome, and the attempts before the newest one.

-- Why the newest attempt's outcome is or was unknown; null where it was not.
alter table keys add column cause text;

-- The attempts before the newest one as a JSON array, the oldest first, at most 20; null where there are none.
alter table keys add column earlier text;
