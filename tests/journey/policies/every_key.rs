//! Every configuration key has a tested effect: some test that runs the binary sets it.

use std::fs;
use std::path::{Path, PathBuf};

use oncegate_config::{KeyDoc, TOP, ValueKind};

/// Keys that every test's file has, so that no test module needs to set them.
const IN_EVERY_FILE: [&str; 4] = ["listen", "admin.listen", "telemetry.log", "telemetry.format"];

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Whether a line sets the key: by itself, in an inline table, or with the table before a dot.
fn writes(line: &str, table: Option<&str>, name: &str) -> bool {
    let inside = match table {
        None => Some(line),
        Some(table) => assigned(line, table),
    };
    let dotted = table.is_some_and(|table| assigned(line, &format!("{table}.{name}")).is_some());
    dotted || inside.is_some_and(|line| assigned(line, name).is_some())
}

/// The text after `name =`, in TOML within a string literal of a line of Rust.
fn assigned<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    line.match_indices(name).find_map(|(at, _)| {
        let word = |character: char| character.is_ascii_alphanumeric() || "_-.".contains(character);
        let before = &line[..at];
        // `\n` in a string ends in a letter too.
        let begins = !before.ends_with(word) || before.ends_with("\\n");
        let after = line[at + name.len()..].trim_start().strip_prefix('=')?;
        let in_rust =
            before.trim_end().ends_with("let") || before.trim_end().ends_with("mut") || before.trim().is_empty();
        (begins && !in_rust && !after.starts_with(['=', '>'])).then_some(after)
    })
}

/// Every key that is no table, with the inline table that it is in, if any.
fn all(
    keys: &'static [KeyDoc],
    path: &str,
    table: Option<&'static str>,
    found: &mut Vec<(String, Option<&'static str>, &'static str)>,
) {
    for key in keys {
        let here = format!("{path}{}", key.name);
        match key.kind {
            ValueKind::Named(inner) | ValueKind::Tables(inner) => all(inner, &format!("{here}."), None, found),
            // The same keys as in a route.
            ValueKind::Table(_) if ["defaults", "services.defaults"].contains(&&*here) => {}
            ValueKind::Table(inner) => {
                let inline = !path.is_empty();
                all(inner, &format!("{here}."), inline.then_some(key.name), found);
            }
            _ => found.push((here, table, key.name)),
        }
    }
}

#[test]
fn each_configuration_key_is_used_by_some_test_module() {
    let mut files = Vec::new();
    for folder in ["harness", "journey", "stores", "operations"] {
        sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests").join(folder), &mut files);
    }
    files.retain(|file| !file.ends_with("every_key.rs"));
    let text: String = files.iter().map(|file| fs::read_to_string(file).unwrap()).collect();
    let mut keys = Vec::new();
    all(TOP, "", None, &mut keys);
    assert!(keys.len() > 50, "{}", keys.len());
    let unseen: Vec<_> = keys
        .into_iter()
        .filter(|(path, table, name)| {
            !IN_EVERY_FILE.contains(&&**path) && !text.lines().any(|line| writes(line, *table, name))
        })
        .map(|(path, ..)| path)
        .collect();
    assert!(unseen.is_empty(), "no chapter writes {}", unseen.join(", "));
}

#[test]
fn a_configuration_key_is_found_only_where_it_is_assigned() {
    assert!(writes(r#"setup.top("secret = 7")"#, None, "secret"));
    assert!(writes(r#""ttl = \"1s\"\nafter_ttl = \"refuse\"""#, None, "after_ttl"));
    assert!(writes(r#""key = {{ required = true, from = \"json:/k\" }}""#, Some("key"), "from"));
    for line in ["let secret = 7;", "secret == 7", r#""previous_secret = 7""#, "secret: 7", "let mut secret = 7;"] {
        assert!(!writes(line, None, "secret"), "{line}");
    }
    assert!(!writes(r#""fingerprint = { body = 1 }""#, Some("key"), "body"));
}
