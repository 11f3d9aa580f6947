-- redacted: the columns of a key without what belongs to its caller. It stays, so that no retry is executed: one that
-- was not executed is refused as late, and a response that is not kept is not replayed.
key = :nothing, space = :no_space, holder = null, path = null, parts = null, trace_id = null, client_address = null,
lookups = null, recovery_point = null,
hand_token = null, body = null, fields = case when k.state = 'completed' then :no_fields end,
state = case when k.state = 'completed' then k.state else 'expired' end
