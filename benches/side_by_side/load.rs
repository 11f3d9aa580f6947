//! The load generator: a closed loop for throughput, a paced one for latency.
//!
//! It shares the processor with the measured programs, so it does as little as possible: a request's bytes are built once,
//! and of an answer only the status, the needed fields and the length are parsed.

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
    fn from_latencies(mut latencies: Vec<f64>, answers: u64, length: Duration) -> Self {
        assert!(!latencies.is_empty(), "no answer came in {length:?}");
        latencies.sort_by(f64::total_cmp);
        let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
        Self { rate: latencies.len() as f64 / length.as_secs_f64(), p50: quantile(0.5), p99: quantile(0.99), answers }
    }
}

impl BenchmarkReport {
    /// Adds one round of a load.
    pub fn add_round(&mut self, name: &str, connections: usize, round: &Round) {
        let figures = [(Column::Rate, round.rate), (Column::P50, round.p50), (Column::P99, round.p99)];
        self.add(name, connections, &figures);
    }

    /// Adds one round of a load, with the processor time of the programs and of PostgreSQL meanwhile.
    pub fn add_costs(&mut self, name: &str, connections: usize, ((round, programs), server): ((Round, f64), f64)) {
        self.add_round(name, connections, &round);
        let answers = round.answers as f64;
        self.add(name, connections, &[(Column::Program, programs / answers), (Column::Server, server / answers)]);
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

/// Runs a closed loop: each connection sends its next request when it has the answer to the last. The connections are
/// assigned to the targets in turn.
pub fn run_closed(targets: &[SocketAddr], load: Load, connections: usize, length: Duration) -> Result<Round, String> {
    let (round, span) = (next_round(), MeasuredTime::from_now(length));
    let share = |thread: usize| {
        let numbers: Vec<usize> = (thread..connections).step_by(THREADS).collect();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let exchanges = async {
                let mut exchanges = JoinSet::new();
                for number in numbers {
                    exchanges.spawn(drive_connection(
                        target_of(number, targets),
                        RequestSequence::new(load, number, round),
                        span,
                    ));
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
    Ok(Round::from_latencies(latencies, answers, length))
}

/// Assigns connections to targets in turn. Two neighbours send the same keys in a contended load; with two targets they are
/// never at the same one.
fn target_of(number: usize, targets: &[SocketAddr]) -> SocketAddr {
    targets[number % targets.len()]
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

/// Runs a paced load: requests are due at random times, `per_second` over all connections, whether earlier ones are answered
/// or not. The latency of a request that finds its connection busy counts from its due time.
///
/// Each connection has a thread: a runtime's timers have a resolution of only 1 ms.
pub fn run_paced(
    target: SocketAddr,
    load: Load,
    connections: usize,
    per_second: f64,
    length: Duration,
) -> Result<Round, String> {
    let (round, span) = (next_round(), MeasuredTime::from_now(length));
    let gap = connections as f64 / per_second;
    let results = std::thread::scope(|scope| {
        let start = |number| {
            move || drive_paced_connection(target, RequestSequence::new(load, number, round), gap, span, number as u64)
        };
        let threads: Vec<_> = (0..connections).map(|number| scope.spawn(start(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<ConnectionResult>, String>>()
    })?;
    let answers = results.iter().map(|result| result.answers).sum();
    Ok(Round::from_latencies(results.into_iter().flat_map(|result| result.latencies).collect(), answers, length))
}

fn drive_paced_connection(
    target: SocketAddr,
    mut requests: RequestSequence,
    gap: f64,
    span: MeasuredTime,
    seed: u64,
) -> Result<ConnectionResult, String> {
    let mut stream = connect(target)?;
    let mut gaps = Gaps { state: seed.wrapping_add(next_round() << 32), mean: gap };
    let mut result = ConnectionResult::default();
    let mut due = Instant::now() + gaps.next();
    while due < span.end {
        let mut started = Instant::now();
        // A request that waited for its connection counts from its due time. A late timer is not the proxy's fault, so other
        // requests count from when they are sent.
        if started >= due {
            started = due;
        } else {
            while started < due {
                std::thread::park_timeout(due - started);
                started = Instant::now();
            }
        }
        exchange(&mut stream, &mut requests)?;
        result.answers += 1;
        let now = Instant::now();
        if (span.counts_from..span.end).contains(&now) {
            result.latencies.push((now - started).as_secs_f64());
        }
        due += gaps.next();
    }
    Ok(result)
}

/// Random gaps between independent arrivals: exponentially distributed, by SplitMix64.
struct Gaps {
    state: u64,
    mean: f64,
}

impl Gaps {
    fn next(&mut self) -> Duration {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.state;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        let uniform = ((bits ^ (bits >> 31)) >> 11) as f64 / (1_u64 << 53) as f64;
        Duration::from_secs_f64(-self.mean * (1.0 - uniform).ln())
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
    Ok(Round::from_latencies(latencies, answers, length))
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
