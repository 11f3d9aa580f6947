-- find_reservation: the keys of reservations, with the tokens of their newest attempts.
select k.id, k.service, k.token, k.route, k.state, k.settled_at from oncegate.keys as k where k.id = any ($1)
