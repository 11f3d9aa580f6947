//! A real Redis for one test: on a free port, with its own home and nothing on the disk, ended with the test's process.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, Stdio};

use redis::aio::MultiplexedConnection;

use super::postgres::restartable_port;
use super::{TEST_TIMEOUT, eventually, find_program};

/// A running server. It ends when this value is dropped.
pub struct RedisFixture {
    port: u16,
    password: Option<&'static str>,
    /// The guardian's standard input is a pipe that closes when this process ends in any way.
    guardian: Child,
}

/// Starts the server; kills it for each line `kill`, freezes it for each line `freeze`, lets it go on for each line
/// `thaw`, starts it for each line `start`, and cleans up at the end of the input.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
server=$1 port=$2 password=$3 home=$4
start() {
  "$server" --port "$port" --bind 127.0.0.1 --save '' --appendonly no --requirepass "$password" --dir "$home" \
    >>"$home/log" 2>&1 </dev/null & pid=$!
}
kill9() { kill -9 $pid; wait $pid; } 2>/dev/null
start
while read -r word; do
  case $word in kill) kill9 ;; start) start ;; freeze) kill -STOP $pid ;; thaw) kill -CONT $pid ;; esac
done
kill9
rm -rf "$home"
"#;

impl RedisFixture {
    /// A server without a password; `None` with a message if Redis is not installed.
    pub async fn start() -> Option<Self> {
        Self::start_with(None).await
    }

    pub async fn start_with(password: Option<&'static str>) -> Option<Self> {
        let Some(server) = find_program(&["redis-server", "valkey-server"]) else {
            super::skip("Redis is not installed (apt-get install redis-server)");
            return None;
        };
        let home = tempfile::Builder::new().prefix("oncegate-redis-").tempdir().unwrap().keep();
        let port = restartable_port();
        let guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .arg(server)
            .args([&port.to_string(), password.unwrap_or_default()])
            .arg(home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let fixture = Self { port, password, guardian };
        fixture.connect().await;
        Some(fixture)
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// The URL for a proxy's configuration.
    pub fn url(&self) -> String {
        self.url_at(self.address())
    }

    /// The same with another address, of a relay for example.
    pub fn url_at(&self, address: SocketAddr) -> String {
        self.password.map_or_else(|| format!("redis://{address}"), |password| format!("redis://:{password}@{address}"))
    }

    /// Kills it. All its entries are lost.
    pub fn kill9(&mut self) {
        self.tell("kill");
    }

    /// Starts it again, and waits until it answers.
    pub async fn restart(&mut self) {
        self.tell("start");
        self.connect().await;
    }

    /// Stops its process, so that it holds its connections and answers nothing.
    pub fn freeze(&mut self) {
        self.tell("freeze");
    }

    /// Lets it go on.
    pub fn thaw(&mut self) {
        self.tell("thaw");
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.guardian.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    /// Connects as soon as it answers.
    pub async fn connect(&self) -> MultiplexedConnection {
        eventually(TEST_TIMEOUT, async || {
            let client = redis::Client::open(self.url()).unwrap();
            client.get_multiplexed_async_connection().await.ok()
        })
        .await
    }

    /// The names of all entries.
    pub async fn names(&self) -> Vec<String> {
        let mut names: Vec<String> = redis::cmd("KEYS").arg("*").query_async(&mut self.connect().await).await.unwrap();
        names.sort_unstable();
        names
    }

    /// Waits until there are this many entries, and returns their names.
    pub async fn wait_for_entries(&self, count: usize) -> Vec<String> {
        eventually(TEST_TIMEOUT, async || Some(self.names().await).filter(|names| names.len() == count)).await
    }

    /// The bytes of an entry.
    pub async fn entry(&self, name: &str) -> Vec<u8> {
        redis::cmd("GET").arg(name).query_async(&mut self.connect().await).await.unwrap()
    }

    /// Writes an entry that never expires.
    pub async fn write(&self, name: &str, bytes: &[u8]) {
        redis::cmd("SET").arg(name).arg(bytes).exec_async(&mut self.connect().await).await.unwrap();
    }

    /// Sets a parameter of its configuration.
    pub async fn set_parameter(&self, name: &str, value: &str) {
        let command = redis::cmd("CONFIG").arg("SET").arg(name).arg(value).clone();
        command.exec_async(&mut self.connect().await).await.unwrap();
    }

    /// The milliseconds until an entry expires.
    pub async fn expires_in_ms(&self, name: &str) -> i64 {
        redis::cmd("PTTL").arg(name).query_async(&mut self.connect().await).await.unwrap()
    }
}

impl Drop for RedisFixture {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}
