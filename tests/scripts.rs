//! Runs the scripts of the supply chain: what they could not check, they say.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::path::Path;
use std::process::{Command, Output};

/// Runs a script without network, without the programs that `cargo install` has put anywhere, and without a place for new ones.
fn run_alone(script: &str, variables: &[(&str, &str)]) -> Output {
    let home = tempfile::tempdir().unwrap();
    let toolchain = Path::new(env!("CARGO")).parent().unwrap();
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts").join(script));
    command.env("PATH", format!("{}:/usr/bin:/bin", toolchain.display()));
    command.env("CARGO_HOME", home.path()).env("CARGO_NET_OFFLINE", "true").envs(variables.iter().copied());
    command.output().unwrap()
}

#[test]
fn a_check_of_dependencies_that_cannot_run_says_so_and_fails_a_release() {
    for (variables, code) in [(&[][..], 0), (&[("DEPENDENCIES", "all")][..], 69)] {
        let ended = run_alone("dependencies", variables);
        let said = String::from_utf8(ended.stderr).unwrap();
        assert!(said.contains("NOT checked: bans licenses sources advisories"), "{said}");
        assert_eq!(ended.status.code(), Some(code), "{said}");
    }
}

#[test]
fn fuzzing_without_its_tools_names_them() {
    let ended = run_alone("fuzz", &[]);
    let said = String::from_utf8(ended.stderr).unwrap();
    assert_eq!(ended.status.code(), Some(69), "{said}");
    assert!(said.contains("cargo install --locked cargo-fuzz"), "{said}");
}
