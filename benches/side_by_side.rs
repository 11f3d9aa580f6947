//! `make bench`: what Oncegate costs, side by side on this machine.
//!
//! Every row runs in short rounds, interleaved with all the others, and the medians are what counts: a machine that is busy
//! for some seconds then disturbs all rows alike. Ratios carry over to other machines, numbers do not.

#![allow(clippy::unwrap_used, clippy::print_stdout, missing_docs)]

use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

#[path = "../tests/it/harness/postgres.rs"]
#[allow(dead_code, unused_imports)]
mod postgres;

const ROUNDS: usize = 5;
const ROUND: Duration = Duration::from_secs(2);
const CONNECTIONS: [usize; 3] = [1, 64, 256];
const BODY: &str = r#"{"amount":1000,"currency":"EUR","customer":"cus_9s6XKzkNRiz8i3","description":"order 1001"}"#;

/// What a row of the table sends, and where.
struct Subject {
    name: &'static str,
    target: SocketAddr,
    /// Each request under a key of its own, all under one key, or none.
    keys: Keys,
}

#[derive(Clone, Copy)]
enum Keys {
    Fresh,
    None,
    One,
}

fn main() {
    // `cargo test --benches` must not run for minutes.
    if std::env::args().any(|argument| argument == "--test") {
        return;
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(bench());
}

async fn bench() {
    let upstream = start_upstream().await;
    let folder = tempfile::tempdir().unwrap();
    let embedded = Proxy::start(upstream, &format!("sqlite:{}", folder.path().join("bench.db").display())).await;
    let database = postgres::database().await;
    let shared = Proxy::start(upstream, &database.url).await;
    let subjects = [
        Subject { name: "the service alone", target: upstream, keys: Keys::None },
        Subject { name: "pass-through", target: shared.address, keys: Keys::None },
        Subject { name: "first attempts, SQLite", target: embedded.address, keys: Keys::Fresh },
        Subject { name: "first attempts, PostgreSQL", target: shared.address, keys: Keys::Fresh },
        Subject { name: "replays, SQLite", target: embedded.address, keys: Keys::One },
        Subject { name: "replays, PostgreSQL", target: shared.address, keys: Keys::One },
    ];
    println!("{} rounds of {} s each, interleaved; medians\n", ROUNDS, ROUND.as_secs());
    println!("{:<28} {:>6} {:>10} {:>9} {:>9}  vs alone", "", "conns", "requests/s", "p50 ms", "p99 ms");
    for connections in CONNECTIONS {
        let mut rounds: Vec<Vec<Round>> = subjects.iter().map(|_| Vec::new()).collect();
        for _ in 0..ROUNDS {
            for (subject, rounds) in subjects.iter().zip(&mut rounds) {
                rounds.push(load(subject, connections).await);
            }
        }
        let alone = median(rounds[0].iter().map(|round| round.rate));
        for (subject, rounds) in subjects.iter().zip(&rounds) {
            let rate = median(rounds.iter().map(|round| round.rate));
            let p50 = median(rounds.iter().map(|round| round.p50));
            let p99 = median(rounds.iter().map(|round| round.p99));
            println!(
                "{:<28} {connections:>6} {rate:>10.0} {:>9.2} {:>9.2}  {:.2}",
                subject.name,
                p50 * 1e3,
                p99 * 1e3,
                rate / alone
            );
        }
        println!();
    }
}

struct Round {
    rate: f64,
    p50: f64,
    p99: f64,
}

fn median(values: impl Iterator<Item = f64>) -> f64 {
    let mut values: Vec<_> = values.collect();
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

/// Closed loop: each connection sends its next request when it has the answer to the last.
async fn load(subject: &Subject, connections: usize) -> Round {
    static FRESH: AtomicU64 = AtomicU64::new(0);
    let begun = Instant::now();
    let workers: Vec<_> = (0..connections)
        .map(|_| {
            let (target, keys) = (subject.target, subject.keys);
            tokio::spawn(async move {
                let mut stream = TcpStream::connect(target).await.unwrap();
                stream.set_nodelay(true).unwrap();
                let (mut buffer, mut latencies) = (vec![0; 16 * 1024], Vec::new());
                while begun.elapsed() < ROUND {
                    let key = match keys {
                        Keys::Fresh => format!(
                            "Idempotency-Key: bench-{}-{}\r\n",
                            std::process::id(),
                            FRESH.fetch_add(1, Ordering::Relaxed)
                        ),
                        Keys::None => String::new(),
                        Keys::One => "Idempotency-Key: bench-one\r\n".to_owned(),
                    };
                    let request = format!(
                        "POST /v1/payments HTTP/1.1\r\nHost: bench\r\nAuthorization: Bearer bench\r\n{key}\
                         Content-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
                        BODY.len()
                    );
                    let sent = Instant::now();
                    stream.write_all(request.as_bytes()).await.unwrap();
                    let status = read_response(&mut stream, &mut buffer).await;
                    // While the one key's first attempt is running, 409 is the right answer.
                    assert!(status == 201 || (status == 409 && matches!(keys, Keys::One)), "{status}");
                    latencies.push(sent.elapsed().as_secs_f64());
                }
                latencies
            })
        })
        .collect();
    let mut latencies = Vec::new();
    for worker in workers {
        latencies.extend(worker.await.unwrap());
    }
    let took = begun.elapsed().as_secs_f64();
    latencies.sort_by(f64::total_cmp);
    let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
    Round { rate: latencies.len() as f64 / took, p50: quantile(0.5), p99: quantile(0.99) }
}

/// Reads one response with a `Content-Length`; returns its status.
async fn read_response(stream: &mut TcpStream, buffer: &mut [u8]) -> u16 {
    let mut filled = 0;
    loop {
        let read = stream.read(&mut buffer[filled..]).await.unwrap();
        assert!(read > 0, "the connection was closed");
        filled += read;
        let Some(end) = memchr::memmem::find(&buffer[..filled], b"\r\n\r\n") else { continue };
        let head = std::str::from_utf8(&buffer[..end]).unwrap().to_ascii_lowercase();
        let length = head.split("\r\n").find_map(|line| line.strip_prefix("content-length: "));
        if filled >= end + 4 + length.map_or(0, |length| length.parse::<usize>().unwrap()) {
            return head[9..12].parse().unwrap();
        }
    }
}

/// A service that does nothing but answer: the least that any proxy could stand before.
async fn start_upstream() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let answer: Arc<[u8]> = Arc::from(
        format!(
            "HTTP/1.1 201 Created\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n{BODY}",
            BODY.len()
        )
        .into_bytes(),
    );
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let listener = listener.into_std().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(answer_all(stream, Arc::clone(&answer)));
            }
        });
    });
    address
}

