-- salted: the salt in use, whoever drew it.
select value from oncegate.meta where name = 'salt'
