-- apply_probe_finding: applies a reconciler's verdict to an unknown key.
{probe_finding}
returning service, state
