oncegate.with_attempt(k.earlier, k.attempt, k.instance, k.reserved_at, k.settled_at, k.accepted_at, k.state, k.cause)
