-- applied_migrations: the migrations that this file has.
select version, name, sha256, oldest_program from migrations order by version
