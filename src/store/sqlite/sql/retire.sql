-- retire: gives an instance's lease back.
delete from instances where id = :instance
