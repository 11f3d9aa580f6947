-- release_lease: gives an instance's lease back.
delete from oncegate.instances as i where i.id = :instance
