-- apply_inquiry_finding: applies a reconciler's verdict to an unknown key.
{inquiry_finding}
returning service, state
