//! The documents that are made of the declarations: `config/reference.toml` and the tables of `docs/configuration.md`.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use crate::warnings::Lint;
use crate::{KeyDoc, TOP, ValueKind, schema};
use oncegate_settings::Word;

/// The lines of `docs/configuration.md` that the generated part is between.
const BEGIN: &str = "<!-- made by `make docs-write`, from the declarations -->\n";
const END: &str = "<!-- end of what `make docs-write` makes -->\n";

fn path(name: &str) -> PathBuf {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(name)
}

fn read(name: &str) -> String {
    fs::read_to_string(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Each generated document with its text now.
fn documents() -> [(&'static str, String); 3] {
    let page = read("docs/configuration.md");
    let (before, rest) = page.split_once(BEGIN).expect("it has the line");
    let (_, after) = rest.split_once(END).expect("it has the line");
    [
        ("config/oncegate.schema.json", format!("{:#}\n", schema())),
        ("config/reference.toml", Reference::of(&read("config/reference.toml")).write()),
        ("docs/configuration.md", format!("{before}{BEGIN}{}{END}{after}", tables())),
    ]
}

#[test]
fn the_documents_are_those_of_the_declarations() {
    for (name, text) in documents() {
        assert!(read(name) == text, "{name} is stale: run `make docs-write`, and read what it has changed");
    }
}

#[test]
fn every_warning_has_its_row_in_the_documents() {
    let page = read("docs/configuration.md");
    let (_, section) = page.split_once("\n## Warnings\n").expect("it has the section");
    let (section, _) = section.split_once("\n## ").expect("another one follows");
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `")?.split_once('`')).map(|(name, _)| name);
    let (mut rows, mut lints) = (rows.collect::<Vec<_>>(), Lint::WORDS.to_vec());
    rows.sort_unstable();
    lints.sort_unstable();
    assert_eq!(rows, lints);
}

#[test]
#[ignore = "writes into the repository: `make docs-write`"]
fn write_the_documents() {
    for (name, text) in documents() {
        fs::write(path(name), text).unwrap();
    }
}

/// The reference as it is: the comment before each line, and the value that it shows for a key without a default.
#[derive(Default)]
struct Reference {
    comments: BTreeMap<String, String>,
    values: BTreeMap<String, String>,
    text: String,
}

impl Reference {
    fn of(text: &str) -> Self {
        let (mut found, mut comment, mut table) = (Self::default(), String::new(), String::new());
        for line in text.lines() {
            // The line of a table that no file has by default has a `#`, and no space behind it.
            let written = line.strip_prefix('#').filter(|rest| !rest.starts_with(' ')).unwrap_or(line);
            let name = written.trim_matches(['[', ']']);
            let here = match written.split_once('=') {
                _ if line.starts_with("# ") || line.starts_with("#:") || written.is_empty() => None,
                Some((name, value)) => {
                    let here = format!("{table}{}", name.trim());
                    found.values.insert(here.clone(), value.trim().to_owned());
                    Some(here)
                }
                None => {
                    table = format!("{name}.");
                    Some(name.to_owned())
                }
            };
            match here {
                Some(here) => drop(found.comments.insert(here, std::mem::take(&mut comment))),
                None => comment += &format!("{line}\n"),
            }
        }
        found
    }

    /// Writes the lines anew, each with the comment that it has, or with the key's meaning.
    fn write(mut self) -> String {
        for key in TOP {
            let (before, header, keys) = match key.kind {
                ValueKind::Table(keys) => ("", format!("[{}]", key.name), keys),
                ValueKind::Tables(keys) => {
                    (if key.name == "routes" { "" } else { "#" }, format!("[[{}]]", key.name), keys)
                }
                _ => {
                    self.write_key("", "", key);
                    continue;
                }
            };
            self.write_line(key.name, before, key, &header);
            // The keys of a route, which have their lines there.
            for inner in keys.iter().filter(|_| key.name != "defaults") {
                self.write_key(&format!("{}.", key.name), before, inner);
            }
        }
        self.text
    }

    fn write_key(&mut self, table: &str, before: &str, key: &KeyDoc) {
        let path = format!("{table}{}", key.name);
        let value = match key.default {
            Some(_) => value(key),
            None => self.values.get(&path).cloned().unwrap_or_else(|| "\"…\"".into()),
        };
        self.write_line(&path, before, key, &format!("{} = {value}", key.name));
    }

    fn write_line(&mut self, path: &str, before: &str, key: &KeyDoc, line: &str) {
        let comment = self.comments.remove(path).unwrap_or_else(|| format!("\n# {}.\n", key.about));
        self.text += &format!("{comment}{before}{line}\n");
    }
}

/// The default as TOML, on one line.
fn value(key: &KeyDoc) -> String {
    match key.kind {
        ValueKind::Table(_) if key.name == "defaults" => "{}".into(),
        ValueKind::Table(keys) => {
            let keys: Vec<_> = keys.iter().map(|key| format!("{} = {}", key.name, value(key))).collect();
            format!("{{ {} }}", keys.join(", "))
        }
        _ => key.default.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" "),
    }
}

/// The tables of all options, by their place.
fn tables() -> String {
    let mut text = String::new();
    let is_table = |key: &&KeyDoc| matches!(key.kind, ValueKind::Table(_) | ValueKind::Tables(_));
    let mut write_table = |title: &str, keys: &[KeyDoc]| {
        writeln!(text, "\n### {title}\n\n| option | default | meaning |\n|---|---|---|").unwrap();
        write_rows(&mut text, "", keys);
    };
    let (tables, top): (Vec<_>, Vec<_>) = TOP.iter().copied().partition(|key| is_table(&key));
    write_table("At the top of the file", &top);
    for table in tables.iter().filter(|table| table.name != "defaults") {
        match table.kind {
            ValueKind::Table(keys) => write_table(&format!("`[{}]`: {}", table.name, table.about), keys),
            ValueKind::Tables(keys) => write_table(&format!("`[[{}]]`: {}", table.name, table.about), keys),
            _ => unreachable!("it is a table"),
        }
    }
    text + "\n"
}

fn write_rows(text: &mut String, table: &str, keys: &[KeyDoc]) {
    for key in keys {
        match key.kind {
            // The options of a route have their rows there.
            ValueKind::Table(_) if key.name == "defaults" => {
                writeln!(text, "| `{table}defaults` | `{{}}` | {} |", key.about).unwrap();
            }
            ValueKind::Table(keys) => write_rows(text, &format!("{table}{}.", key.name), keys),
            ValueKind::Named(keys) => {
                writeln!(text, "| `{table}{}` | `{{}}` | {} |", key.name, key.about).unwrap();
                write_rows(text, &format!("{table}{}.NAME.", key.name), keys);
            }
            ValueKind::Tables(keys) => {
                writeln!(text, "| `{table}{}` | `[]` | {} |", key.name, key.about).unwrap();
                write_rows(text, &format!("{table}{}[].", key.name), keys);
            }
            _ => {
                let default = key.default.map_or("required".to_owned(), |_| format!("`{}`", value(key)));
                let words = match key.kind {
                    ValueKind::Choice(words) => format!(" (`{}`)", words.join("`, `")),
                    _ => String::new(),
                };
                writeln!(text, "| `{table}{}` | {default} | {}{words} |", key.name, key.about).unwrap();
            }
        }
    }
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
        Some(written) if written.starts_with(|first: char| !first.is_whitespace() && first != ':') => written,
        _ => line,
    });
    lines.collect::<Vec<_>>().join("\n")
}
