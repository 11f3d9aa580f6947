-- find_salt: a service's salt.
select value from salts where service = :service
