//! The real binary in a process of its own.

use std::ffi::OsString;
use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use rustix::process::{Pid, Resource, Rlimit, Signal, kill_process, prlimit};
use serde_json::Value;
use tempfile::TempDir;
use tokio::sync::watch;
use tokio::time::timeout;

use super::TEST_TIMEOUT;
use super::client::{Client, Request};

/// Longer than a drain, which keeps outcomes for a store that is away up to the default `drain_timeout` of 40 s, and a
/// start.
const HAND_OVER_MAX: Duration = Duration::from_secs(60);

/// A running proxy. It is killed when this value is dropped.
pub struct Proxy {
    /// The address for clients.
    pub listen: SocketAddr,
    /// The address of the admin listener.
    pub admin: SocketAddr,
    process: Process,
}

/// A proxy's configuration, from which any number of proxies can be started.
#[derive(Clone)]
pub struct Setup {
    store_url: String,
    environment: Vec<(String, String)>,
    upstream: Option<String>,
    top: Vec<String>,
    admin: Vec<String>,
    telemetry: Vec<String>,
    log: (String, String),
    store: Vec<String>,
    defaults: Vec<String>,
    services: Vec<String>,
    routes: Vec<String>,
    consumers: Vec<String>,
    events: Vec<String>,
    wrapper: Vec<OsString>,
    handed: Vec<(String, Arc<OwnedFd>)>,
    files: Vec<(String, String)>,
    written: Option<String>,
}

/// The end of a proxy that could not start.
#[derive(Debug)]
pub struct Ended {
    /// The exit code.
    pub code: i32,
    /// Its standard error.
    pub stderr: String,
    /// Its configuration file.
    pub file: PathBuf,
}

impl Proxy {
    pub fn on(store_url: &str) -> Setup {
        Setup {
            store_url: store_url.to_owned(),
            environment: Vec::new(),
            upstream: None,
            top: Vec::new(),
            admin: Vec::new(),
            telemetry: Vec::new(),
            log: ("debug".to_owned(), "json".to_owned()),
            store: Vec::new(),
            defaults: Vec::new(),
            services: Vec::new(),
            routes: Vec::new(),
            consumers: Vec::new(),
            events: Vec::new(),
            wrapper: Vec::new(),
            handed: Vec::new(),
            files: Vec::new(),
            written: None,
        }
    }

    /// From a file written elsewhere; the test's addresses are set through the environment.
    pub fn from_file_text(text: &str, store_url: &str, upstream: SocketAddr) -> Setup {
        let setup = Setup { written: Some(text.to_owned()), ..Self::on(store_url) };
        setup
            .environment("ONCEGATE_LISTEN", "127.0.0.1:0")
            .environment("ONCEGATE_ADMIN_LISTEN", "127.0.0.1:0")
            .environment("ONCEGATE_STORE_URL", store_url)
            .environment("ONCEGATE_UPSTREAM", &format!("http://{upstream}"))
    }

    pub fn client(&self) -> Client {
        Client { address: self.listen }
    }

    pub fn post(&self, path: &str) -> Request {
        self.client().post(path)
    }

    /// Reads the readiness probe of the admin listener.
    pub async fn readyz(&self) -> (u16, Value) {
        let response = Client { address: self.admin }.get("/readyz").send().await;
        (response.status, serde_json::from_slice(&response.body).unwrap())
    }

    /// All log lines so far, as text.
    pub fn output(&self) -> String {
        self.process.stderr.borrow().join("\n")
    }

