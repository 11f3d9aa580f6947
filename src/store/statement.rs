//! Statements with named parameters. Those in `sql` beside this file go to both databases; the others belong to one of them.

use std::sync::OnceLock;

use super::column_lists::expand;
use super::columns::{Columns, Value};

/// The columns of a key that operators see.
const KEY_COLUMNS: &str = include_str!("sql/key_columns.sql");

/// The earlier attempts of a key with its newest one, in SQLite.
const WITH_ATTEMPT: &str = include_str!("sqlite/with_attempt.sql");

/// The store's time, in milliseconds since 1970, in PostgreSQL. It stays the same in a transaction, so that an index can be
/// searched for it.
const POSTGRES_NOW: &str = "(floor(date_part('epoch', now()) * 1000)::bigint)";

/// A statement as its file has it: `:name` is a parameter, `:now` the store's time, `{key_columns}` the list of columns, and a
/// table has the schema's name.
pub struct Statement {
    sql: &'static str,
    postgres: OnceLock<(String, Vec<&'static str>)>,
    sqlite: OnceLock<String>,
}

impl Statement {
    /// The statement of a file.
    pub const fn new(sql: &'static str) -> Self {
        Self { sql, postgres: OnceLock::new(), sqlite: OnceLock::new() }
    }

    /// The text for PostgreSQL, where parameters have numbers.
    pub fn for_postgres(&self) -> &str {
        &self.in_postgres().0
    }

    /// The text for SQLite, where the schema has no name.
    pub fn for_sqlite(&self) -> &str {
        self.sqlite.get_or_init(|| {
            let sql = expand(self.sql, ':').replace("{key_columns}", KEY_COLUMNS).replace("oncegate.", "");
            sql.replace("{with attempt}", WITH_ATTEMPT)
        })
    }

    /// The names of the parameters for PostgreSQL, in the order of their numbers.
    pub fn parameter_names(&self) -> &[&'static str] {
        &self.in_postgres().1
    }

    /// The parameters for PostgreSQL, in the order of their numbers.
    ///
    /// # Panics
    /// Panics where a column is missing.
    pub fn parameters<'a, 'c>(&self, columns: &'a Columns<'c>) -> Vec<&'a Value<'c>> {
        let value = |name: &&str| columns.iter().find(|(column, _)| column == name).map(|(_, value)| value);
        self.parameter_names().iter().map(|name| value(name).expect("each parameter has its column")).collect()
    }

    fn in_postgres(&self) -> &(String, Vec<&'static str>) {
        self.postgres.get_or_init(|| {
            let mut names: Vec<&'static str> = Vec::new();
            let mut sql = String::new();
            for (at, part) in pieces(self.sql) {
                match part {
                    ":now" => sql.push_str(POSTGRES_NOW),
                    _ if is_parameter(self.sql, at) => {
                        let name = &part[1..];
                        let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                            names.push(name);
                            names.len() - 1
                        });
                        sql.push_str(&format!("${}", place + 1));
                    }
                    _ => sql.push_str(part),
                }
            }
            let columns = KEY_COLUMNS.replace(":now", POSTGRES_NOW);
            (sql.replace("{key_columns}", &columns), names)
        })
    }
}

/// Splits a text before each `:` and after each name that follows one; each piece with its place.
fn pieces(sql: &'static str) -> impl Iterator<Item = (usize, &'static str)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = sql.get(at..).filter(|rest| !rest.is_empty())?;
        let length = match rest.strip_prefix(':') {
            Some(name) => 1 + name.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(name.len()),
            None => rest.find(':').unwrap_or(rest.len()),
        };
        let piece = (at, &rest[..length]);
        at += length;
        Some(piece)
    })
}

/// Whether a parameter begins here, and not a cast (`::text`).
fn is_parameter(sql: &str, at: usize) -> bool {
    let bytes = sql.as_bytes();
    bytes[at] == b':' && bytes.get(at + 1).is_some_and(u8::is_ascii_lowercase) && (at == 0 || bytes[at - 1] != b':')
}

/// Lists statements by the names of their files in a folder.
macro_rules! statements {
    ($folder:literal: $($statement:ident = $name:literal;)*) => {
        $(pub(in crate::store) static $statement: $crate::store::statement::Statement =
            $crate::store::statement::Statement::new(include_str!(concat!($folder, $name, ".sql")));)*
    };
}
pub(super) use statements;

/// The statements that both databases take.
pub(super) mod shared {
    super::statements! { "sql/":
        COUNT_INSTANCES_BEHIND = "count_instances_behind";
        COUNT_SETTLED_KEYS = "count_settled_keys";
        COUNT_UNSETTLED_KEYS = "count_unsettled_keys";
        CURRENT_ROW = "current_row";
        FIND_SALT = "find_salt";
        LIST_AUDIT_ENTRIES = "list_audit_entries";
        LIST_IN_FLIGHT = "list_in_flight";
        LIST_INSTANCES = "list_instances";
        LIST_KEYS = "list_keys";
        LIST_KEYS_BY_AGE = "list_keys_by_age";
        LIST_KEYS_IN_FLIGHT = "list_keys_in_flight";
        LIST_SETTLED_KEYS = "list_settled_keys";
        PURGE_COUNT = "purge_count";
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::columns::columns;

    #[test]
    fn a_parameter_has_one_number_wherever_it_stands_and_a_cast_is_none() {
        static STATEMENT: Statement = Statement::new(
            "-- it: does\nselect k.a::text from oncegate.keys as k where k.a = :b and :c > :b and k.d < :now",
        );
        let postgres = format!(
            "-- it: does\nselect k.a::text from oncegate.keys as k where k.a = $1 and $2 > $1 and k.d < {POSTGRES_NOW}"
        );
        assert_eq!(STATEMENT.for_postgres(), postgres);
        let columns = columns! { c: 3_i64, unused: true, b: "2" };
        let values: Vec<_> = STATEMENT.parameters(&columns).into_iter().map(|value| format!("{value:?}")).collect();
        assert_eq!(values, [r#"Text(Some("2"))"#, "Int8(Some(3))"]);
        assert!(STATEMENT.for_sqlite().ends_with("from keys as k where k.a = :b and :c > :b and k.d < :now"));
    }

    #[test]
    fn the_columns_of_a_key_stand_in_their_place() {
        assert!(shared::LIST_KEYS.for_sqlite().contains("select k.id, k.token, k.state,"));
        assert!(shared::LIST_KEYS.for_postgres().contains(&format!("k.earlier, {POSTGRES_NOW} as now")));
    }
}
