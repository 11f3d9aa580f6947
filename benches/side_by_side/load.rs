//! The load: a closed loop for throughput, a paced one for latency.
//!
//! It shares the processor with what it measures, so it does as little as can be: bytes made once, an answer read no further
//! than its status, its fields of interest and its length.

use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::task::JoinSet;

use crate::request::{Conversation, KNOWN, Load};

/// Threads of the closed loop.
const THREADS: usize = 2;

/// An answer that takes longer than this never comes.
const PATIENCE: Duration = Duration::from_secs(30);

/// What one round of a load came to.
pub struct Round {
    /// Answers per second, the warm-up left out.
    pub rate: f64,
    /// Seconds.
    pub p50: f64,
    /// Seconds.
    pub p99: f64,
    /// All answers, with those of the warm-up.
    pub answers: u64,
}

impl Round {
    fn of(mut latencies: Vec<f64>, answers: u64, length: Duration) -> Self {
        assert!(!latencies.is_empty(), "no answer came in {length:?}");
        latencies.sort_by(f64::total_cmp);
        let quantile = |q: f64| latencies[((latencies.len() - 1) as f64 * q) as usize];
        Self { rate: latencies.len() as f64 / length.as_secs_f64(), p50: quantile(0.5), p99: quantile(0.99), answers }
    }
}

/// When a round counts: not in its warm-up.
#[derive(Clone, Copy)]
struct Span {
    counts_from: Instant,
    end: Instant,
}

impl Span {
    fn from_now(length: Duration) -> Self {
        let counts_from = Instant::now() + length / 10;
        Self { counts_from, end: counts_from + length }
    }
}

/// What one connection saw.
#[derive(Default)]
struct Seen {
    latencies: Vec<f64>,
    answers: u64,
}

/// Each connection sends its next request when it has the answer to the last. The connections are dealt to the targets in
/// turn.
pub fn closed(targets: &[SocketAddr], load: Load, connections: usize, length: Duration) -> Result<Round, String> {
    let (round, span) = (next_round(), Span::from_now(length));
    let share = |thread: usize| {
        let numbers: Vec<usize> = (thread..connections).step_by(THREADS).collect();
        move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let talks = async {
                let mut talks = JoinSet::new();
                for number in numbers {
                    talks.spawn(converse(target_of(number, targets), Conversation::new(load, number, round), span));
                }
                let mut all = Vec::new();
                while let Some(seen) = talks.join_next().await {
                    all.push(seen.unwrap()?);
                }
                Ok(all)
            };
            let talks = runtime.block_on(async { tokio::time::timeout(length + PATIENCE, talks).await });
            talks.unwrap_or_else(|_| Err(format!("{load:?}: an answer has not come in {PATIENCE:?}")))
        }
    };
    let seen = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(share(thread))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<Vec<Seen>>, String>>()
    })?;
    let seen = seen.into_iter().flatten();
    let (latencies, answers) = seen.fold((Vec::new(), 0), |(mut latencies, answers), seen| {
        latencies.extend(seen.latencies);
        (latencies, answers + seen.answers)
    });
    Ok(Round::of(latencies, answers, length))
}

/// Two neighbours, which send the same keys where keys are contended, are never at the same target.
fn target_of(number: usize, targets: &[SocketAddr]) -> SocketAddr {
    targets[number % targets.len()]
}

fn next_round() -> u64 {
    static ROUNDS: AtomicU64 = AtomicU64::new(0);
    ROUNDS.fetch_add(1, Ordering::Relaxed)
}

async fn converse(target: SocketAddr, mut talk: Conversation, span: Span) -> Result<Seen, String> {
    let wrong = |error: std::io::Error| format!("{target}: {error}");
    let mut stream = tokio::net::TcpStream::connect(target).await.map_err(wrong)?;
    stream.set_nodelay(true).map_err(wrong)?;
    let mut seen = Seen::default();
    loop {
        let sent = Instant::now();
        if sent >= span.end {
            return Ok(seen);
        }
        stream.write_all(talk.next()).await.map_err(wrong)?;
        loop {
            let read = stream.read(talk.room()).await.map_err(wrong)?;
            if talk.came(read)? {
                break;
            }
        }
        seen.answers += 1;
        let now = Instant::now();
        // By when an answer came, so that a round has as many as came within it.
        if (span.counts_from..span.end).contains(&now) {
            seen.latencies.push((now - sent).as_secs_f64());
        }
    }
}

/// Requests come at random moments, so many a second over all connections, whether earlier ones are answered or not. One
/// that finds its connection busy has waited since its moment.
///
/// A thread for each connection: a runtime's timers are a millisecond coarse.
pub fn paced(
    target: SocketAddr,
    load: Load,
    connections: usize,
    per_second: f64,
    length: Duration,
) -> Result<Round, String> {
    let (round, span) = (next_round(), Span::from_now(length));
    let gap = connections as f64 / per_second;
    let seen = std::thread::scope(|scope| {
        let pace = |number| move || pace(target, Conversation::new(load, number, round), gap, span, number as u64);
        let threads: Vec<_> = (0..connections).map(|number| scope.spawn(pace(number))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Result<Vec<Seen>, String>>()
    })?;
    let answers = seen.iter().map(|seen| seen.answers).sum();
    Ok(Round::of(seen.into_iter().flat_map(|seen| seen.latencies).collect(), answers, length))
}

fn pace(target: SocketAddr, mut talk: Conversation, gap: f64, span: Span, seed: u64) -> Result<Seen, String> {
    let mut stream = connect(target)?;
    let mut gaps = Gaps { state: seed.wrapping_add(next_round() << 32), mean: gap };
    let mut seen = Seen::default();
    let mut due = Instant::now() + gaps.next();
    while due < span.end {
        let mut begun = Instant::now();
        // One that has waited for its connection counts from when it was due; how late a timer wakes us is not the
        // proxy's doing.
        if begun >= due {
            begun = due;
        } else {
            while begun < due {
                std::thread::park_timeout(due - begun);
                begun = Instant::now();
            }
        }
        exchange(&mut stream, &mut talk)?;
        seen.answers += 1;
        let now = Instant::now();
        if (span.counts_from..span.end).contains(&now) {
            seen.latencies.push((now - begun).as_secs_f64());
        }
        due += gaps.next();
    }
    Ok(seen)
}

/// Random gaps as between independent arrivals: exponentially distributed, by SplitMix64.
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

/// Makes the known keys known.
pub fn seed(target: SocketAddr) -> Result<(), String> {
    let (mut stream, mut talk) = (connect(target)?, Conversation::new(Load::Seed, 0, next_round()));
    (0..KNOWN).try_for_each(|_| exchange(&mut stream, &mut talk))
}

fn connect(target: SocketAddr) -> Result<std::net::TcpStream, String> {
    let connected = std::net::TcpStream::connect(target).and_then(|stream| {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(stream)
    });
    connected.map_err(|error| format!("{target}: {error}"))
}

fn exchange(stream: &mut std::net::TcpStream, talk: &mut Conversation) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("an exchange: {error}");
    stream.write_all(talk.next()).map_err(wrong)?;
    loop {
        let read = stream.read(talk.room()).map_err(wrong)?;
        if talk.came(read)? {
            return Ok(());
        }
    }
}