    /// All JSON log lines so far.
    pub fn logged(&self) -> Vec<Value> {
        self.process.stderr.borrow().iter().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for a log line whose message has these words.
    pub async fn wait_for_log(&self, words: &str) -> Value {
        let mut stderr = self.process.stderr.subscribe();
        let found = |lines: &Vec<String>| lines.iter().find_map(|line| message(line, words));
        let waited = timeout(TEST_TIMEOUT, stderr.wait_for(|lines| found(lines).is_some())).await;
        let lines = waited.unwrap_or_else(|_| panic!("{words:?} is never logged")).unwrap();
        found(&lines).unwrap()
    }

    /// Waits for this many such lines.
    pub async fn wait_for_logs(&self, words: &str, times: usize) {
        let mut stderr = self.process.stderr.subscribe();
        let enough = |lines: &Vec<String>| lines.iter().filter_map(|line| message(line, words)).count() >= times;
        let waited = timeout(TEST_TIMEOUT, stderr.wait_for(enough)).await;
        assert!(waited.is_ok(), "{words:?} is not logged {times} times");
    }

    /// Has it hand over to its successor, and waits until that is ready, the hand-over is refused, or it has ended.
    pub async fn hand_over(&self) {
        let mut stderr = self.process.stderr.subscribe();
        let mut seen = stderr.borrow_and_update().len();
        self.signal(Signal::USR2);
        let mut is_over = |lines: &Vec<String>| {
            let new = &lines[std::mem::replace(&mut seen, lines.len())..];
            new.iter()
                .any(|line| ["ready", "the hand-over is refused"].iter().any(|words| message(line, words).is_some()))
        };
        tokio::select! {
            _ = stderr.wait_for(|lines| is_over(lines)) => {}
            _ = self.process.ended_within(HAND_OVER_MAX) => {}
        }
    }

    /// The configuration file, which it also reloads.
    pub fn file(&self) -> PathBuf {
        self.process.file()
    }

    /// The thread id of its first thread.
    pub fn first_thread(&self) -> i32 {
        self.process.pid.as_raw_nonzero().get()
    }

    /// The thread ids of its threads whose name has this prefix.
    pub fn threads(&self, name: &str) -> Vec<i32> {
        let tasks = format!("/proc/{}/task", self.process.pid.as_raw_nonzero());
        // A thread may end meanwhile.
        let called = |task: &std::fs::DirEntry| std::fs::read_to_string(task.path().join("comm"));
        let named = |task: &std::fs::DirEntry| called(task).is_ok_and(|called| called.starts_with(name));
        let tasks = std::fs::read_dir(tasks).unwrap().map(Result::unwrap).filter(named);
        tasks.map(|task| task.file_name().into_string().unwrap().parse().unwrap()).collect()
    }

    /// Whether it has not been seen to end.
    pub fn is_alive(&self) -> bool {
        self.process.exit.borrow().is_none()
    }

    /// Kills it as a power cut does.
    pub async fn kill9(&self) {
        self.signal(Signal::KILL);
        self.process.ended().await;
    }

    pub fn signal(&self, signal: Signal) {
        self.process.signal(signal);
    }

    /// From now on each write to a file fails.
    pub fn fail_file_writes(&self) {
        let limit = Rlimit { current: Some(1), maximum: Some(1) };
        prlimit(Some(self.process.pid), Resource::Fsize, limit).unwrap();
    }

    pub fn pid(&self) -> Pid {
        self.process.pid
    }

    /// Drains it, and returns its exit code.
    pub async fn stop(&self) -> Option<i32> {
        self.signal(Signal::TERM);
        self.ended().await
    }

    /// Waits for its exit, and returns its exit code; `None` after a signal.
    pub async fn ended(&self) -> Option<i32> {
        self.process.ended().await
    }
}

impl Setup {
    pub fn upstream(self, address: SocketAddr) -> Self {
        self.upstream_url(&format!("http://{address}"))
    }

    /// The URL of the service at the top, instead of an earlier one.
    pub fn upstream_url(self, url: &str) -> Self {
        Self { upstream: Some(url.to_owned()), ..self }
    }

    /// Another URL of the store.
    pub fn through(self, store_url: &str) -> Self {
        Self { store_url: store_url.to_owned(), ..self }
    }

