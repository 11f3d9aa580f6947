-- may_forget: whether an attempt that the service has refused to its caller may end with the deletion of its key. An
-- accepted key is queued again instead. The next attempt has to know of earlier ones, and how far they have come.
{may_settle}
and k.accepted_at is null
and k.attempt = 1
and k.recovery_point is null
