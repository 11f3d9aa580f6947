//! Puts the mutants of `cargo mutants --list --json` into a copy of the sources, each behind a switch: the environment
//! variable `ONCEGATE_MUTANT` activates the mutant with its number in the list. So one build serves for all of them.
//!
//! ```text
//! mutant-switches TREE LIST LEFT_OUT > regions.json
//! ```
//!
//! `LEFT_OUT` is a JSON array of the numbers that do not compile. The output tells the place of each mutant in the new
//! text of its file, by which `mutants/run` finds the mutant that causes a compiler's error, and the numbers of the
//! mutants without a switch.

mod place;
mod rewrite;

use std::collections::{BTreeMap, HashSet};
use std::error::Error;
use std::path::PathBuf;
use std::{env, fs};

use place::Places;
use rewrite::{Region, Rewriter};
use serde::{Deserialize, Serialize};

/// An entry of the list.
#[derive(Deserialize)]
struct Mutant {
    file: String,
    genre: String,
    replacement: String,
    span: LineSpan,
}

#[derive(Deserialize)]
struct LineSpan {
    start: LineColumn,
    end: LineColumn,
}

/// Both count from 1; the column counts characters.
#[derive(Deserialize)]
struct LineColumn {
    line: usize,
    column: usize,
}

#[derive(Default, Serialize)]
struct Report {
    regions: BTreeMap<String, Vec<Region>>,
    not_switchable: Vec<usize>,
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<PathBuf> = env::args_os().skip(1).map(PathBuf::from).collect();
    let [tree, list, left_out] = &arguments[..] else { return Err("usage: mutant-switches TREE LIST LEFT_OUT".into()) };
    let list: Vec<Mutant> = serde_json::from_slice(&fs::read(list)?)?;
    let left_out: HashSet<usize> = serde_json::from_slice(&fs::read(left_out)?)?;

    let mut by_file: BTreeMap<&str, Vec<(usize, &Mutant)>> = BTreeMap::new();
    for (number, mutant) in list.iter().enumerate().filter(|(number, _)| !left_out.contains(number)) {
        by_file.entry(&mutant.file).or_default().push((number, mutant));
    }
    let mut report = Report::default();
    for (file, mutants) in by_file {
        let path = tree.join(file);
        let source = fs::read_to_string(&path)?;
        let places = Places::of(&syn::parse_file(&source).map_err(|error| format!("{file}: {error}"))?);
        let lines = line_starts(&source);
        let mut rewriter = Rewriter::new(&source);
        for (number, mutant) in mutants {
            let range = offset(&source, &lines, &mutant.span.start)..offset(&source, &lines, &mutant.span.end);
            match places.edit(&mutant.genre, range, &mutant.replacement) {
                Some(edit) => rewriter.add(number, edit),
                None => report.not_switchable.push(number),
            }
        }
        let (text, regions) = rewriter.finish();
        fs::write(&path, text)?;
        report.regions.insert(file.to_owned(), regions);
    }
    println!("{}", serde_json::to_string(&report)?);
    Ok(())
}

fn line_starts(source: &str) -> Vec<usize> {
    std::iter::once(0).chain(source.match_indices('\n').map(|(index, _)| index + 1)).collect()
}

fn offset(source: &str, lines: &[usize], at: &LineColumn) -> usize {
    let line = lines[at.line - 1];
    let characters = source[line..].char_indices().map(|(index, _)| line + index);
    characters.chain(std::iter::once(source.len())).nth(at.column - 1).unwrap_or(source.len())
}
