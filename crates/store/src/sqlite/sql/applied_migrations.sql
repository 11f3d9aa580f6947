-- applied_migrations: the migrations that this file has.
select version, name, sha256 from migrations order by version
