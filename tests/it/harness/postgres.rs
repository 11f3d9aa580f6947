//! A real PostgreSQL for the tests, with its default durability: started once for each test process, and never longer
//! alive than that.

use std::io::{BufRead, BufReader};
use std::net::TcpListener;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncegate::store::{self, Location, Settings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

/// A migrated database of the shared cluster, nobody else's. It goes with the cluster.
pub async fn database() -> Database {
    static TEMPLATE: OnceCell<Database> = OnceCell::const_new();
    let migrated = || async {
        let template = empty_database().await;
        store::migrate(&settings(&template.url)).await.unwrap();
        template
    };
    let template = TEMPLATE.get_or_init(migrated).await;
    shared().await.create(&template.name).await
}

/// A database of the shared cluster without our schema.
pub async fn empty_database() -> Database {
    shared().await.empty_database().await
}

async fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    tokio::task::spawn_blocking(|| CLUSTER.get_or_init(|| Cluster::start(""))).await.unwrap()
}

/// How the tests use a PostgreSQL store.
pub fn settings(url: &str) -> Settings {
    Settings {
        location: Location::Postgres(url.to_owned()),
        max_connections: 8,
        timeout: Duration::from_secs(10),
        migrate: true,
    }
}

/// A database.
#[derive(Clone)]
pub struct Database {
    pub url: String,
    pub name: String,
}

impl Database {
    /// Where its server listens.
    pub fn address(&self) -> &str {
        self.url.split(['@', '/']).nth(3).unwrap()
    }

    /// The same behind another address, or behind several.
    pub fn at(&self, addresses: &str) -> Self {
        Self { url: self.url.replace(self.address(), addresses), name: self.name.clone() }
    }

    /// A connection of the test's own, beside whatever the store has.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

/// A cluster of one's own, for tests that crash it; most want [`database`]. Its end is this value's end.
pub struct Cluster {
    port: u16,
    home: PathBuf,
    options: String,
    /// Its standard input is a pipe that ends with this process, however that ends.
    guardian: Child,
}

/// How the guardian makes a cluster's data.
const EMPTY: &str =
    r#""$bin/initdb" --no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C --pgdata="$home/data""#;

/// Makes the cluster, starts it, says so, and waits for its standard input to end: then it takes everything down and
/// away; one that was frozen too. Interrupts go to it too, when they go to the whole terminal, and are none of its business.
///
/// Making is not synced: what does not outlive this process need not outlive the machine. What the tests write is.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
bin=$1 home=$2 options=$3 make=$4
{
  eval "$make" &&
  "$bin/pg_ctl" start -w -t 60 -D "$home/data" -l "$home/log" -o "$options"
} </dev/null >"$home/made" 2>&1 &&
  echo started || { cat "$home/made" "$home/log" | tr '\n' ' '; echo; }
cat >/dev/null
kill -CONT "$(head -n 1 "$home/data/postmaster.pid")" 2>/dev/null
"$bin/pg_ctl" stop -D "$home/data" -m immediate >/dev/null 2>&1
rm -rf "$home"
"#;

impl Cluster {
    /// Makes a cluster in a directory of its own and starts it on a free port of 127.0.0.1.
    pub fn start(options: &str) -> Self {
        Self::made_by(EMPTY, options)
    }

    /// Makes a standby of it that follows it from now on, asynchronously.
    pub fn standby(&self) -> Self {
        let copy = format!(
            r#""$bin/pg_basebackup" --no-sync -c fast -X stream -R -h 127.0.0.1 -p {} -U postgres -D "$home/data""#,
            self.port
        );
        Self::made_by(&copy, "")
    }

    fn made_by(make: &str, options: &str) -> Self {
        // Between looking for a port and taking it somebody else may be faster.
        (0..5).find_map(|_| Self::try_start(make, options)).expect("of five ports one is still free when it is taken")
    }

    fn try_start(make: &str, options: &str) -> Option<Self> {
        let (bin, owner) = (binaries(), owner());
        let home = tempfile::Builder::new().prefix("oncegate-postgres-").tempdir().unwrap().keep();
        if let Some((uid, gid)) = owner {
            chown(&home, Some(uid), Some(gid)).unwrap();
        }
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let options = format!(
            "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} -c max_connections=300 \
             -c shared_buffers=32MB {options}",
            home.display()
        );
        let mut guardian = as_owner(Path::new("sh"), owner)
            .args(["-c", GUARDIAN, "guardian"])
            .args([&bin, &home])
            .args([&options, make])
            .current_dir(&home)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut said = String::new();
        BufReader::new(guardian.stdout.take().unwrap()).read_line(&mut said).unwrap();
        let cluster = Self { port, home, options, guardian };
        match said.as_str() {
            "started\n" => Some(cluster),
            _ if said.contains("in use") => None,
            _ => panic!("PostgreSQL did not start: {said}"),
        }
    }

