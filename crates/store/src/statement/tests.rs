use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::*;
use crate::columns::columns;
use crate::migrate::{POSTGRES_STEPS, SQLITE_STEPS};
use crate::postgres::functions;

const POSTGRES_TRIGGERS: &str = include_str!("../postgres/event_triggers.sql");
const SQLITE_TRIGGERS: &str = include_str!("../sqlite/event_triggers.sql");

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
fn parts_and_lists_stand_in_their_places() {
    assert!(shared::LIST_KEYS.for_sqlite().contains("\n                    k.id, k.token, k.state,"));
    assert!(shared::LIST_KEYS.for_postgres().contains(&format!("k.earlier, {POSTGRES_NOW} as now")));
    assert_eq!(
        expand("set {response resets}", "_"),
        "set remember_ms = null, status = null, fields = null, body = null"
    );
    assert_eq!(
        expand("{response assignments of s}", "_"),
        "remember_ms = s.remember_ms, status = s.status, fields = s.fields, body = s.body"
    );
    let condition = expand("  where\n    {may_settle of s}\n", "_");
    assert!(
        condition.contains(
            "\n    k.id = s.id\n    and k.token = s.token\n    and case\n          when s.state = 'completed' then "
        ),
        "{condition}"
    );
}

fn source() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("src")
}

/// The statements of folders, by the names of their files.
fn statements(folders: &[&str]) -> BTreeMap<String, Statement> {
    let mut statements = BTreeMap::new();
    for file in folders.iter().flat_map(|folder| fs::read_dir(source().join(folder)).unwrap()) {
        let path = file.unwrap().path();
        if path.is_file() {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            statements.insert(name, Statement::new(fs::read_to_string(&path).unwrap().leak()));
        }
    }
    statements
}

const IN_POSTGRES: [&str; 2] = ["sql", "postgres/sql"];
const IN_SQLITE: [&str; 2] = ["sql", "sqlite/sql"];

/// All SQL as the databases get it, by the names of the files in `docs/sql`.
fn expanded_sql() -> [(&'static str, String); 2] {
    let mut postgres = String::new();
    for (name, create) in functions::texts() {
        postgres.push_str(&format!("{create}\n"));
        assert!(create.starts_with(&format!("-- {name}: ")), "{create}");
    }
    for statement in statements(&IN_POSTGRES).values() {
        let (about, sql) = statement.for_postgres().split_once('\n').unwrap();
        let names = (1..).zip(statement.parameter_names()).map(|(number, name)| format!("${number} {name}"));
        let names = names.collect::<Vec<_>>().join(", ");
        let names = if names.is_empty() { names } else { format!("-- {names}\n") };
        postgres.push_str(&format!("{about}\n{names}{};\n\n", sql.trim_end()));
    }
    let sqlite = statements(&IN_SQLITE);
    let sqlite: String =
        sqlite.values().map(|statement| format!("{};\n\n", statement.for_sqlite().trim_end())).collect();
    let head = |what: &str| {
        format!(
            "-- {what}, as they are sent.\n-- Made by `make docs-write` from crates/store/src. The schema is in migrations.\n\n"
        )
    };
    [
        (
            "postgres.sql",
            format!(
                "{}{postgres}{POSTGRES_TRIGGERS}",
                head("PostgreSQL: the functions, the statements, and the triggers of events")
            ),
        ),
        (
            "sqlite.sql",
            format!("{}{sqlite}{SQLITE_TRIGGERS}", head("SQLite: the statements, and the triggers of events")),
        ),
    ]
}

fn folder_of_expanded_sql() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/sql")
}

#[test]
fn the_expanded_sql_is_that_of_the_files() {
    for (name, sql) in expanded_sql() {
        let written = fs::read_to_string(folder_of_expanded_sql().join(name)).unwrap_or_default();
        assert!(written == sql, "docs/sql/{name} is stale: run `make docs-write`, and read what it has changed");
        assert!(!sql.contains(['{', '}']), "{name} has a part that is none");
    }
}

