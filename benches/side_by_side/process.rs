//! Programs beside which Oncegate runs, and Oncegate itself: processes that never outlive this one, however it ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Starts the program, tells its process ID, and waits for its own standard input to end, which it does with the
/// benchmark, be it by an interrupt. Then the whole process group is asked to go, made to after five seconds, and what it
/// wrote goes too.
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

/// How long a program may take until it takes connections.
const START_MAX: Duration = Duration::from_secs(30);

/// A running program that takes connections.
pub struct Process {
    pub pid: u32,
    /// Where it listens, in the order in which it was told.
    pub addresses: Vec<SocketAddr>,
    guardian: Child,
}

impl Process {
    /// Starts a program in a folder of its own on that many free ports, and waits until it takes connections on each. The
    /// command line is made of the folder and the addresses.
    pub fn start(ports: usize, command: impl Fn(&Path, &[SocketAddr]) -> Vec<String>) -> Self {
        let mut said = String::new();
        // Between looking for a port and taking it somebody else may be faster.
        for _ in 0..3 {
            match Self::try_start(ports, &command) {
                Ok(process) => return process,
                Err(log) => said = log,
            }
        }
        panic!("a program does not start: {said}");
    }

    fn try_start(ports: usize, command: &impl Fn(&Path, &[SocketAddr]) -> Vec<String>) -> Result<Self, String> {
        let home = tempfile::Builder::new().prefix("oncegate-bench-").tempdir().unwrap().keep();
        let listeners: Vec<_> = (0..ports).map(|_| TcpListener::bind("127.0.0.1:0").unwrap()).collect();
        let addresses: Vec<_> = listeners.iter().map(|listener| listener.local_addr().unwrap()).collect();
        drop(listeners);
        let mut guardian = Command::new("sh");
        guardian.args(["-c", GUARDIAN, "guardian"]).arg(&home).args(command(&home, &addresses)).current_dir(&home);
        for name in ["ADMIN_LISTEN", "ADMIN_TOKEN", "CONFIG", "LISTEN", "LOG", "SECRET", "STORE_URL", "UPSTREAM"] {
            guardian.env_remove(format!("ONCEGATE_{name}"));
        }
        guardian.env("ONCEGATE_LOG", "warn").process_group(0);
        let mut guardian = guardian.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut pid = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut pid).unwrap();
        let process = Self { pid: pid.trim().parse().unwrap(), addresses, guardian };
        let deadline = Instant::now() + START_MAX;
        while !process.takes_connections() {
            if !process.is_running() || Instant::now() >= deadline {
                return Err(fs::read_to_string(home.join("log")).unwrap_or_default());
            }
            std::thread::park_timeout(Duration::from_millis(10));
        }
        Ok(process)
    }

    fn takes_connections(&self) -> bool {
        self.addresses.iter().all(|address| TcpStream::connect(address).is_ok())
    }

    fn is_running(&self) -> bool {
        // After the name, which is in brackets, stands the state.
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

/// Where a program is; servers are not on everybody's path.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain(["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from));
    folders.map(|folder| folder.join(program)).find(|file| file.is_file())
}
