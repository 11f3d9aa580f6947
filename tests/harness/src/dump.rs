//! The bytes that a store holds.

use std::process::Command;

use data_encoding::HEXLOWER;

use super::{Store, postgres};

/// All bytes that a reader of the database sees, value by value. No process may have the embedded store open.
pub fn dump(store: &Store) -> Vec<Vec<u8>> {
    match store {
        Store::Postgres(database) => {
            let dumped = Command::new(postgres::binaries().join("pg_dump")).arg(&database.url).output().unwrap();
            assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
            let text = String::from_utf8(dumped.stdout).unwrap();
            let values = text.split("\\\\x").skip(1).map(|value| {
                let end = value.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(value.len());
                HEXLOWER.decode(&value.as_bytes()[..end]).unwrap()
            });
            values.collect()
        }
        Store::Sqlite(_) => {
            let db = rusqlite::Connection::open(store.sqlite_file()).unwrap();
            let mut tables = db.prepare("select name from sqlite_schema where type = 'table'").unwrap();
            let tables: Vec<String> = tables.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
            let mut values = Vec::new();
            for table in tables {
                let mut rows = db.prepare(&format!("select * from {table}")).unwrap();
                let columns = rows.column_count();
                let mut rows = rows.query([]).unwrap();
                while let Some(row) = rows.next().unwrap() {
                    for column in 0..columns {
                        if let rusqlite::types::ValueRef::Blob(bytes) = row.get_ref(column).unwrap() {
                            values.push(bytes.to_vec());
                        }
                    }
                }
            }
            values
        }
    }
}
