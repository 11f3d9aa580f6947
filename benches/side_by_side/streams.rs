//! A thousand event streams at once: the rate of events, their delay, processor time and memory, beside HAProxy and nginx.
//!
//! The service and the clients share one clock: each event carries the time at which it was sent. So the delay of an event is that of
//! the proxy, of two sockets, and of the machine, which also runs the service and the clients.

use std::net::SocketAddr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{MissedTickBehavior, interval_at};

use crate::machine;
use crate::process::Process;
use crate::programs::{start_streaming_haproxy, start_streaming_nginx, start_streaming_oncegate};
use crate::report::Target::{self, AtLeast};
use crate::report::{BenchmarkReport, Column};
use crate::testbed::{Testbed, create_database};

const STREAMS: usize = 1_000;
const PAUSE: Duration = Duration::from_millis(100);
const ONCEGATE: &str = "events of streams, stored";
const HAPROXY: &str = "events of streams, HAProxy";
const NGINX: &str = "events of streams, nginx without buffering";
const DIRECT: &str = "events of streams, no proxy";

/// The length of each stream: 30 s, and a part of that for shorter runs.
fn length(testbed: &Testbed) -> Duration {
    testbed.options.length() * 15
}

pub async fn run(testbed: &Testbed, report: &mut BenchmarkReport) -> Result<(), String> {
    let (length, database) = (length(testbed), create_database(&testbed.cluster).await);
    let service = start_service(length);
    let oncegate = start_streaming_oncegate(service, &database.url);
    let (haproxy, nginx) = (start_streaming_haproxy(service), start_streaming_nginx(service));
    let programs = [
        (DIRECT, None, Some(service)),
        (ONCEGATE, Some(&oncegate), Some(oncegate.addresses[0])),
        (HAPROXY, haproxy.as_ref(), haproxy.as_ref().map(|process| process.addresses[0])),
        (NGINX, nginx.as_ref(), nginx.as_ref().map(|process| process.addresses[0])),
    ];
    for round in 0..testbed.options.rounds() {
        for (name, process, address) in &programs {
            let Some(address) = *address else { continue };
            eprintln!("streams: round {} of {}: {name}", round + 1, testbed.options.rounds());
            measure(name, *process, address, round, report)?;
        }
    }
    report.compare(
        (ONCEGATE, DIRECT),
        STREAMS,
        Column::Rate,
        AtLeast(0.99),
        "Whether all events arrive at their pace.",
    );
    for other in [HAPROXY, NGINX] {
        let meaning = "The processor time for an event that is also stored, in units of one that only passes.";
        report.compare((ONCEGATE, other), STREAMS, Column::Program, Target::None, meaning);
    }
    Ok(())
}

/// Holds all streams at once, from the first to the last event.
fn measure(
    name: &'static str,
    process: Option<&Process>,
    address: SocketAddr,
    round: usize,
    report: &mut BenchmarkReport,
) -> Result<(), String> {
    let pids: Vec<u32> = process.iter().map(|process| process.pid).collect();
    let idle = process.map_or(0, |process| machine::memory(process.pid));
    let clients = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(read_all(address, round))
    });
    let mut held = 0;
    let (delays, processor) = machine::measure_processor_time(&pids, || {
        let begun = Instant::now();
        while !clients.is_finished() {
            std::thread::park_timeout(Duration::from_secs(1));
            held = held.max(process.map_or(0, |process| machine::memory(process.pid)));
        }
        let delays = clients.join().unwrap()?;
        Ok((delays, begun.elapsed()))
    })?;
    let (mut delays, took) = delays;
    delays.sort_by(f64::total_cmp);
    let quantile = |q: f64| delays[((delays.len() - 1) as f64 * q) as usize];
    let events = delays.len() as f64;
    let figures = [
        (Column::Rate, events / took.as_secs_f64()),
        (Column::P50, quantile(0.5)),
        (Column::P99, quantile(0.99)),
        (Column::Program, processor / events),
    ];
    report.add(name, STREAMS, &figures[..if process.is_some() { 4 } else { 3 }]);
    if process.is_some() {
        report.memory.push((name, idle, held));
    }
    Ok(())
}

