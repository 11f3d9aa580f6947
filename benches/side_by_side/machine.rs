//! Reads `/proc`: a description of the machine, and the processor time of processes.

use std::fs;

/// Describes the machine of the measurement. Ratios may carry over to other machines; figures do not.
pub fn describe(postgresql: &str, load_before: &str) -> String {
    let processor = line("/proc/cpuinfo", "model name").unwrap_or_default();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let kernel = read("/proc/sys/kernel/osrelease");
    let build = if cfg!(debug_assertions) { "debug: its figures mean nothing" } else { "optimised" };
    format!(
        "{processor}, {cores} cores, kernel {}, PostgreSQL {postgresql}, load before {load_before}, build {build}",
        kernel.trim()
    )
}

/// Returns the load averages over one, five and fifteen minutes.
pub fn load_average() -> String {
    read("/proc/loadavg").split(' ').take(3).collect::<Vec<_>>().join(" ")
}

/// Returns the machine's memory in bytes.
pub fn memory_of_all() -> u64 {
    let line = line("/proc/meminfo", "MemTotal").unwrap_or_default();
    line.trim_end_matches(" kB").parse::<u64>().map_or(0, |kilobytes| kilobytes * 1024)
}

/// Returns the value after a name and a colon.
fn line(file: &str, name: &str) -> Option<String> {
    let text = read(file);
    let line = text.lines().find(|line| line.starts_with(name))?;
    line.split_once(':').map(|(_, value)| value.trim().to_owned())
}

/// Returns the processor time of a process and its children so far in seconds, including children that have ended.
fn processor_time(pid: u32) -> f64 {
    /// The unit of Linux's counters for programs, on every architecture.
    const TICKS_PER_SECOND: f64 = 100.0;
    let family = processes().into_iter().filter(|process| process.pid == pid || process.parent == pid);
    family.map(|process| process.ticks as f64 / TICKS_PER_SECOND).sum()
}

/// Runs `work`. Returns its result, and the processor time of these processes and their children meanwhile in seconds.
pub fn measure_processor_time<T>(pids: &[u32], work: impl FnOnce() -> Result<T, String>) -> Result<(T, f64), String> {
    let now = || pids.iter().map(|pid| processor_time(*pid)).sum::<f64>();
    let before = now();
    let done = work()?;
    Ok((done, now() - before))
}

struct Process {
    pid: u32,
    parent: u32,
    /// The time in user and kernel mode, including ended children.
    ticks: u64,
}

fn processes() -> Vec<Process> {
    let pids = fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    pids.filter_map(|pid: u32| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // After the name, which is in brackets: state, parent; utime, stime, cutime and cstime are the 12th to 15th.
        let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
        let ticks = fields.get(11..15)?.iter().filter_map(|field| field.parse::<u64>().ok()).sum();
        Some(Process { pid, parent: fields.get(1)?.parse().ok()?, ticks })
    })
    .collect()
}

fn read(file: &str) -> String {
    fs::read_to_string(file).unwrap_or_default()
}
