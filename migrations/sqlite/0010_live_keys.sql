-- The holders of live keys, for routes that limit how many one caller or address may have; null for all others.

alter table keys add column holder blob;

-- For the count of a holder's live keys.
create index keys_holder on keys (holder) where holder is not null;