#[test]
#[ignore = "writes into the repository: `make docs-write`"]
fn write_the_expanded_sql() {
    for (name, sql) in expanded_sql() {
        fs::write(folder_of_expanded_sql().join(name), sql).unwrap();
    }
}

#[test]
fn sqlite_takes_each_of_its_statements() {
    let db = Connection::open_in_memory().unwrap();
    for step in SQLITE_STEPS {
        db.execute_batch(step.sql).unwrap();
    }
    db.execute_batch(SQLITE_TRIGGERS).unwrap();
    for (name, statement) in statements(&IN_SQLITE) {
        db.prepare(statement.for_sqlite()).map(drop).unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

/// The words of a text that are made of letters, digits and these characters.
fn words<'a>(text: &'a str, others: &'a str) -> impl Iterator<Item = &'a str> {
    text.split(move |c: char| !c.is_alphanumeric() && !others.contains(c)).filter(|word| !word.is_empty())
}

fn without_comments(sql: &str) -> String {
    sql.lines().map(|line| line.split("--").next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// The columns of each table of the schema.
fn tables() -> BTreeMap<&'static str, Vec<&'static str>> {
    let table = |create: &'static str| {
        let (name, rest) = create.split_once(" (\n").unwrap();
        let (columns, _) = rest.split_once("\n)").unwrap();
        let column = |line: &'static str| {
            line.strip_prefix("  ").filter(|line| !line.starts_with([' ', '-']))?.split(' ').next()
        };
        (name, columns.lines().filter_map(column).collect())
    };
    let schema = || POSTGRES_STEPS.iter().map(|step| step.sql);
    let created = schema().flat_map(|sql| sql.split("\ncreate table oncegate.").skip(1)).map(table);
    let mut tables: BTreeMap<_, Vec<_>> = created.collect();
    for added in schema().flat_map(|sql| sql.split("\nalter table oncegate.").skip(1)) {
        if let [table, "add", "column", column] = added.split_whitespace().take(4).collect::<Vec<_>>()[..] {
            tables.entry(table).or_default().push(column);
        }
    }
    tables
}

/// Checks a text for PostgreSQL: each column of `table as alias` is one of the table, and so is each that an insert
/// names.
fn check_columns(name: &str, sql: &str) {
    let tables = tables();
    let code = without_comments(sql);
    let all: Vec<&str> = words(&code, "_.").collect();
    let mut aliases: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for window in all.windows(3) {
        if let [table, "as", alias] = window
            && let Some(columns) = table.strip_prefix("oncegate.").and_then(|table| tables.get(table))
        {
            aliases.entry(alias).or_default().extend(columns);
        }
    }
    for (alias, column) in all.iter().filter_map(|word| word.split_once('.')) {
        let is_column = aliases.get(alias).is_none_or(|columns| column == "xmin" || columns.contains(&column));
        assert!(is_column, "{name}: {alias}.{column}");
    }
    for insert in code.split("insert into oncegate.").skip(1) {
        let table = words(insert, "_").next().unwrap();
        let (columns, _) = insert.split_once('(').and_then(|(_, rest)| rest.split_once(')')).unwrap();
        for column in words(columns, "_") {
            assert!(tables[table].contains(&column), "{name}: {table} has no {column}");
        }
    }
}

#[test]
fn what_postgres_gets_names_columns_and_parameters_that_exist() {
    for (name, statement) in statements(&IN_POSTGRES) {
        check_columns(&name, statement.for_postgres());
    }
    for (name, create) in functions::texts() {
        check_columns(name, &create);
        let (head, code) = create.split_once("\nlanguage plpgsql\n").unwrap();
        let parameters = |text| words(text, "_").filter(|word| word.starts_with('_')).collect::<BTreeSet<_>>();
        assert_eq!(parameters(head), parameters(code), "{name}: its parameters, and those that it uses");
    }
}

/// A cluster's coordinator sends what it has simplified: of `case x when y` with both known, `case x when false`, for
/// which there is no operator.
#[test]
fn each_case_in_postgres_has_conditions_and_not_values() {
    let statements =
        statements(&IN_POSTGRES).into_iter().map(|(name, statement)| (name, statement.for_postgres().to_owned()));
    for (name, sql) in statements.chain(functions::texts().map(|(name, create)| (name.to_owned(), create))) {
        let code = without_comments(&sql);
        let words: Vec<&str> = words(&code, "_.").collect();
        assert!(words.windows(2).all(|pair| pair[0] != "case" || pair[1] == "when"), "{name}");
    }
}

/// The parameters of everything that is called by its name: statements, and functions with a `_` before each of theirs.
fn parameters(folders: &[&str]) -> BTreeMap<String, Vec<String>> {
    let statements = statements(folders).into_iter();
    statements.map(|(name, statement)| (name, statement.parameter_names().to_vec())).collect()
}

/// The names of the columns that a piece of code makes, by itself or by the functions of `columns.rs`.
fn made_columns<'a>(
    code: &'a str,
    makers: &BTreeMap<&'a str, &'a str>,
    seen: &mut BTreeSet<&'a str>,
) -> BTreeSet<&'a str> {
    let mut made = BTreeSet::new();
    for word in words(code, "_:\"") {
        let name = word.rsplit("::").next().unwrap_or_default();
        if let Some(column) = name.strip_suffix(':') {
            made.insert(column);
        } else if name.starts_with('"') {
            made.insert(name.trim_matches('"'));
        } else if makers.contains_key(name) && seen.insert(name) {
            made.extend(made_columns(makers[name], makers, seen));
        }
    }
    made
}

