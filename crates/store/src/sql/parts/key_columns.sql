-- key_columns: the columns of a key that operators see.
k.id, k.token, k.state, k.attempt, k.instance, k.scope, k.space, k.key, k.route, k.path, k.created_at, k.reserved_at,
k.deadline, k.settled_at, k.expires_at, k.remember_ms, k.due_at, k.status,
coalesce(k.state = 'completed' and k.hand_token = k.token, false) as by_hand,
length(k.body) as body_bytes, coalesce(k.inquiries, 0) as inquiries, coalesce(k.absences, 0) as absences, k.inquire_at,
k.accepted_at, k.cause, k.trace_id, k.client_address, k.earlier, :now as now
