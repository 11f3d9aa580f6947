-- release_lease: gives an instance's lease back.
delete from instances where id = :id
