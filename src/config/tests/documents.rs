//! The documents that have every option.

use std::fs;
use std::path::Path;

use toml::de::{DeTable, DeValue};

use crate::config::{KeyDoc, TOP, ValueKind};

fn read(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(name);
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn the_reference_has_every_key_in_order() {
    fn check(path: &str, table: &DeTable<'_>, keys: &[KeyDoc]) {
        let mut last = 0;
        for key in keys {
            let path = format!("{path}.{}", key.name);
            let (name, value) = table.get_key_value(key.name).unwrap_or_else(|| panic!("{path} is missing"));
            assert!(name.span().start >= last, "{path} stands too early");
            last = name.span().start;
            match (key.kind, value.get_ref()) {
                (ValueKind::Table(_), DeValue::Table(_)) if key.name == "defaults" => {}
                (ValueKind::Table(keys), DeValue::Table(table)) => check(&path, table, keys),
                // Its rules stand in the comment.
                (ValueKind::Tables(_), DeValue::Array(rules)) if key.name == "outcome" => assert!(rules.is_empty()),
                (ValueKind::Tables(keys), DeValue::Array(tables)) => {
                    check(&path, tables[0].get_ref().as_table().expect("a table"), keys);
                }
                _ => {}
            }
        }
    }
    check("", DeTable::parse(&whole_reference()).expect("TOML").get_ref(), TOP);
}

/// With the tables that are not there without being written: their lines have a `#` and no space before them.
fn whole_reference() -> String {
    let text = read("config/reference.toml");
    let lines = text.lines().map(|line| match line.strip_prefix('#') {
        Some(written) if written.starts_with(|first: char| !first.is_whitespace()) => written,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}
