//! Statements with named parameters. Those in `sql` beside this file go to both databases; the others belong to one of
//! them.
//!
//! `docs/sql` has them as the databases get them.

use std::sync::OnceLock;

use super::ListKeysParams;
use super::admin::ListOrder;
use super::columns::{ATTEMPT, CAUSE, Columns, RESERVATION, RESPONSE, Value};

/// Lists parts of statements by the names of their files, with their texts.
macro_rules! parts {
    ($($name:literal),+ $(,)?) => { &[$(($name, include_str!(concat!("sql/parts/", $name, ".sql")))),+] };
}

/// The parts that several statements have in common. In each, `:name` is a parameter, and `:now` the store's time.
const PARTS: &[(&str, &str)] = parts![
    "fits_filter",
    "key_columns",
    "may_forget",
    "may_settle",
    "may_take_over",
    "newest_page",
    "redacted",
    "inquiry_finding",
    "restored",
    "settled",
    "taken_over",
    "this_week",
];

/// The earlier attempts of a key with its newest one.
const WITH_ATTEMPT_IN_SQLITE: &str = include_str!("sqlite/with_attempt.sql");
const WITH_ATTEMPT_IN_POSTGRES: &str = include_str!("postgres/with_attempt.sql");

/// The store's time, in milliseconds since 1970, in PostgreSQL. It stays the same in a transaction, so that an index
/// can be searched for it.
const POSTGRES_NOW: &str = "(floor(date_part('epoch', now()) * 1000::double precision)::bigint)";

/// A statement as its file has it: `:name` is a parameter, `:now` the store's time, `{name}` a part or a list of
/// columns, and a table has the schema's name.
pub struct Statement {
    sql: &'static str,
    postgres: OnceLock<(String, Vec<String>)>,
    sqlite: OnceLock<String>,
}

impl Statement {
    pub const fn new(sql: &'static str) -> Self {
        Self { sql, postgres: OnceLock::new(), sqlite: OnceLock::new() }
    }

    /// The text for PostgreSQL, where parameters have numbers.
    pub fn for_postgres(&self) -> &str {
        &self.in_postgres().0
    }

    /// The text for SQLite, where the schema has no name.
    pub fn for_sqlite(&self) -> &str {
        self.sqlite.get_or_init(|| expand(self.sql, ":").replace("oncegate.", ""))
    }

    /// The names of the parameters for PostgreSQL, in the order of their numbers.
    pub fn parameter_names(&self) -> &[String] {
        &self.in_postgres().1
    }

    /// The parameters for PostgreSQL, in the order of their numbers.
    ///
    /// # Panics
    /// Panics where a column is missing.
    pub fn parameters<'a, 'c>(&self, columns: &'a Columns<'c>) -> Vec<&'a Value<'c>> {
        let value = |name: &String| columns.iter().find(|(column, _)| column == name).map(|(_, value)| value);
        self.parameter_names().iter().map(|name| value(name).expect("each parameter has its column")).collect()
    }

    fn in_postgres(&self) -> &(String, Vec<String>) {
        self.postgres.get_or_init(|| {
            let mut names: Vec<String> = Vec::new();
            let sql = replace_parameters(&expand(self.sql, ":"), |name| {
                if name == "now" {
                    return POSTGRES_NOW.to_owned();
                }
                let place = names.iter().position(|known| known == name).unwrap_or_else(|| {
                    names.push(name.to_owned());
                    names.len() - 1
                });
                format!("${}", place + 1)
            });
            (sql, names)
        })
    }
}

/// Replaces each `:name`. A cast (`::text`) is none, and neither is a colon in a comment.
fn replace_parameters(sql: &str, mut replace: impl FnMut(&str) -> String) -> String {
    let without_casts = sql.replace("::", "\0");
    let mut parts = without_casts.split(':');
    let mut replaced = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !c.is_ascii_lowercase() && c != '_').unwrap_or(part.len());
        let (name, rest) = part.split_at(end);
        replaced.push_str(&if name.is_empty() { ":".to_owned() } else { replace(name) });
        replaced.push_str(rest);
    }
    replaced.replace('\0', "::")
}

