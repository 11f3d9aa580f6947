//! The functions in the database that this program calls, each in a file of its own.
//!
//! The server plans their statements once for each session. They read the clock once, before the statements that need
//! it: a cluster sends a statement to one node only if it names one id, and nothing that each node would compute by
//! itself.
//!
//! A function's name ends with the hash of its text. So several versions of this program can serve from one store, each
//! with functions of its own, and a function never changes under a program that calls it.
//!
//! They run with the rights of whoever calls them, so everybody may execute them. All are in PL/pgSQL; a file has what
//! differs, and `docs/sql` the whole.

use std::sync::{LazyLock, OnceLock};

use data_encoding::HEXLOWER;
use sha2::{Digest, Sha256};
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Error};

use crate::columns::Columns;
use crate::migrate::Migration;
use crate::statement::{expand, fill_in};

/// Whatever the caller's search path, the names in a function mean the server's own operators and functions.
const FIXED_PATH: &str = "set search_path = pg_catalog, pg_temp";

const FUNCTIONS_THERE: &str = include_str!("sql/functions_there.sql");

/// A function in the database.
pub(super) struct Function {
    /// The name without the hash, which is also the file's.
    name: &'static str,
    text: &'static str,
    /// The name in the database.
    installed: LazyLock<String>,
    call: OnceLock<String>,
    /// Whether it is called by a prepared statement where the connection allows that, see `client`. No two of these
    /// take the same parameters, unless they do the same.
    pub is_prepared: bool,
}

/// The functions of a list, and the list.
macro_rules! functions {
    ($($function:ident = $name:literal $($prepared:ident)?;)*) => {
        $(pub(super) static $function: Function = Function {
            name: $name,
            text: include_str!(concat!("functions/", $name, ".sql")),
            installed: LazyLock::new(|| installed_name($name, $function.text)),
            call: OnceLock::new(),
            is_prepared: functions!(@ $($prepared)?),
        };)*

        static ALL: &[&Function] = &[$(&$function),*];
    };
    (@ prepared) => { true };
    (@) => { false };
}

functions! {
    APPLY_DEFERRED_REPORT = "apply_deferred_report";
    APPLY_INQUIRY_FINDING = "apply_inquiry_finding";
    CLAIM_INQUIRY = "claim_inquiry";
    COUNT_LIVE_KEYS = "count_live_keys";
    DECIDE = "decide";
    DISCOUNT_ATTEMPT = "discount_attempt";
    END_DELIVERY = "end_delivery";
    ENQUEUE = "enqueue";
    EXTEND_DEADLINE = "extend_deadline";
    GIVE_UP = "give_up";
    MARK_CRASHED = "mark_crashed";
    PROPOSE = "propose";
    REAP = "reap";
    REDACT = "redact";
    RENEW_LEASE = "renew_lease";
    REPORT = "report";
    RESERVE = "reserve" prepared;
    RESERVE_ALL = "reserve_all" prepared;
    RESERVE_EACH = "reserve_each" prepared;
    RESTORE = "restore";
    SET_HOLDER = "set_holder";
    SETTLE = "settle" prepared;
    SETTLE_ALL = "settle_all" prepared;
    SETTLE_EACH = "settle_each" prepared;
    START_DELIVERY = "start_delivery";
    TAKE_OVER = "take_over";
}

// See docs/decisions/0011-one-id-per-function.md.
fn installed_name(name: &str, text: &str) -> String {
    format!("{name}_{}", &HEXLOWER.encode(&Sha256::digest(expanded(text)))[..8])
}

/// The text as the server takes it: with its parts, the names of the functions that it calls, and the frame of a
/// function.
fn expanded(text: &str) -> String {
    let mut text = expand(text, "_");
    for called in ALL {
        fill_in(&mut text, &format!("function {}", called.name), || called.installed.clone());
    }
    let code = text.find("\ndeclare\n").or_else(|| text.find("\nbegin\n")).unwrap_or(text.len());
    let (head, code) = text.split_at(code);
    format!(
        "{head}\nlanguage plpgsql\n{FIXED_PATH}\nas $function$\n#variable_conflict use_column{}\n$function$;\n",
        code.trim_end()
    )
}

impl Function {
    /// The call with these columns as parameters; it is always called with the same ones. Where the function answers
    /// with one row, that has `done`.
    pub fn call(&self, columns: &Columns<'_>) -> &str {
        self.call.get_or_init(|| self.call_named(columns.iter().map(|(name, _)| *name)))
    }

    pub fn call_named<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> String {
        let parameters: Vec<String> =
            names.into_iter().zip(1..).map(|(name, number)| format!("_{name} => ${number}")).collect();
        // A function that is scanned as a table costs more than one that is computed.
        let from = if self.text.contains(") returns boolean") { "" } else { "* from " };
        let (name, parameters) = (&*self.installed, parameters.join(", "));
        format!("-- {}\nselect {from}oncegate.{name}({parameters}) as done", self.name)
    }

    /// The statement that makes the function. Several may run at once.
    fn create(&self) -> String {
        let from = format!("create function oncegate.{}(", self.name);
        let to = format!("create or replace function oncegate.{}(", *self.installed);
        expanded(self.text).replacen(&from, &to, 1)
    }
}

/// The script that makes the functions that a database lacks; `None` where it has all.
pub(super) async fn missing(client: &Client) -> Result<Option<Migration>, Error> {
    let names: Vec<&str> = ALL.iter().map(|function| function.installed.as_str()).collect();
    let rows = client.query_typed(FUNCTIONS_THERE, &[(/* names */ &names, Type::TEXT_ARRAY)]).await?;
    let there = rows.iter().map(|row| row.try_get::<_, String>("name")).collect::<Result<Vec<_>, _>>()?;
    let missing = ALL.iter().filter(|function| !there.contains(&function.installed));
    let create: String = missing.map(|function| function.create()).collect();
    let sql = format!("begin;\n{};\n\n{create}\ncommit;\n", FIXED_PATH.replace("set", "set local"));
    Ok((!create.is_empty()).then(|| Migration { name: NAME.to_owned(), sql }))
}

/// The name of all functions together, among those of migrations.
pub(super) const NAME: &str = "functions";

/// The functions by their names, with the statements that make them.
#[cfg(test)]
pub(crate) fn texts() -> impl Iterator<Item = (&'static str, String)> {
    ALL.iter().map(|function| (function.name, function.create()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_text_has_another_name() {
        assert_ne!(installed_name("f", "a"), installed_name("f", "b"));
    }
}
