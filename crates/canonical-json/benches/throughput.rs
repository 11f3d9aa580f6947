//! Canonicalization speed on one core, by spelling: `cargo bench -p canonical-json`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::hint::black_box;
use std::time::{Duration, Instant};

use canonical_json::canonicalize;

const ROUND: Duration = Duration::from_millis(500);

/// An order of about 1 KiB. Its members are not sorted.
fn order(indent: &str, space: &str) -> String {
    let line = |number: usize| {
        format!(
            r#"{indent}{{"sku":{space}"item-{number:04}","price":{space}{number}.25,"name":{space}"Käse {number}"}}"#
        )
    };
    let lines: Vec<_> = (0..14).map(line).collect();
    format!(
        r#"{{{indent}"lines":{space}[{}],{indent}"customer":{space}"cus_9s6X",{indent}"amount":{space}100000}}"#,
        lines.join(",")
    )
}

fn main() {
    let [shuffled, pretty] = [order("", ""), order("\n    ", " ")];
    let canonical = String::from_utf8(canonicalize(shuffled.as_bytes()).unwrap().into_owned()).unwrap();
    for (name, text) in [("canonical", canonical), ("shuffled", shuffled), ("pretty-printed", pretty)] {
        let (begun, mut bytes) = (Instant::now(), 0);
        while begun.elapsed() < ROUND {
            for _ in 0..100 {
                black_box(canonicalize(black_box(text.as_bytes())).unwrap());
                bytes += text.len();
            }
        }
        let megabytes_per_second = bytes as f64 / begun.elapsed().as_secs_f64() / 1e6;
        println!("{name}, {} bytes: {megabytes_per_second:.0} MB/s", text.len());
    }
}