async fn answer_all(mut stream: TcpStream, answer: Arc<[u8]>) {
    stream.set_nodelay(true).unwrap();
    let (mut buffer, mut filled) = (vec![0; 16 * 1024], 0);
    loop {
        match stream.read(&mut buffer[filled..]).await {
            Ok(read) if read > 0 => filled += read,
            _ => return,
        }
        // Requests here are a head and the one body.
        let Some(end) = memchr::memmem::find(&buffer[..filled], b"\r\n\r\n") else { continue };
        if filled >= end + 4 + BODY.len() {
            filled = 0;
            if stream.write_all(&answer).await.is_err() {
                return;
            }
        }
    }
}

struct Proxy {
    process: Child,
    address: SocketAddr,
}

impl Proxy {
    async fn start(upstream: SocketAddr, store: &str) -> Self {
        let free = || std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let address = free();
        let process = Command::new(env!("CARGO_BIN_EXE_oncegate"))
            .args(["run", "--upstream", &format!("http://{upstream}"), "--store", store])
            .args(["--listen", &address.to_string(), "--admin", &free().to_string()])
            .env("ONCEGATE_LOG", "error")
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        let deadline = Instant::now() + Duration::from_secs(30);
        while TcpStream::connect(address).await.is_err() {
            assert!(Instant::now() < deadline, "the proxy does not come up");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        Self { process, address }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
