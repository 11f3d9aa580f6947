-- The service's own tables, and what it may do. To be run by the database's owner, after `oncegate migrate`.
create schema shop;

create table shop.orders (
  id      bigint generated always as identity primary key,
  item    text not null,
  amount  bigint not null,
  state   text not null default 'accepted'
);

-- Messages that are still to be sent.
create table shop.outbox (
  id       bigint generated always as identity primary key,
  key      text not null,
  message  text not null
);

grant usage on schema shop to orders;
grant select, insert, update, delete on all tables in schema shop to orders;
-- Its own keys to complete, and nothing else of Oncegate's.
grant oncegate_app to orders;
