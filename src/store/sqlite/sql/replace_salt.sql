-- replace_salt: stores a service's salt in another form.
update salts set value = :to where service = :service and value = :from
