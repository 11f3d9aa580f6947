-- At most 20 earlier attempts. A request that was accepted for delivery and not tried yet is no attempt.
case when attempt = 0 or reserved_at = accepted_at then earlier
     else json_insert(iif(json_array_length(earlier) >= 20, json_remove(earlier, '$[0]'), coalesce(earlier, '[]')), '$[#]',
                      json_object('attempt', attempt, 'instance', instance, 'state', state, 'cause', cause,
                                  'reserved_ms', reserved_at, 'settled_ms', settled_at))
end
