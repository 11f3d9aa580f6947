//! The processes of the measured programs. They never outlive the benchmark, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A shell script that starts the program, prints its process ID, and waits for the end of standard input, which comes
/// with the end of the benchmark, even by an interrupt. Then it ends the process group by SIGTERM, after five seconds
/// by SIGKILL, and deletes the program's folder.
const GUARDIAN: &str = r#"
home=$1; shift
exec 3<&0 </dev/null
(exec 3<&-; exec "$@" >"$home/log" 2>&1) &
echo $!
exec >/dev/null
cat <&3
trap '' TERM
kill -TERM 0
tries=0
while kill -0 $! 2>/dev/null && [ $tries -lt 50 ]; do sleep 0.1; tries=$((tries + 1)); done
rm -rf "$home"
kill -KILL 0
"#;

/// The time limit for a program to accept connections.
const START_TIMEOUT: Duration = Duration::from_secs(30);

/// A running program that accepts connections.
pub struct Process {
    pub pid: u32,
    pub address: SocketAddr,
    guardian: Child,
}

/// The addresses of a load, over which its connections are spread, and the processes that do its work.
pub struct Endpoint {
    pub addresses: Vec<SocketAddr>,
    pub pids: Vec<u32>,
    /// The first process of the PostgreSQL that it uses.
    pub server: Option<u32>,
}

impl Process {
    pub fn endpoint(&self) -> Endpoint {
        Endpoint { addresses: vec![self.address], pids: vec![self.pid], server: None }
    }

    pub fn endpoint_on(&self, server: u32) -> Endpoint {
        Endpoint { server: Some(server), ..self.endpoint() }
    }

    /// Starts a program in a folder of its own on a free port, and waits until it accepts connections. `command` builds
    /// the command line from the folder and the address.
    pub fn start(command: impl Fn(&Path, SocketAddr) -> Vec<String>) -> Result<Self, String> {
        let mut last_log = String::new();
        // Another process may take a port between finding and using it.
        for _ in 0..3 {
            match Self::start_once(&command) {
                Ok(process) => return Ok(process),
                Err(log) => last_log = log,
            }
        }
        Err(format!("a program does not start: {last_log}"))
    }

    fn start_once(command: &impl Fn(&Path, SocketAddr) -> Vec<String>) -> Result<Self, String> {
        let home = tempfile::Builder::new().prefix("oncegate-bench-").tempdir().unwrap().keep();
        let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let mut guardian = Command::new("sh");
        guardian.args(["-c", GUARDIAN, "guardian"]).arg(&home).args(command(&home, address)).current_dir(&home);
        for name in ["ADMIN_LISTEN", "ADMIN_TOKEN", "CONFIG", "LISTEN", "LOG", "SECRET", "STORE_URL", "UPSTREAM"] {
            guardian.env_remove(format!("ONCEGATE_{name}"));
        }
        guardian.env("ONCEGATE_LOG", "warn").process_group(0);
        let mut guardian = guardian.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let process = Self { pid: pid.trim().parse().unwrap(), address, guardian };
        let deadline = Instant::now() + START_TIMEOUT;
        while TcpStream::connect(address).is_err() {
            if !process.is_running() || Instant::now() >= deadline {
                return Err(fs::read_to_string(home.join("log")).unwrap_or_default());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(process)
    }

    fn is_running(&self) -> bool {
        // The state comes after the name, which is in brackets.
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.starts_with(" Z"))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}

/// Finds a program on the path, or in the folders for servers, which are not on every user's path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
