-- find_salt: the salt in use, whichever instance drew it.
select value from oncegate.meta where name = 'salt'