/// Fills in the parts and the lists of columns: `{may_settle}`, `{reservation names}`. `sign` stands before a
/// parameter's name: `:` in a statement, `_` in a function of PostgreSQL. In one with ` of s` behind its name, the
/// parameters are columns of `s`.
pub(super) fn expand(sql: &str, sign: &str) -> String {
    let mut expanded = sql.to_owned();
    for (suffix, sign) in [("", sign), (" of s", "s.")] {
        for (name, part) in PARTS {
            fill_in(&mut expanded, &format!("{name}{suffix}"), || match sign {
                ":" => expand(part, sign),
                _ => replace_parameters(&expand(part, sign), |name| match name {
                    "now" => "moment".to_owned(),
                    name => format!("{sign}{name}"),
                }),
            });
        }
        let attempt = RESERVATION.iter().copied().filter(|(name, _)| ATTEMPT.contains(name)).collect();
        for (list, columns) in [
            ("reservation", RESERVATION.to_vec()),
            ("attempt", attempt),
            ("response", RESPONSE.to_vec()),
            ("outcome", [RESPONSE, CAUSE].concat()),
        ] {
            let mut form = |form: &str, column: &dyn Fn(&str, &str) -> String| {
                let listed = || columns.iter().map(|(name, kind)| column(name, kind)).collect::<Vec<_>>().join(", ");
                fill_in(&mut expanded, &format!("{list} {form}{suffix}"), listed);
            };
            form("names", &|name, _| name.to_owned());
            form("values", &|name, _| format!("{sign}{name}"));
            form("parameters", &|name, kind| format!("_{name} {kind}"));
            form("arrays", &|name, kind| format!("_{name} {kind}[]"));
            form("of i", &|name, _| format!("_{name}[i]"));
            form("elements", &|name, _| format!("_{name}[i] as {name}"));
            form("assignments", &|name, _| format!("{name} = {sign}{name}"));
            form("excluded", &|name, _| format!("{name} = excluded.{name}"));
            form("resets", &|name, _| format!("{name} = null"));
        }
    }
    let with_attempt = if sign == ":" { WITH_ATTEMPT_IN_SQLITE } else { WITH_ATTEMPT_IN_POSTGRES };
    fill_in(&mut expanded, "with_attempt", || with_attempt.to_owned());
    expanded
}

/// Replaces `{place}`. Further lines begin where the line of the place begins.
pub(super) fn fill_in(text: &mut String, place: &str, part: impl FnOnce() -> String) {
    let place = format!("{{{place}}}");
    if text.contains(&place) {
        let part = part();
        let filled = |line: &str| {
            let begin = line.len() - line.trim_start().len();
            line.replace(&place, &part.trim_end().replace('\n', &format!("\n{}", &line[..begin])))
        };
        *text = text.split('\n').map(filled).collect::<Vec<_>>().join("\n");
    }
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
        DELETE_OLD_BATCHES = "delete_old_batches";
        DELETE_OLD_WEEKS = "delete_old_weeks";
        FIND_PARTS = "find_parts";
        FORGET_CALLER = "forget_caller";
        LIST_AUDIT_ENTRIES = "list_audit_entries";
        LIST_CALLERS_OF_WEEK = "list_callers_of_week";
        LIST_IN_FLIGHT = "list_in_flight";
        LIST_INSTANCES = "list_instances";
        LIST_KEYS = "list_keys";
        LIST_KEYS_BY_AGE = "list_keys_by_age";
        LIST_KEYS_BY_ID = "list_keys_by_id";
        LIST_KEYS_IN_FLIGHT = "list_keys_in_flight";
        LIST_ROUTE_IDENTITIES = "list_route_identities";
        LIST_SETTLED_KEYS = "list_settled_keys";
        LIST_WEEKS = "list_weeks";
        POSTPONE_EVENT = "postpone_event";
        PURGE_COUNT = "purge_count";
        REMEMBER_ROUTE_IDENTITIES = "remember_route_identities";
        REQUEUE_EVENTS = "requeue_events";
    }
}

impl ListKeysParams {
    /// The statement that lists the keys. `by_lookup` is the database's own.
    pub(super) fn statement(&self, by_lookup: &'static Statement) -> &'static Statement {
        match self.filter.order() {
            ListOrder::Age => &shared::LIST_KEYS_BY_AGE,
            ListOrder::Id => &shared::LIST_KEYS_BY_ID,
            ListOrder::Newest if self.filter.lookup.is_some() => by_lookup,
            ListOrder::Newest => &shared::LIST_KEYS,
            ListOrder::Running => &shared::LIST_KEYS_IN_FLIGHT,
        }
    }
}

#[cfg(test)]
mod tests;
