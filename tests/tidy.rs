//! The structure, checked: arrows point down, files stay small, SQL says its name.

#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Each module may use those that stand in later layers; those of one layer do not use each other.
const LAYERS: [&[&str]; 10] = [
    &["main"],
    &["cli"],
    &["app"],
    &["admin", "consumers", "downstream", "tasks"],
    &["gate"],
    &["cache", "store", "upstream"],
    &["body", "telemetry"],
    &["config"],
    &["gather", "tls"],
    &["domain"],
];

/// Past this many lines, its own tests left out, a file does two things, or has a reason that stands in [`LARGE`].
const LINES_MAX: usize = 500;

/// Larger files, each with its reason.
const LARGE: [(&str, &str); 0] = [];

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(files(&path, ending));
        } else if path.extension().is_some_and(|extension| extension == ending) {
            found.push(path);
        }
    }
    found.sort();
    found
}

/// The top module that a source file belongs to.
fn module(file: &Path) -> String {
    let first = file.strip_prefix(root().join("src")).unwrap().components().next().unwrap();
    first.as_os_str().to_str().unwrap().trim_end_matches(".rs").to_owned()
}

fn layer(module: &str) -> usize {
    let found = LAYERS.iter().position(|layer| layer.contains(&module));
    found.unwrap_or_else(|| panic!("the module {module} stands in no layer of tests/tidy.rs"))
}

/// The modules that stand behind a `crate::`, be it one or a group in braces.
fn modules(path: &str) -> Vec<String> {
    let name = |path: &str| path.trim().chars().take_while(|c| c.is_alphanumeric() || *c == '_').collect();
    match path.strip_prefix('{') {
        None => vec![name(path)],
        Some(group) => {
            group.split('}').next().unwrap().split(',').map(name).filter(|name: &String| !name.is_empty()).collect()
        }
    }
}

#[test]
fn arrows_point_down() {
    let mut wrong = Vec::new();
    for file in files(&root().join("src"), "rs") {
        let from = module(&file);
        if from == "lib" {
            continue;
        }
        for (number, line) in fs::read_to_string(&file).unwrap().lines().enumerate() {
            let code = line.split("//").next().unwrap();
            for to in code.split("crate::").skip(1).flat_map(modules) {
                if to != from && layer(&to) <= layer(&from) {
                    wrong.push(format!("{}:{}: {from} uses {to}", file.display(), number + 1));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn files_do_one_thing() {
    let large: BTreeMap<_, _> = LARGE.into_iter().collect();
    for file in files(&root().join("src"), "rs") {
        let name = file.strip_prefix(root()).unwrap().to_str().unwrap().to_owned();
        let text = fs::read_to_string(&file).unwrap();
        let lines = text.lines().take_while(|line| !line.starts_with("#[cfg(test)]")).count();
        assert!(lines <= LINES_MAX || large.contains_key(&*name), "{name} has {lines} lines");
    }
}

#[test]
fn every_statement_says_its_name_first() {
    for store in ["postgres", "sqlite"] {
        let sql = files(&root().join("src/store").join(store).join("sql"), "sql");
        assert!(!sql.is_empty());
        for file in sql {
            let text = fs::read_to_string(&file).unwrap();
            let name = file.file_stem().unwrap().to_str().unwrap();
            let first = text.lines().next().unwrap_or_default();
            assert!(first.starts_with(&format!("-- {name}: ")), "{} begins with {first:?}", file.display());
        }
    }
}

#[test]
fn the_readme_shows_the_file_that_it_names() {
    let file = fs::read_to_string(root().join("config/minimal.toml")).unwrap();
    let keys: String = file
        .lines()
        .skip_while(|line| line.starts_with('#') || line.is_empty())
        .map(|line| format!("{line}\n"))
        .collect();
    let readme = fs::read_to_string(root().join("README.md")).unwrap();
    assert!(readme.contains(&keys), "config/minimal.toml and the README differ");
}
