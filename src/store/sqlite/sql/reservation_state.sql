-- reservation_state: the state of a reservation's key, as long as the reservation is its newest attempt.
select state from keys where id = :id and token = :token and service = :service