#[test]
fn each_parameter_has_its_column_where_it_is_sent() {
    let mut in_postgres = parameters(&IN_POSTGRES);
    for (name, create) in functions::texts() {
        let (head, _) = create.split_once("\nlanguage plpgsql\n").unwrap();
        in_postgres.insert(
            name.to_owned(),
            words(head, "_").filter_map(|word| word.strip_prefix('_')).map(str::to_owned).collect(),
        );
    }
    let in_sqlite = parameters(&IN_SQLITE);
    let list = |columns: &[(&str, &str)]| -> &'static str {
        columns.iter().map(|(name, _)| format!("{name}: ")).collect::<String>().leak()
    };
    let mut makers = BTreeMap::from([("reservation", list(RESERVATION)), ("response", list(RESPONSE))]);
    let code = fs::read_to_string(source().join("columns.rs")).unwrap();
    for function in code.split("\npub fn ").skip(1) {
        makers.insert(words(function, "_").next().unwrap(), function.split("\n}\n").next().unwrap());
    }
    let mut sent = BTreeSet::new();
    for (folder, known) in [("postgres", &in_postgres), ("sqlite", &in_sqlite)] {
        for file in fs::read_dir(source().join(folder)).unwrap().map(|file| file.unwrap().path()) {
            // `schema.rs` sends its one parameter by place.
            if file.extension().is_none_or(|extension| extension != "rs") || file.ends_with("schema.rs") {
                continue;
            }
            let code = fs::read_to_string(&file).unwrap();
            // Without the lists of statements and functions.
            let code: String = code.split_inclusive('\n').filter(|line| !line.contains(" = \"")).collect();
            // A function's columns are made where it is called; those of a batch, by another function of its `impl`.
            let end = if code.contains("const FUNCTION:") { "\n}\n" } else { "\n    }\n" };
            for piece in code.split(end).filter(|piece| !piece.contains("columns: &Columns")) {
                let made = made_columns(piece, &makers, &mut BTreeSet::new());
                for word in words(piece, "_\"") {
                    let name = word.trim_matches('"').to_lowercase();
                    let is_name = word.starts_with('"') || word.chars().all(|c| !c.is_lowercase());
                    let Some(needed) = known.get(&name).filter(|_| is_name) else { continue };
                    for parameter in needed.iter().filter(|name| *name != "now") {
                        assert!(made.contains(&**parameter), "{}: {name} needs {parameter}\n{piece}", file.display());
                    }
                    sent.insert((folder, name));
                }
            }
        }
    }
    assert!(sent.len() > 100, "{sent:?}");
}