/// Reads all streams to their ends. Returns the delay of each event in seconds.
async fn read_all(address: SocketAddr, round: usize) -> Result<Vec<f64>, String> {
    let mut streams = JoinSet::new();
    for number in 0..STREAMS {
        streams.spawn(read(address, format!("{round}-{number}")));
        if number % 20 == 19 {
            // The streams do not all tick at the same moment.
            tokio::time::sleep(PAUSE / 50).await;
        }
    }
    let mut all = Vec::new();
    while let Some(delays) = streams.join_next().await {
        all.extend(delays.unwrap().map_err(|error| format!("{address}: {error}"))?);
    }
    Ok(all)
}

async fn read(address: SocketAddr, key: String) -> std::io::Result<Vec<f64>> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!(
        "POST /stream HTTP/1.1\r\nHost: {address}\r\nAuthorization: Bearer bench\r\nIdempotency-Key: {key}\r\n\
         Content-Length: 0\r\n\r\n"
    );
    stream.write_all(request.as_bytes()).await?;
    let (mut delays, mut buffer, mut filled) = (Vec::new(), vec![0; 4096], 0);
    loop {
        let read = stream.read(&mut buffer[filled..]).await?;
        let received = elapsed();
        if read == 0 {
            return Err(std::io::Error::other(format!("cut after {} events", delays.len())));
        }
        filled += read;
        let (mut rest, mut is_last) = (&buffer[..filled], false);
        while let Some(end) = memchr::memchr(b'\n', rest) {
            let line = &rest[..end];
            rest = &rest[end + 1..];
            if let Some(sent) = line.strip_prefix(b"data: ") {
                let sent: f64 = std::str::from_utf8(sent).ok().and_then(|sent| sent.parse().ok()).unwrap_or(f64::NAN);
                delays.push(received - sent);
            }
            if delays.is_empty() && line.starts_with(b"HTTP/1.1 ") && !line.starts_with(b"HTTP/1.1 200") {
                return Err(std::io::Error::other(String::from_utf8_lossy(line).into_owned()));
            }
            is_last |= line == b"0\r";
        }
        if is_last {
            return Ok(delays);
        }
        let left = rest.len();
        buffer.copy_within(filled - left..filled, 0);
        filled = left;
    }
}

/// The seconds since the first call.
fn elapsed() -> f64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_secs_f64()
}

/// Starts a service whose every answer is a stream of events, on a thread of its own.
fn start_service(length: Duration) -> SocketAddr {
    elapsed();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async move {
            let listener = TcpListener::from_std(listener).unwrap();
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                tokio::spawn(serve(stream, length));
            }
        });
    });
    address
}

/// Answers the requests of one connection. They have no body.
async fn serve(mut stream: TcpStream, length: Duration) -> std::io::Result<()> {
    stream.set_nodelay(true)?;
    let mut buffer = vec![0; 4096];
    loop {
        let mut filled = 0;
        while memchr::memmem::find(&buffer[..filled], b"\r\n\r\n").is_none() {
            match stream.read(&mut buffer[filled..]).await? {
                0 => return Ok(()),
                read => filled += read,
            }
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).await?;
        let mut ticks = interval_at(tokio::time::Instant::now() + PAUSE, PAUSE);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
        for _ in 0..length.as_millis() / PAUSE.as_millis() {
            ticks.tick().await;
            let event = format!("data: {:.6}\n\n", elapsed());
            stream.write_all(format!("{:x}\r\n{event}\r\n", event.len()).as_bytes()).await?;
        }
        stream.write_all(b"0\r\n\r\n").await?;
    }
}
