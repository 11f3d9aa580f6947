//! Runs the recipes of docs/recipes.md, and the saga: their configurations are valid, and the real program does what
//! their scripts expect.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The folder of each recipe.
fn recipes() -> Vec<PathBuf> {
    let all = fs::read_dir(Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes")).unwrap();
    let mut found: Vec<_> = all.map(|entry| entry.unwrap().path()).filter(|path| path.join("try").exists()).collect();
    found.sort();
    assert!(found.len() >= 8, "the recipes are not found");
    found
}

/// A command without settings of this process's environment.
fn command(program: &Path) -> Command {
    let mut command = Command::new(program);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("ONCEGATE")) {
        command.env_remove(name);
    }
    command.env("ONCEGATE", env!("CARGO_BIN_EXE_oncegate")).env("ONCEGATE_SECRET", "a secret of the recipes");
    command
}

#[test]
fn every_recipe_has_a_valid_configuration_and_a_place_in_the_documents() {
    let page = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/recipes.md")).unwrap();
    for recipe in recipes() {
        let name = recipe.file_name().unwrap().to_str().unwrap();
        let file = recipe.join("oncegate.toml");
        let checked =
            command(Path::new(env!("CARGO_BIN_EXE_oncegate"))).arg("check").arg("-c").arg(file).output().unwrap();
        assert!(checked.status.success(), "{name}: {}", String::from_utf8_lossy(&checked.stderr));
        assert!(page.contains(&format!("\n## {name}: ")), "docs/recipes.md has no heading for {name}");
        assert!(page.contains(&format!("../examples/recipes/{name}/oncegate.toml")), "no link to {name}");
    }
}

#[test]
fn every_recipe_does_what_its_script_expects() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/recipes");
    let ended = command(&folder.join("run")).output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    assert!(ended.status.success(), "{said}");
    // The names of the skipped ones, with what they lack. Not by `eprint!`, whose text a
    // test that passes does not show.
    let _ = std::io::stderr().write_all(&ended.stderr);
    for recipe in recipes() {
        let name = recipe.file_name().unwrap().to_str().unwrap();
        let is_done = out.lines().any(|line| line == format!("{name}: as described"));
        let may_skip = std::env::var_os("ONCEGATE_NO_SKIPS").is_none();
        let is_skipped = may_skip && said.contains(&format!("{name}: skipped, "));
        assert!(is_done || is_skipped, "{name} was not run: {out}{said}");
    }
}

#[test]
fn each_step_of_the_saga_is_executed_once_over_kafka() {
    saga("kafka");
}

#[test]
fn each_step_of_the_saga_is_executed_once_over_rabbitmq() {
    saga("rabbitmq");
}

/// Runs the saga for a quarter of a minute. The script fails if a step was executed twice or not at all.
fn saga(broker: &str) {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/saga/run");
    let ended = command(&script).arg(broker).env("SAGA_SECONDS", "15").output().unwrap();
    let (out, said) = (String::from_utf8_lossy(&ended.stdout), String::from_utf8_lossy(&ended.stderr));
    let _ = std::io::stderr().write_all(&ended.stderr);
    if ended.status.code() == Some(77) && std::env::var_os("ONCEGATE_NO_SKIPS").is_none() {
        return;
    }
    assert!(ended.status.success(), "{out}{said}");
    let orders: Vec<usize> =
        out.lines().filter_map(|line| line.split(" | ").nth(1)).filter_map(|cell| cell.parse().ok()).collect();
    let killed = out.lines().find_map(|line| line.strip_prefix("killed: ")).unwrap_or_default();
    let kills: usize = killed.split([',', ' ']).filter_map(|word| word.parse::<usize>().ok()).sum();
    // Ten orders in a second, and a kill in each one or two, on a machine with time for both.
    assert!(orders.len() == 3 && orders.iter().all(|count| *count >= 30) && kills >= 3, "{out}");
}

#[test]
fn the_retry_loop_with_curl_in_the_documents_is_the_one_of_the_recipe() {
    let flags = "curl -fsS --max-time 40 --retry 8 --retry-all-errors --retry-connrefused";
    let read = |name: &str| fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).unwrap();
    assert!(read("docs/clients.md").contains(flags));
    let script = read("examples/recipes/curl/try");
    assert!(script.contains(&flags.replace("-fsS", "-sS")) && script.contains("pay -f "), "{script}");
}
