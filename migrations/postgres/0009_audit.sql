-- The audit log can be appended to and not changed: a stolen password of the serving role must not be enough to hide a decision.
-- The owner of the table can drop the triggers; give the serving role the rights that it needs, and not the table.

create function oncegate.refuse_audit_change() returns trigger
language plpgsql
as $function$
begin
  raise exception 'entries of the audit log cannot be changed or deleted' using errcode = 'insufficient_privilege';
end
$function$;

create trigger audit_is_append_only before update or delete on oncegate.audit
  for each row execute function oncegate.refuse_audit_change();

create trigger audit_is_not_truncated before truncate on oncegate.audit
  for each statement execute function oncegate.refuse_audit_change();
