//! The process's own metrics (CPU, memory, threads, file descriptors), under the names that Prometheus' own clients
//! use. They are read from `/proc` at each scrape; without `/proc` nothing is written.

use std::fmt;
use std::fs;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::counter::ConstCounter;
use prometheus_client::metrics::gauge::ConstGauge;

/// Reads and writes the metrics of this process at each scrape.
#[derive(Debug)]
pub struct ProcessCollector;

#[derive(Clone, Copy, Debug, PartialEq)]
struct ProcessNumbers {
    cpu_seconds: f64,
    started: f64,
    resident_bytes: u64,
    virtual_bytes: u64,
    threads: u64,
}

impl Collector for ProcessCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let mut write = |name: &str, help: &str, metric: &dyn EncodeMetric| {
            metric.encode(encoder.encode_descriptor(name, help, None, metric.metric_type())?)
        };
        if let Some(numbers) = read_numbers() {
            let cpu = ConstCounter::new(numbers.cpu_seconds);
            write("process_cpu_seconds", "User and system CPU time, in seconds.", &cpu)?;
            let started = ConstGauge::new(numbers.started);
            write("process_start_time_seconds", "When the process was started, in seconds since 1970.", &started)?;
            let resident = ConstGauge::new(numbers.resident_bytes);
            write("process_resident_memory_bytes", "Memory that is in RAM.", &resident)?;
            let virtual_bytes = ConstGauge::new(numbers.virtual_bytes);
            write("process_virtual_memory_bytes", "Address space.", &virtual_bytes)?;
            write("process_threads", "Threads.", &ConstGauge::new(numbers.threads))?;
        }
        if let Ok(open) = fs::read_dir("/proc/self/fd") {
            // One of them is this directory.
            let open = (open.count() as u64).saturating_sub(1);
            write("process_open_fds", "Open file descriptors.", &ConstGauge::new(open))?;
        }
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        limit.map_or(Ok(()), |limit| {
            write("process_max_fds", "How many file descriptors may be open.", &ConstGauge::new(limit))
        })
    }
}

fn read_numbers() -> Option<ProcessNumbers> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    let booted = fs::read_to_string("/proc/stat").ok()?;
    let booted = booted.lines().find_map(|line| line.strip_prefix("btime ")?.trim().parse().ok())?;
    let ticks = rustix::param::clock_ticks_per_second();
    parse(&stat, booted, ticks as f64, rustix::param::page_size() as u64)
}

/// Parses `/proc/PID/stat` (proc_pid_stat(5)). The program's name is the second field, in brackets, and may contain any
/// character.
fn parse(stat: &str, booted: u64, ticks: f64, page: u64) -> Option<ProcessNumbers> {
    let (_, rest) = stat.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    // The third field of the line is the first one here.
    let field = |number: usize| fields.get(number - 3)?.parse::<u64>().ok();
    Some(ProcessNumbers {
        cpu_seconds: (field(14)? + field(15)?) as f64 / ticks,
        started: booted as f64 + field(22)? as f64 / ticks,
        resident_bytes: field(24)? * page,
        virtual_bytes: field(23)?,
        threads: field(20)?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_parsed_whatever_the_program_is_called() {
        let stat =
            "7 (a ) b) S 1 7 7 0 -1 4194560 100 0 0 0 250 50 0 0 20 0 9 0 12345 1048576 256 18446744073709551615";
        let numbers = parse(stat, 1_000, 100.0, 4096).unwrap();
        let expected = ProcessNumbers {
            cpu_seconds: 3.0,
            started: 1_123.45,
            resident_bytes: 1 << 20,
            virtual_bytes: 1 << 20,
            threads: 9,
        };
        assert_eq!(numbers, expected);
        assert_eq!(parse("7 (a", 1, 1.0, 1), None);
    }
}
