-- find_reservation: the key of a reservation, with the token of its newest attempt.
select token, service, route, state, settled_at from keys where id = :id
