-- may_settle: whether an attempt may settle its key. Only the newest attempt's token fits. A response counts whatever
-- the key has become meanwhile. Any other outcome undoes nothing that the service, a reconciler or an operator has
-- decided since.
k.id = :id
and k.token = :token
and case
      when :state = 'completed' then k.state not in ('completed', 'expired')
      when :state = 'retryable' then k.state in ('in_flight', 'unknown') or (k.state = 'dead' and k.accepted_at is null)
      else k.state = 'in_flight'
    end
