//! Statements with named parameters. Those in `sql` beside this file go to both databases; the others belong to one of them.

use std::sync::OnceLock;

use super::ListKeysParams;
use super::admin::ListOrder;
use super::columns::{ATTEMPT, Columns, OUTCOME, RESERVATION, Value, listed};

/// The columns of a key that operators see.
const KEY_COLUMNS: &str = include_str!("sql/key_columns.sql");

/// The earlier attempts of a key with its newest one, in SQLite.
const WITH_ATTEMPT: &str = include_str!("sqlite/with_attempt.sql");

/// The store's time, in milliseconds since 1970, in PostgreSQL. It stays the same in a transaction, so that an index can be
/// searched for it.
const POSTGRES_NOW: &str = "(floor(date_part('epoch', now()) * 1000::double precision)::bigint)";

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
            // A part is what follows a colon. It begins with a name, unless it belongs to a cast (`::text`) or a comment.
            let (mut is_first, mut is_cast) = (true, false);
            for part in self.sql.split(':') {
                let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
                match part.split_at(end) {
                    _ if is_first => sql.push_str(part),
                    ("", _) => sql.push_str(&format!(":{part}")),
                    _ if is_cast => sql.push_str(&format!(":{part}")),
                    ("now", rest) => sql.push_str(&format!("{POSTGRES_NOW}{rest}")),
                    (name, rest) => {
                        let place = names.iter().position(|known| *known == name).unwrap_or_else(|| {
                            names.push(name);
                            names.len() - 1
                        });
                        sql.push_str(&format!("${}{rest}", place + 1));
                    }
                }
                (is_cast, is_first) = (!is_first && part.is_empty(), false);
            }
            let columns = KEY_COLUMNS.replace(":now", POSTGRES_NOW);
            (sql.replace("{key_columns}", &columns), names)
        })
    }
}

/// Replaces the lists of columns: `{reservation names}`, `{attempt assignments}` and the like. `sign` stands before a parameter's
/// name: `:` in a statement, `_` in a function of PostgreSQL.
pub(super) fn expand(sql: &str, sign: char) -> String {
    let mut expanded = sql.to_owned();
    for (list, columns) in [("reservation", RESERVATION), ("attempt", ATTEMPT), ("outcome", OUTCOME)] {
        let form = |column: &dyn Fn(&str, &str) -> String| {
            listed(columns).map(|(name, kind)| column(name, kind)).collect::<Vec<_>>().join(", ")
        };
        for (name, columns) in [
            ("names", form(&|name, _| name.to_owned())),
            ("values", form(&|name, _| format!("{sign}{name}"))),
            ("parameters", form(&|name, kind| format!("_{name} {kind}"))),
            ("arrays", form(&|name, kind| format!("_{name} {kind}[]"))),
            ("of i", form(&|name, _| format!("_{name}[i]"))),
            ("of a", form(&|name, _| format!("a.{name}"))),
            ("assignments", form(&|name, _| format!("{name} = {sign}{name}"))),
            ("from s", form(&|name, _| format!("{name} = s.{name}"))),
            ("excluded", form(&|name, _| format!("{name} = excluded.{name}"))),
        ] {
            expanded = expanded.replace(&format!("{{{list} {name}}}"), &columns);
        }
    }
    let resets = listed(OUTCOME).map(|(name, _)| name).chain(["expires_at", "probes", "absences", "probe_at"]);
    let resets: Vec<String> = resets.map(|name| format!("{name} = null")).collect();
    expanded.replace("{outcome resets}", &resets.join(", "))
}

/// Lists statements by the names of their files in a folder.
macro_rules! statements {
    ($folder:literal: $($statement:ident = $name:literal;)*) => {
        $(pub(crate) static $statement: $crate::statement::Statement =
            $crate::statement::Statement::new(include_str!(concat!($folder, $name, ".sql")));)*
    };
}
pub(super) use statements;

/// The statements that both databases take.
pub(super) mod shared {
    super::statements! { "sql/":
        COUNT_EVENTS = "count_events";
        COUNT_INSTANCES_BEHIND = "count_instances_behind";
        COUNT_SETTLED_KEYS = "count_settled_keys";
        COUNT_UNSETTLED_KEYS = "count_unsettled_keys";
        CURRENT_ROW = "current_row";
        FIND_ROUTE_IDENTITIES = "find_route_identities";
        LIST_AUDIT_ENTRIES = "list_audit_entries";
        LIST_IN_FLIGHT = "list_in_flight";
        LIST_INSTANCES = "list_instances";
        LIST_KEYS = "list_keys";
        LIST_KEYS_BY_AGE = "list_keys_by_age";
        LIST_KEYS_IN_FLIGHT = "list_keys_in_flight";
        LIST_SETTLED_KEYS = "list_settled_keys";
        POSTPONE_EVENT = "postpone_event";
        PURGE_COUNT = "purge_count";
        REMEMBER_ROUTE_IDENTITIES = "remember_route_identities";
        REQUEUE_EVENTS = "requeue_events";
    }
}

impl ListKeysParams {
    /// The statement that lists the keys.
    pub(super) fn statement(&self) -> &'static Statement {
        match self.filter.order() {
            ListOrder::Age => &shared::LIST_KEYS_BY_AGE,
            ListOrder::Id => &shared::LIST_KEYS,
            ListOrder::Running => &shared::LIST_KEYS_IN_FLIGHT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::columns::columns;

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
