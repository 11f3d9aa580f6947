-- applied_migrations: the migrations that this database has.
select version, name, sha256, oldest_program from oncegate.migrations order by version
