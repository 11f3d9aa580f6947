-- The service's own tables and rights. Run it as the database's administrator, after `oncegate migrate`.
create schema shop;

create table shop.orders (
  id      bigint generated always as identity primary key,
  item    text not null,
  amount  bigint not null,
  state   text not null default 'accepted'
);

-- Messages that are not sent yet.
create table shop.outbox (
  id       bigint generated always as identity primary key,
  key      text not null,
  message  text not null
);

grant usage on schema shop to orders;
grant select, insert, update, delete on all tables in schema shop to orders;
-- The right to complete its own keys, and no other right on Oncegate's schema.
grant oncegate_app to orders;
