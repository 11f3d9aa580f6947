//! Fingerprints of JSON bodies of 1 KiB: the canonical form and its hash, as they are computed for each request.

use std::time::Duration;

use canonical_json::canonicalize;
use http::HeaderMap;
use http::header::{CONTENT_TYPE, HeaderValue};
use oncegate_domain::fingerprint::{FingerprintInput, FingerprintRules, Recipe, Secrets};
use oncegate_domain::normal_path::RequestPath;

use crate::options::Options;
use crate::report::BenchmarkReport;
use crate::report::Target::AtLeast;

const ROUND: Duration = Duration::from_millis(200);
const SIZE: usize = 1024;

pub fn run(options: &Options, report: &mut BenchmarkReport) {
    let [shuffled, pretty] = [order("", ""), order("\n    ", " ")];
    let canonical = String::from_utf8(canonicalize(shuffled.as_bytes()).unwrap().into_owned()).unwrap();
    let bodies = [("canonical", canonical), ("shuffled", shuffled), ("pretty-printed", pretty)];
    let mut speeds = bodies.each_ref().map(|_| Vec::new());
    for _ in 0..options.rounds() {
        for ((_, body), speeds) in bodies.iter().zip(&mut speeds) {
            speeds.push(megabytes_per_second(body));
        }
    }
    for ((name, body), speeds) in bodies.iter().zip(speeds) {
        let what = format!("canonical JSON and SHA-256, {} bytes, {name}: MB/s on one core", body.len());
        let meaning = "How fast a JSON body becomes its fingerprint.";
        report.add_check(what, speeds, AtLeast(300.0), meaning);
    }
}

/// Returns an order of about 1 KiB with unsorted members.
fn order(indent: &str, space: &str) -> String {
    let mut lines = Vec::new();
    loop {
        let number = lines.len();
        lines.push(format!(
            r#"{indent}{{"sku":{space}"item-{number:04}","price":{space}{}.25,"name":{space}"Käse {number}","count":{space}{number}}}"#,
            number * 7 + 1
        ));
        let body = format!(
            r#"{{{indent}"lines":{space}[{}],{indent}"customer":{space}"cus_9s6XKzkNRiz8i3",{indent}"paid":{space}false,{indent}"amount":{space}100000}}"#,
            lines.join(",")
        );
        if body.len() >= SIZE {
            return body;
        }
    }
}

fn megabytes_per_second(body: &str) -> f64 {
    let (recipe, secrets) = (Recipe::new(FingerprintRules::default(), None), Secrets::new([]));
    let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static("application/json"))]);
    let path = RequestPath::new("/v1/payments");
    let parts = FingerprintInput {
        method: "POST",
        path: &path,
        host: None,
        query: None,
        headers: &headers,
        body: body.as_bytes(),
    };
    let (begun, mut bytes) = (processor_time(), 0);
    while processor_time() - begun < ROUND {
        for _ in 0..100 {
            std::hint::black_box(recipe.fingerprint(std::hint::black_box(&parts), &secrets).unwrap());
            bytes += body.len();
        }
    }
    bytes as f64 / (processor_time() - begun).as_secs_f64() / 1e6
}

/// Returns the processor time of this thread. The work never waits, so other processes on the core do not change it.
fn processor_time() -> Duration {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}
