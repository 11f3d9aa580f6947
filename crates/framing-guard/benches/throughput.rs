//! The guard's cost for each request on one core: `cargo bench -p framing-guard`.

#![allow(clippy::print_stdout, clippy::unwrap_used)]

use std::time::{Duration, Instant};

use framing_guard::{FramingTimeouts, GuardedStream};
use tokio::io::{AsyncReadExt, join, sink};

const ROUND: Duration = Duration::from_millis(500);
const REQUESTS: usize = 1_000;
const REQUEST: &str = "POST /v1/payments HTTP/1.1\r\nHost: api.example\r\nUser-Agent: bench\r\nAccept: */*\r\n\
    Authorization: Bearer 0123456789abcdef\r\nIdempotency-Key: 6ba7b810-9dad-11d1-80b4-00c04fd430c8\r\n\
    Content-Type: application/json\r\nContent-Length: 26\r\n\r\n{\"amount\":10,\"to\":\"alice\"}";

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let requests = REQUEST.repeat(REQUESTS);
    let mut buffer = vec![0; 16 * 1024];
    let (begun, mut rounds) = (Instant::now(), 0);
    while begun.elapsed() < ROUND {
        let (mut stream, verdicts) = GuardedStream::new(join(requests.as_bytes(), sink()), FramingTimeouts::default());
        let mut passed = 0;
        while passed < requests.len() {
            passed += stream.read(&mut buffer).await.unwrap();
        }
        for _ in 0..REQUESTS {
            verdicts.next().unwrap();
        }
        rounds += 1;
    }
    let nanos = begun.elapsed().as_nanos() as f64 / f64::from(rounds) / REQUESTS as f64;
    println!("a request of {} bytes: {nanos:.0} ns", REQUEST.len());
}
