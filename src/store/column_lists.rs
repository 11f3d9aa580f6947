//! The columns that several statements write. Their files name a list, and it is expanded.

/// The columns that a reservation writes, with their types in PostgreSQL: those of
/// [`columns::reservation`](super::columns::reservation).
pub(super) const RESERVATION: [(&str, &str); 12] = [
    ("id", "bytea"),
    ("service", "text"),
    ("scope", "bytea"),
    ("space", "bytea"),
    ("key", "bytea"),
    ("path", "bytea"),
    ("route", "text"),
    ("recipe", "text"),
    ("fingerprint", "bytea"),
    ("instance", "bigint"),
    ("token", "bytea"),
    ("holder", "bytea"),
];

/// Those of them that the next attempt of the key writes anew.
pub(super) const ATTEMPT: [&str; 6] = ["path", "route", "recipe", "fingerprint", "instance", "token"];

/// The columns that an outcome writes besides the state and its times, with their types in PostgreSQL: those of
/// [`columns::outcome`](super::columns::outcome).
pub(super) const OUTCOME: [(&str, &str); 5] =
    [("remember_ms", "bigint"), ("status", "smallint"), ("fields", "bytea"), ("body", "bytea"), ("cause", "text")];

/// Replaces the lists of columns: `{reservation names}`, `{attempt assignments}` and the like. `sign` stands before a parameter's
/// name: `:` in a statement, `_` in a function of PostgreSQL.
pub(super) fn expand(sql: &str, sign: char) -> String {
    let attempt: Vec<_> = RESERVATION.into_iter().filter(|(name, _)| ATTEMPT.contains(name)).collect();
    let mut expanded = sql.to_owned();
    for (list, columns) in [("reservation", &RESERVATION[..]), ("attempt", &attempt), ("outcome", &OUTCOME)] {
        let form = |column: &dyn Fn(&str, &str) -> String| {
            columns.iter().map(|(name, kind)| column(name, kind)).collect::<Vec<_>>().join(", ")
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
    let resets = OUTCOME.iter().map(|(name, _)| *name).chain(["expires_at", "probes", "absences", "probe_at"]);
    let resets: Vec<String> = resets.map(|name| format!("{name} = null")).collect();
    expanded.replace("{outcome resets}", &resets.join(", "))
}
