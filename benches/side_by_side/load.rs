//! The load generator: a closed loop.
//!
//! It shares the processor with the measured programs, so it does as little as possible: a request's bytes are built
//! once, and of an answer only the status, the needed fields and the length are parsed.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::report::{BenchmarkReport, Column};
use crate::request::{KNOWN_KEYS, Load, RequestSequence};

/// The threads of the closed loop.
const THREADS: usize = 2;

/// The time limit for an answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(30);

/// The result of one round of a load.
pub struct Round {
    /// Answers per second, without the warm-up.
    pub rate: f64,
    /// The median latency in seconds.
    pub p50: f64,
    /// The 99th percentile of the latency in seconds.
    pub p99: f64,
    /// All answers, including those of the warm-up.
    pub answers: u64,
}

impl Round {
    fn from_latencies(mut latencies: Vec<f64>, answers: u64, length: Duration) -> Result<Self, String> {
        if latencies.is_empty() {
            return Err(format!("no answer came in {length:?}"));
        }
        latencies.sort_by(f64::total_cmp);
        let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
        let rate = latencies.len() as f64 / length.as_secs_f64();
        Ok(Self { rate, p50: quantile(0.5), p99: quantile(0.99), answers })
    }
}

impl BenchmarkReport {
    /// Adds one round of a load.
    pub fn add_round(&mut self, name: &str, connections: usize, round: &Round) {
        let figures = [(Column::Rate, round.rate), (Column::P50, round.p50), (Column::P99, round.p99)];
        self.add(name, connections, &figures);
    }
}

/// The measured time of a round, after its warm-up.
#[derive(Clone, Copy)]
struct MeasuredTime {
    counts_from: Instant,
    end: Instant,
}

impl MeasuredTime {
    fn from_now(length: Duration) -> Self {
        let counts_from = Instant::now() + length / 10;
        Self { counts_from, end: counts_from + length }
    }
}

/// The result of one connection.
#[derive(Default)]
struct ConnectionResult {
    latencies: Vec<f64>,
    answers: u64,
}

/// Runs a closed loop over these addresses in turn: each connection sends its next request when it has the answer to
/// the last.
pub fn run_closed(targets: &[SocketAddr], load: Load, connections: usize, length: Duration) -> Result<Round, String> {
    let (round, span) = (next_round(), MeasuredTime::from_now(length));
    let share = |thread: usize| {
        let numbers: Vec<usize> = (thread..connections).step_by(THREADS).collect();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let exchanges = async {
                let mut exchanges = JoinSet::new();
                for number in numbers {
                    let target = targets[number % targets.len()];
                    exchanges.spawn(drive_connection(target, RequestSequence::new(load, number, round), span));
                }
                let mut all = Vec::new();
                while let Some(result) = exchanges.join_next().await {
                    all.push(result.unwrap()?);
                }
                Ok(all)
            };
            let exchanges = runtime.block_on(async { tokio::time::timeout(length + ANSWER_TIMEOUT, exchanges).await });
            exchanges.unwrap_or_else(|_| Err(format!("{load:?}: an answer has not come in {ANSWER_TIMEOUT:?}")))
        }
    };
    let results = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(share(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<Vec<ConnectionResult>>, String>>()
    })?;
    let results = results.into_iter().flatten();
    let (latencies, answers) = results.fold((Vec::new(), 0), |(mut latencies, answers), result| {
        latencies.extend(result.latencies);
        (latencies, answers + result.answers)
    });
    Round::from_latencies(latencies, answers, length)
}

fn next_round() -> u64 {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    ROUNDS.fetch_add(1, Ordering::Relaxed)
}

async fn drive_connection(
    target: SocketAddr,
    mut requests: RequestSequence,
    span: MeasuredTime,
) -> Result<ConnectionResult, String> {
    let failure = |error: std::io::Error| format!("{target}: {error}");
    let mut stream = tokio::net::TcpStream::connect(target).await.map_err(failure)?;
    stream.set_nodelay(true).map_err(failure)?;
    let mut result = ConnectionResult::default();
    loop {
        let sent = Instant::now();
        if sent >= span.end {
            return Ok(result);
        }
        stream.write_all(requests.next_request()).await.map_err(failure)?;
        loop {
            let read = stream.read(requests.free_buffer()).await.map_err(failure)?;
            if requests.add_received(read)? {
                break;
            }
        }
        result.answers += 1;
        let now = Instant::now();
        // By the time of the answer, so that a round counts exactly the answers within it.
        if (span.counts_from..span.end).contains(&now) {
            result.latencies.push((now - sent).as_secs_f64());
        }
    }
}

/// Sends one request for each known key, so that replays find them.
pub fn seed_known_keys(target: SocketAddr) -> Result<(), String> {
    let (mut stream, mut requests) = (connect(target)?, RequestSequence::new(Load::Seed, 0, next_round()));
    (0..KNOWN_KEYS).try_for_each(|_| exchange(&mut stream, &mut requests))
}

/// Lets one instance execute keys, and asks the other one for each at once. The latencies are those of the other one.
pub fn run_young_replays(one: SocketAddr, other: SocketAddr, length: Duration) -> Result<Round, String> {
    let round = next_round();
    // Two neighbours send the same keys.
    let [mut first, mut second] = [0, 1].map(|number| RequestSequence::new(Load::Contended, number, round));
    let (mut to_one, mut to_other) = (connect(one)?, connect(other)?);
    let (mut latencies, end) = (Vec::new(), Instant::now() + length);
    while Instant::now() < end {
        exchange(&mut to_one, &mut first)?;
        let asked = Instant::now();
        exchange(&mut to_other, &mut second)?;
        latencies.push(asked.elapsed().as_secs_f64());
    }
    let answers = 2 * latencies.len() as u64;
    Round::from_latencies(latencies, answers, length)
}

fn connect(target: SocketAddr) -> Result<std::net::TcpStream, String> {
    let connected = std::net::TcpStream::connect(target).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(ANSWER_TIMEOUT))?;
        Ok(stream)
    });
    connected.map_err(|error| format!("{target}: {error}"))
}

fn exchange(stream: &mut std::net::TcpStream, requests: &mut RequestSequence) -> Result<(), String> {
    let failure = |error: std::io::Error| format!("an exchange: {error}");
    stream.write_all(requests.next_request()).map_err(failure)?;
    loop {
        let read = stream.read(requests.free_buffer()).map_err(failure)?;
        if requests.add_received(read)? {
            return Ok(());
        }
    }
}
