-- find_salt: a service's salt, whichever instance drew it.
select s.value from salts as s where s.service = :service