    /// An environment variable.
    pub fn environment(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Lines at the top of the file.
    pub fn top(mut self, lines: &str) -> Self {
        self.top.push(lines.to_owned());
        self
    }

    /// Lines under `[admin]`.
    pub fn admin(mut self, lines: &str) -> Self {
        self.admin.push(lines.to_owned());
        self
    }

    /// Lines under `[telemetry]`.
    pub fn telemetry(mut self, lines: &str) -> Self {
        self.telemetry.push(lines.to_owned());
        self
    }

    /// Another log setting instead of the verbose JSON one; it must log when the proxy is ready.
    pub fn log(self, filter: &str, format: &str) -> Self {
        Self { log: (filter.to_owned(), format.to_owned()), ..self }
    }

    /// Lines under `[store]`.
    pub fn store(mut self, lines: &str) -> Self {
        self.store.push(lines.to_owned());
        self
    }

    /// Lines under `[defaults]`.
    pub fn defaults(mut self, lines: &str) -> Self {
        self.defaults.push(lines.to_owned());
        self
    }

    /// A `[[services]]` with these lines.
    pub fn service(mut self, lines: &str) -> Self {
        self.services.push(lines.to_owned());
        self
    }

    /// A `[[routes]]` with these lines. Without any, the built-in route applies.
    pub fn route(mut self, lines: &str) -> Self {
        self.routes.push(lines.to_owned());
        self
    }

    /// A `[[consumers]]` with these lines.
    pub fn consumer(mut self, lines: &str) -> Self {
        self.consumers.push(lines.to_owned());
        self
    }

    /// An `[[events]]` with these lines.
    pub fn events(mut self, lines: &str) -> Self {
        self.events.push(lines.to_owned());
        self
    }

    /// Short leases, with equally short heartbeats and sweeps.
    pub fn short_leases(self) -> Self {
        self.store("lease = { heartbeat = \"200ms\", expiry = \"1s\" }").store("sweep_every = \"200ms\"")
    }

    /// The file's text.
    pub fn text(&self) -> String {
        if let Some(written) = &self.written {
            return written.clone();
        }
        let mut text = "listen = \"127.0.0.1:0\"\n".to_owned();
        let upstream = self.upstream.iter().map(|url| format!("upstream = {url:?}"));
        text.push_str(&upstream.chain(self.top.clone()).collect::<Vec<_>>().join("\n"));
        let (log, format) = &self.log;
        text.push_str(&format!("\n\n[telemetry]\nlog = \"{log}\"\nformat = \"{format}\"\n"));
        text.push_str(&self.telemetry.join("\n"));
        text.push('\n');
        let asks_for_token = self.admin.iter().any(|lines| lines.contains("token") || lines.contains("open"));
        let open = if asks_for_token { "" } else { "open = true\n" };
        text.push_str(&format!("\n[admin]\nlisten = \"127.0.0.1:0\"\n{open}{}\n", self.admin.join("\n")));
        text.push_str(&format!("\n[store]\nurl = {:?}\n{}\n", self.store_url, self.store.join("\n")));
        text.push_str(&format!("\n[defaults]\n{}\n", self.defaults.join("\n")));
        for service in &self.services {
            text.push_str(&format!("\n[[services]]\n{service}\n"));
        }
        for route in &self.routes {
            text.push_str(&format!("\n[[routes]]\n{route}\n"));
        }
        for consumer in &self.consumers {
            text.push_str(&format!("\n[[consumers]]\n{consumer}\n"));
        }
        for events in &self.events {
            text.push_str(&format!("\n[[events]]\n{events}\n"));
        }
        text
    }

    /// A file beside its own, by its path from there.
    pub fn file(mut self, name: &str, text: &str) -> Self {
        self.files.push((name.to_owned(), text.to_owned()));
        self
    }

    /// Starts it through another program, whose arguments end with the command of the proxy.
    pub fn under(self, wrapper: Vec<OsString>) -> Self {
        Self { wrapper, ..self }
    }

    /// Hands this socket over under this name, as systemd does; two at most.
    pub fn handed(mut self, name: &str, socket: impl Into<OwnedFd>) -> Self {
        self.handed.push((name.to_owned(), Arc::new(socket.into())));
        self
    }

    /// Starts it and waits until it accepts requests.
    pub async fn start(&self) -> Proxy {
        self.try_start()
            .await
            .unwrap_or_else(|ended| panic!("the proxy does not start: {ended:#?} with\n{}", self.text()))
    }

    /// Starts it and waits until it accepts requests or has ended; an error is its exit code, or `None` after a signal.
    pub async fn try_start(&self) -> Result<Proxy, Option<i32>> {
        let process = Process::start(&self.text(), self);
        let mut stderr = process.stderr.subscribe();
        let ready = |lines: &Vec<String>| {
            lines.iter().find_map(|line| message(line, "ready").or_else(|| in_text(line, " ready ")))
        };
        tokio::select! {
            _ = stderr.wait_for(|lines| ready(lines).is_some()) => {}
            code = process.ended() => return Err(code),
        }
        let line = ready(&process.stderr.borrow()).unwrap();
        let address = |field: &str| line[field].as_str().unwrap().parse().unwrap();
        Ok(Proxy { listen: address("listen"), admin: address("admin"), process })
    }

    /// Starts it and waits for its exit; it must not start up.
    pub async fn fails(&self) -> Ended {
        ended(Process::start(&self.text(), self)).await
    }
}

/// Starts a proxy with this file and waits for its exit; it must not start up.
pub async fn fails(text: &str) -> Ended {
    ended(Process::start(text, &Proxy::on(""))).await
}

async fn ended(process: Process) -> Ended {
    let code = process.ended().await.expect("it was ended by a signal");
    let stderr = process.stderr.borrow().join("\n");
    Ended { code, stderr, file: process.file() }
}

fn message(line: &str, words: &str) -> Option<Value> {
    let line: Value = serde_json::from_str(line).ok()?;
    line["message"].as_str()?.contains(words).then_some(line)
}

/// The value of `name=value` in a text log line with these words.
fn in_text(line: &str, words: &str) -> Option<Value> {
    let (_, fields) = line.split_once(words)?;
    let pairs = fields.split(' ').filter_map(|pair| pair.split_once('='));
    Some(pairs.map(|(name, value)| (name.to_owned(), Value::from(value))).collect())
}

/// A child process whose output is kept, and which is killed at the end of its test.
struct Process {
    pid: Pid,
    stderr: Arc<watch::Sender<Vec<String>>>,
    exit: watch::Receiver<Option<Option<i32>>>,
    waiting: Option<JoinHandle<()>>,
    folder: TempDir,
}

impl Process {
    fn start(config: &str, setup: &Setup) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("oncegate.toml");
        std::fs::write(&file, config).unwrap();
        for (name, text) in &setup.files {
            let beside = folder.path().join(name);
            std::fs::create_dir_all(beside.parent().unwrap()).unwrap();
            std::fs::write(beside, text).unwrap();
        }
        let mut child = spawn(&file, setup);
        let stderr = Arc::new(watch::Sender::new(Vec::new()));
        let (exited, exit) = watch::channel(None);
        let pid = Pid::from_child(&child);
        let listening = {
            let (lines, stderr) = (BufReader::new(child.stderr.take().unwrap()).lines(), Arc::clone(&stderr));
            thread::spawn(move || {
                for line in lines.map_while(Result::ok) {
                    stderr.send_modify(|all| all.push(line));
                }
            })
        };
        let waiting = thread::spawn(move || {
            let status = child.wait().unwrap();
            // Reads its last lines first.
            listening.join().unwrap();
            exited.send_replace(Some(status.code()));
        });
        Self { pid, stderr, exit, waiting: Some(waiting), folder }
    }

