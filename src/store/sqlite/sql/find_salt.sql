-- find_salt: the salt in use.
select value from meta where name = 'salt'
