-- The audit log can be appended to and not changed. Programs that can write the file can drop the triggers.

create trigger audit_is_not_updated before update on audit
begin
  select raise(abort, 'entries of the audit log cannot be changed or deleted');
end;

create trigger audit_is_not_deleted before delete on audit
begin
  select raise(abort, 'entries of the audit log cannot be changed or deleted');
end;
