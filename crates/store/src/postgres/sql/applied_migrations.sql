-- applied_migrations: the migrations that this database has.
select version, name, sha256 from oncegate.migrations order by version
