//! Reads a JSON text and prints the canonical form of the selected parts, or of all of it.
//!
//! ```sh
//! echo '{"b": 1.0, "a": [1e2]}' | cargo run --example canonical
//! echo '{"b": 1.0, "a": [1e2]}' | cargo run --example canonical -- --include /a
//! echo '[{"id": 1, "at": 2}]' | cargo run --example canonical -- --exclude '/*/at'
//! ```

use std::error::Error;
use std::io::{self, Read, Write};
use std::process::ExitCode;

use canonical_json::{Selection, canonicalize_selected};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("canonical: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), Box<dyn Error>> {
    let selection = selection(std::env::args().skip(1))?;
    let mut text = Vec::new();
    io::stdin().read_to_end(&mut text)?;
    let canonical = canonicalize_selected(&text, &selection)?;
    let mut output = io::stdout().lock();
    output.write_all(&canonical)?;
    output.write_all(b"\n")?;
    Ok(())
}

/// Reads `--include POINTER` and `--exclude POINTER`, each any number of times.
fn selection(mut arguments: impl Iterator<Item = String>) -> Result<Selection, Box<dyn Error>> {
    let mut selection = Selection::default();
    while let Some(option) = arguments.next() {
        let pointers = match &*option {
            "--include" => &mut selection.include,
            "--exclude" => &mut selection.exclude,
            _ => return Err("usage: canonical [--include POINTER]... [--exclude POINTER]... <FILE".into()),
        };
        let pointer = arguments.next().ok_or_else(|| format!("{option} needs a JSON Pointer, such as /a/0"))?;
        pointers.push(pointer.parse().map_err(|error| format!("{pointer}: {error}"))?);
    }
    Ok(selection)
}
