//! A store's content as SQL.

use std::time::{Duration, SystemTime};

use rusqlite::Connection;
use rusqlite::types::ValueRef;

use harness::Store;

/// The content of a store as SQL, after a first line with the time at which it was read.
pub struct StoreContent(pub String);

/// Tables whose times stay as they are: entries of the audit log cannot be changed, and the
/// times of migrations mean nothing.
const UNMOVED: [&str; 2] = ["audit", "migrations"];

/// Whether a column of this name has a time: in PostgreSQL a type says so, in SQLite only the name.
pub fn is_time(column: &str) -> bool {
    column == "at" || column.ends_with("_at") || ["deadline", "lease_until", "since"].contains(&column)
}

impl StoreContent {
    /// Reads a store that no process uses.
    pub async fn of(store: &Store) -> Self {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_millis();
        let sql = match store {
            Store::Postgres(database) => database.dump(),
            Store::Sqlite(_) => dump_sqlite(&Connection::open(store.sqlite_file()).unwrap()),
        };
        Self(format!("-- Read {now} ms after 1970.\n{sql}"))
    }

    /// Writes it into an empty store, as if it had been read just now: nothing expires because the fixture is old.
    pub async fn load(&self, store: &Store) {
        let age = self.age().as_millis();
        match store {
            Store::Postgres(database) => {
                let client = database.client().await;
                // A role is of the whole server, so no database's dump has it.
                let role = "do 'begin create role oncegate_app nologin; \
                            exception when duplicate_object or unique_violation then null; end'";
                client.batch_execute(role).await.unwrap();
                client.batch_execute(&self.0).await.unwrap();
                let columns = "select table_name::text, column_name::text from information_schema.columns \
                               where table_schema = 'oncegate' order by 1";
                let rows = client.query(columns, &[]).await.unwrap();
                let columns = rows.iter().map(|row| (row.get(0), row.get(1))).collect();
                let moves = moves(columns, |time| format!("{time} + {age}"), "oncegate.");
                client.batch_execute(&moves).await.unwrap();
            }
            Store::Sqlite(_) => {
                let db = Connection::open(store.sqlite_file()).unwrap();
                db.execute_batch(&self.0).unwrap();
                let columns = "select t.name, c.name from sqlite_schema as t join pragma_table_info(t.name) as c \
                               where t.type = 'table' order by 1";
                let mut rows = db.prepare(columns).unwrap();
                let columns = rows.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap);
                db.execute_batch(&moves(columns.collect(), |time| format!("{time} + {age}"), "")).unwrap();
            }
        }
    }

    fn age(&self) -> Duration {
        let first = self.0.lines().next().unwrap();
        let milliseconds = first.split(' ').nth(2).unwrap().parse().unwrap();
        SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + Duration::from_millis(milliseconds)).unwrap()
    }
}

/// The statements that move all times of these columns, which are sorted by table.
fn moves(columns: Vec<(String, String)>, moved: impl Fn(&str) -> String, schema: &str) -> String {
    let times: Vec<_> =
        columns.into_iter().filter(|(table, column)| !UNMOVED.contains(&&**table) && is_time(column)).collect();
    let of_a_table = |times: &[(String, String)]| {
        let sets: Vec<_> = times.iter().map(|(_, column)| format!("{column} = {}", moved(column))).collect();
        format!("update {schema}{} set {};\n", times[0].0, sets.join(", "))
    };
    times.chunk_by(|(table, _), (next, _)| table == next).map(of_a_table).collect()
}

fn dump_sqlite(db: &Connection) -> String {
    let application: i64 = db.query_row("pragma application_id", [], |row| row.get(0)).unwrap();
    let mut sql = format!("pragma application_id = {application};\nbegin;\n");
    let mut schema = db
        .prepare("select type, name, sql from sqlite_schema where sql is not null and name not like 'sqlite_%'")
        .unwrap();
    let entries = schema.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).unwrap();
    let entries: Vec<(String, String, String)> = entries.map(Result::unwrap).collect();
    let (tables, others): (Vec<_>, Vec<_>) = entries.into_iter().partition(|(kind, _, _)| kind == "table");
    for (_, name, create) in &tables {
        sql.push_str(&format!("{create};\n"));
        let mut rows = db.prepare(&format!("select * from {name}")).unwrap();
        let columns = rows.column_count();
        let mut rows = rows.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let values: Vec<_> = (0..columns).map(|column| literal(row.get_ref(column).unwrap())).collect();
            sql.push_str(&format!("insert into {name} values ({});\n", values.join(", ")));
        }
    }
    // Triggers come last: one of them refuses changes of the audit log.
    sql.extend(others.iter().map(|(_, _, create)| format!("{create};\n")));
    sql + "commit;\n"
}

fn literal(value: ValueRef<'_>) -> String {
    match value {
        ValueRef::Null => "null".to_owned(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => panic!("no column is a real number: {number}"),
        ValueRef::Text(text) => format!("'{}'", str::from_utf8(text).unwrap().replace('\'', "''")),
        ValueRef::Blob(bytes) => format!("x'{}'", data_encoding::HEXLOWER.encode(bytes)),
    }
}
