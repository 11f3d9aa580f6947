-- find_reservation: the key of a reservation, with the token of its newest attempt.
select token, route, state from keys where id = :id and service = :service