    /// A database without our schema.
    pub async fn empty_database(&self) -> Database {
        self.create("template0").await
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it as a power cut would.
    pub fn crash(&self) {
        self.control(&["stop", "-m", "immediate"]);
    }

    /// Stops all of its processes where they are: connections stand, and nothing comes over them.
    pub fn freeze(&self) {
        // The first one makes the others: once it stands, there will be no more of them.
        let first = self.postmaster();
        kill_process(first, Signal::STOP).unwrap();
        for process in children(first) {
            let _ = kill_process(process, Signal::STOP);
        }
    }

    /// Lets them go on.
    pub fn thaw(&self) {
        let first = self.postmaster();
        for process in children(first).into_iter().chain([first]) {
            let _ = kill_process(process, Signal::CONT);
        }
    }

    fn postmaster(&self) -> Pid {
        let file = std::fs::read_to_string(self.home.join("data/postmaster.pid")).unwrap();
        Pid::from_raw(file.lines().next().unwrap().parse().unwrap()).unwrap()
    }

    /// Starts it again on its port, and waits until it has recovered.
    pub fn restart(&self) {
        self.control(&["start", "-w", "-l", &self.home.join("log").to_string_lossy(), "-o", &self.options]);
    }

    /// Kills its first process with signal 9, which takes the others with it.
    pub fn kill9(&self) {
        let pid = std::fs::read_to_string(self.home.join("data/postmaster.pid")).unwrap();
        let pid = Pid::from_raw(pid.lines().next().unwrap().parse().unwrap()).unwrap();
        kill_process(pid, Signal::KILL).unwrap();
    }

    /// Makes a primary of a standby, and waits until it is one.
    pub fn promote(&self) {
        self.control(&["promote", "-w"]);
    }

    /// Changes its configuration, for the sessions that are there too.
    pub async fn configure(&self, setting: &str) {
        let client = connect(&self.url("postgres")).await;
        client.batch_execute(&format!("alter system set {setting}")).await.unwrap();
        client.batch_execute("select pg_reload_conf()").await.unwrap();
    }

    /// The same database, here. With another's address before it, it is a list of hosts.
    pub fn same(&self, database: &Database) -> Database {
        Database { url: self.url(&database.name), name: database.name.clone() }
    }

    async fn create(&self, template: &str) -> Database {
        static COUNTER: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", COUNTER.fetch_add(1, Ordering::Relaxed));
        let create = format!("create database {name} template {template}");
        connect(&self.url("postgres")).await.batch_execute(&create).await.unwrap();
        Database { url: self.url(&name), name }
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    fn control(&self, arguments: &[&str]) {
        let status = as_owner(&binaries().join("pg_ctl"), owner())
            .args(arguments)
            .arg("-D")
            .arg(self.home.join("data"))
            .current_dir(&self.home)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "pg_ctl {arguments:?}");
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}

/// The processes whose parent this is.
fn children(parent: Pid) -> Vec<Pid> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may have anything in it; state and parent follow it.
        let parent_of = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse::<i32>().ok()?;
        (parent.as_raw_nonzero().get() == parent_of).then_some(())
    };
    let all = std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    all.filter(|pid| is_child(pid).is_some()).filter_map(Pid::from_raw).collect()
}

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Who the server runs as: it refuses root.
pub fn owner() -> Option<(u32, u32)> {
    let id = |flags: &[&str]| -> Option<u32> {
        let output = Command::new("id").args(flags).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
    };
    (id(&["-u"]) == Some(0)).then(|| {
        let there = "there is a user postgres, as PostgreSQL does not run as root: apt-get install postgresql";
        (id(&["-u", "postgres"]).expect(there), id(&["-g", "postgres"]).expect(there))
    })
}

pub(super) fn as_owner(program: &Path, owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = owner {
        command.uid(uid).gid(gid);
    }
    command
}

/// `$PG_BIN`, or what `pg_config` says, or the newest of Debian's.
pub fn binaries() -> PathBuf {
    let told = std::env::var_os("PG_BIN").map(PathBuf::from);
    let asked = || {
        let output = Command::new("pg_config").arg("--bindir").output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    };
    let newest = || {
        let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        Some(versions.max_by_key(version)?.join("bin"))
    };
    told.into_iter()
        .chain(asked())
        .chain(newest())
        .find(|bin| bin.join("initdb").exists())
        .expect("PostgreSQL's server is here, or $PG_BIN says where: apt-get install postgresql")
}