    fn file(&self) -> PathBuf {
        self.folder.path().join("oncegate.toml")
    }

    fn signal(&self, signal: Signal) {
        if self.exit.borrow().is_none() {
            // It may have just ended, which is as good.
            let _ = kill_process(self.pid, signal);
        }
    }

    async fn ended(&self) -> Option<i32> {
        self.ended_within(TEST_TIMEOUT).await
    }

    async fn ended_within(&self, limit: Duration) -> Option<i32> {
        let mut exit = self.exit.clone();
        let ended = timeout(limit, exit.wait_for(Option::is_some)).await.expect("the proxy does not end");
        ended.unwrap().unwrap()
    }
}

fn spawn(file: &Path, setup: &Setup) -> Child {
    let mut command = Command::new("sh");
    // The sockets come as the standard streams, and go on under the numbers of sd_listen_fds(3).
    let hand_over = match setup.handed.is_empty() {
        true => "",
        false => "export LISTEN_PID=$$; exec 3<&0 4<&1 </dev/null >/dev/null;",
    };
    // A write over the limit must fail as on a bad disk, and not end the process: see `fail_file_writes`.
    command.args(["-c", &format!("trap '' XFSZ; {hand_over} exec \"$0\" \"$@\"")]);
    command.args(&setup.wrapper).arg(crate::program());
    command.arg("run").arg("--config").arg(file).current_dir(file.parent().unwrap());
    for name in ["LISTEN", "UPSTREAM", "STORE_URL", "ADMIN_LISTEN", "ADMIN_TOKEN", "LOG", "CONFIG", "SECRET"] {
        command.env_remove(format!("ONCEGATE_{name}"));
    }
    let foreign =
        ["SSL_CERT_FILE", "SSL_CERT_DIR", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT"];
    for name in foreign {
        command.env_remove(name);
    }
    if !setup.handed.is_empty() {
        let names: Vec<&str> = setup.handed.iter().map(|(name, _)| &**name).collect();
        command.env("LISTEN_FDS", names.len().to_string()).env("LISTEN_FDNAMES", names.join(":"));
    }
    command.envs(setup.environment.iter().map(|(name, value)| (name, value)));
    let mut streams = setup.handed.iter().map(|(_, socket)| Stdio::from(socket.try_clone().unwrap()));
    let mut stream = || streams.next().unwrap_or_else(Stdio::null);
    command.stdin(stream()).stdout(stream()).stderr(Stdio::piped()).spawn().unwrap()
}

impl Drop for Process {
    fn drop(&mut self) {
        self.signal(Signal::KILL);
        self.waiting.take().map(JoinHandle::join);
        if thread::panicking() {
            eprintln!("what the proxy said:\n{}", self.stderr.borrow().join("\n"));
        }
    }
}
