-- insert_salt: stores the salt, unless there is one.
insert into meta (name, value) values ('salt', :salt) on conflict (name) do nothing
