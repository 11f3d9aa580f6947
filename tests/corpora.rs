//! Gives the properties of `fuzz` the inputs of their corpora again: `make fuzz` finds
//! inputs, every test run keeps them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]

use std::fs;
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

#[path = "../fuzz/src/lib.rs"]
mod properties;

fn fuzz() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz")
}

fn names(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).unwrap();
    let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

#[test]
fn every_input_of_the_corpora_keeps_its_properties() {
    let mut broken = Vec::new();
    for (name, check) in properties::PROPERTIES {
        let folder = fuzz().join("corpus").join(name);
        for input in names(&folder) {
            let bytes = fs::read(folder.join(&input)).unwrap();
            if catch_unwind(|| check(&bytes)).is_err() {
                broken.push(format!("{name}/{input}"));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}

#[test]
fn every_property_has_a_program_and_a_small_corpus() {
    let manifest = fs::read_to_string(fuzz().join("Cargo.toml")).unwrap();
    let properties: Vec<_> = properties::PROPERTIES.iter().map(|(name, _)| (*name).to_owned()).collect();
    assert_eq!(names(&fuzz().join("corpus")), properties);
    let programs: Vec<_> = properties.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&fuzz().join("fuzz_targets")), programs);
    let mut bytes = 0;
    for name in &properties {
        assert!(manifest.contains(&format!("name = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n")), "{name}");
        let folder = fuzz().join("corpus").join(name);
        let inputs = names(&folder);
        assert!(!inputs.is_empty(), "{name} has no inputs");
        bytes += inputs.iter().map(|input| fs::metadata(folder.join(input)).unwrap().len()).sum::<u64>();
    }
    assert!(bytes < 1024 * 1024, "the corpora have {bytes} bytes");
}
