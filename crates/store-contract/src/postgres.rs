//! A real PostgreSQL for the tests, with its default durability: started once for each test process, and ended with it.

use std::ffi::OsStr;
use std::fmt::Debug;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use oncegate_store::encryption::Encryption;
use oncegate_store::{self as store, StoreLocation, StoreSettings};
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

/// The time in milliseconds since 1970, as the store has it.
pub const NOW_MS: &str = "(extract(epoch from clock_timestamp()) * 1000)::bigint";

/// A new migrated database in the shared cluster. It is deleted with the cluster.
pub async fn database() -> TestDatabase {
    static TEMPLATE: OnceCell<TestDatabase> = OnceCell::const_new();
    let migrated = || async {
        let template = empty_database().await;
        store::migrate(&settings(&template.url)).await.unwrap();
        template
    };
    let template = TEMPLATE.get_or_init(migrated).await;
    shared().await.create(&template.name).await
}

/// A new database without Oncegate's schema in the shared cluster.
pub async fn empty_database() -> TestDatabase {
    shared().await.empty_database().await
}

async fn shared() -> &'static Cluster {
    static CLUSTER: OnceLock<Cluster> = OnceLock::new();
    tokio::task::spawn_blocking(|| CLUSTER.get_or_init(|| Cluster::start(""))).await.unwrap()
}

/// The store's settings in tests.
pub fn settings(url: &str) -> StoreSettings {
    StoreSettings {
        location: StoreLocation::parse(url).unwrap(),
        max_connections: 8,
        timeout: Duration::from_secs(10),
        migrate: true,
        distribute: false,
        events: false,
        encryption: Encryption::default(),
    }
}

/// A database.
#[derive(Clone)]
pub struct TestDatabase {
    pub url: String,
    pub name: String,
}

impl TestDatabase {
    /// The server's address.
    pub fn address(&self) -> &str {
        self.url.split(['@', '/']).nth(3).unwrap()
    }

    /// The same database behind another address, or several.
    pub fn at(&self, addresses: &str) -> Self {
        Self { url: self.url.replace(self.address(), addresses), name: self.name.clone() }
    }

    /// Notes the number of prepared statements in each session that writes a key.
    pub async fn note_prepared_statements(&self) {
        let sql = "create table prepared (statements bigint);
                   create function note_prepared() returns trigger language plpgsql as
                   'begin insert into public.prepared select count(*) from pg_prepared_statements; return null; end';
                   create trigger note after insert or update on oncegate.keys for each row execute function note_prepared()";
        self.client().await.batch_execute(sql).await.unwrap();
    }

    /// The numbers noted so far, the most last.
    pub async fn noted_prepared_statements(&self) -> Vec<i64> {
        let rows = self.client().await.query("select statements from prepared order by 1", &[]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    }

    /// All of the database as SQL that any server of PostgreSQL 13 or later takes in one piece.
    pub fn dump(&self) -> String {
        let mut dump = Command::new(binaries().join("pg_dump"));
        let dumped = dump.args(["--inserts", "--no-owner", &self.url]).output().unwrap();
        assert!(dumped.status.success(), "{}", String::from_utf8_lossy(&dumped.stderr));
        let text = String::from_utf8(dumped.stdout).unwrap();
        // Lines for psql begin with a backslash, others name the programs of this machine, and
        // servers before 17 lack a setting.
        let left_out = ["\\", "-- Dumped ", "SET transaction_timeout "];
        let is_sql = |line: &&str| !left_out.iter().any(|beginning| line.starts_with(beginning));
        text.lines().filter(is_sql).map(|line| line.to_owned() + "\n").collect()
    }

    /// A copy of the database on the same server. Nobody may be connected to this one.
    pub async fn copy(&self) -> Self {
        shared().await.create(&self.name).await
    }

    /// A connection of the test's own, beside the store's.
    pub async fn client(&self) -> Client {
        connect(&self.url).await
    }
}

/// A cluster for tests that crash it; most tests use [`database`]. It ends when this value is dropped.
pub struct Cluster {
    port: u16,
    home: PathBuf,
    options: String,
    /// The guardian's standard input is a pipe that closes when this process ends in any way.
    guardian: Child,
}

/// The command that creates an empty cluster's data.
const EMPTY: &str =
    r#""$bin/initdb" --no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C --pgdata="$home/data""#;

/// Creates the cluster, starts it, reports that, and waits for the end of its standard input; then it stops and deletes
/// the cluster, a frozen one too. It ignores interrupts, which the terminal sends to the whole process group.
///
/// The creation is not synced: the data does not outlive this process, so it need not survive a power cut. The tests'
/// own writes are synced.
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
        Self::made_by(EMPTY, options, &[])
    }

    /// The same, with more in the environment of its processes.
    pub fn start_in(environment: Vec<(String, String)>, options: &str) -> Self {
        Self::made_by(EMPTY, options, &environment)
    }

    /// Creates an asynchronous standby of this cluster.
    pub fn standby(&self) -> Self {
        // Without its option -R, whose connection string a server of an earlier version than the program cannot read.
        let copy = format!(
            r#""$bin/pg_basebackup" --no-sync -c fast -X stream -h 127.0.0.1 -p {port} -U postgres -D "$home/data" &&
            echo "primary_conninfo = 'host=127.0.0.1 port={port} user=postgres'" >>"$home/data/postgresql.auto.conf" &&
            touch "$home/data/standby.signal""#,
            port = self.port
        );
        Self::made_by(&copy, "", &[])
    }

    fn made_by(make: &str, options: &str, environment: &[(String, String)]) -> Self {
        // Another process may take the port between its choice and its use.
        let mut tries = (0..5).map(|_| Self::try_start(make, options, environment));
        tries.find_map(|cluster| cluster).expect("of five ports one is still free when it is taken")
    }

    fn try_start(make: &str, options: &str, environment: &[(String, String)]) -> Option<Self> {
        let (bin, owner) = (binaries(), owner());
        let home = tempfile::Builder::new().prefix("oncegate-postgres-").tempdir().unwrap().keep();
        if let Some((uid, gid)) = owner {
            chown(&home, Some(uid), Some(gid)).unwrap();
        }
        let port = restartable_port();
        let options = format!(
            "-p {port} -c listen_addresses=127.0.0.1 -c unix_socket_directories={} -c max_connections=300 \
             -c shared_buffers=32MB {options}",
            home.display()
        );
        let mut guardian = as_owner(Path::new("sh"), owner)
            .args(["-c", GUARDIAN, "guardian"])
            .args([&bin, &home])
            .args([&options, make])
            .envs(environment.iter().map(|(name, value)| (name, value)))
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

    /// A new database without Oncegate's schema.
    pub async fn empty_database(&self) -> TestDatabase {
        self.create("template0").await
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// Kills it as a power cut would.
    pub fn crash(&self) {
        self.control(&["stop", "-m", "immediate"]);
    }

    /// Stops all its processes: connections stay open, and nothing arrives over them.
    pub fn freeze(&self) {
        freeze(self.postmaster());
    }

    /// Continues all its processes.
    pub fn thaw(&self) {
        thaw(self.postmaster());
    }

    fn postmaster(&self) -> Pid {
        postmaster(&self.home.join("data")).unwrap()
    }

    /// Starts it again on its port, and waits until the recovery is done.
    pub fn restart(&self) {
        self.control(&self.start_arguments());
    }

    fn start_arguments(&self) -> [String; 6] {
        let log = self.home.join("log").to_string_lossy().into_owned();
        ["start", "-w", "-l", &log, "-o", &self.options].map(str::to_owned)
    }

    /// Kills the first process with signal 9, which ends the others too.
    pub fn kill9(&self) {
        kill_process(self.postmaster(), Signal::KILL).unwrap();
    }

    /// Starts it again after [`Self::kill9`]. Returns whether it runs: it is refused for as long as a process of the
    /// killed one lives.
    pub fn try_restart(&self) -> bool {
        self.try_control(&self.start_arguments())
    }

    /// Promotes a standby, and waits until it is the primary.
    pub fn promote(&self) {
        self.control(&["promote", "-w"]);
    }

    /// Changes its configuration, also for existing sessions.
    pub async fn configure(&self, setting: &str) {
        let client = connect(&self.url("postgres")).await;
        client.batch_execute(&format!("alter system set {setting}")).await.unwrap();
        client.batch_execute("select pg_reload_conf()").await.unwrap();
    }

    /// The same database on this server. With another address before it, it is a list of hosts.
    pub fn same(&self, database: &TestDatabase) -> TestDatabase {
        TestDatabase { url: self.url(&database.name), name: database.name.clone() }
    }

    async fn create(&self, template: &str) -> TestDatabase {
        static COUNTER: AtomicU32 = AtomicU32::new(1);
        self.create_named(format!("test_{}", COUNTER.fetch_add(1, Ordering::Relaxed)), template).await
    }

    /// A new database of this name.
    pub async fn create_named(&self, name: String, template: &str) -> TestDatabase {
        let create = format!("create database {name} template {template}");
        connect(&self.url("postgres")).await.batch_execute(&create).await.unwrap();
        // As PostgreSQL has it from version 15 on.
        connect(&self.url(&name)).await.batch_execute("revoke create on schema public from public").await.unwrap();
        TestDatabase { url: self.url(&name), name }
    }

    fn url(&self, database: &str) -> String {
        format!("postgres://postgres@127.0.0.1:{}/{database}", self.port)
    }

    fn control(&self, arguments: &[impl AsRef<OsStr> + Debug]) {
        assert!(self.try_control(arguments), "pg_ctl {arguments:?}");
    }

    fn try_control(&self, arguments: &[impl AsRef<OsStr>]) -> bool {
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
        status.success()
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}

/// The first process of the server on this data; `None` if it does not run.
pub fn postmaster(data: &Path) -> Option<Pid> {
    let file = std::fs::read_to_string(data.join("postmaster.pid")).ok()?;
    // A recovery in single-user mode writes a negative number.
    let pid = file.lines().next()?.parse().ok().filter(|pid| *pid > 0)?;
    Pid::from_raw(pid)
}

/// Stops all processes of a server. The first one starts the others: once it is stopped, no new ones appear.
pub fn freeze(postmaster: Pid) {
    kill_process(postmaster, Signal::STOP).unwrap();
    for process in children(postmaster) {
        let _ = kill_process(process, Signal::STOP);
    }
}

/// Continues all processes of a server.
pub fn thaw(postmaster: Pid) {
    for process in children(postmaster).into_iter().chain([postmaster]) {
        let _ = kill_process(process, Signal::CONT);
    }
}

/// The child processes of this one.
fn children(parent: Pid) -> Vec<Pid> {
    let is_child = |pid: &i32| {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in brackets may contain any character; state and parent follow it.
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

/// The user that the server runs as: it refuses root.
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

pub fn as_owner(program: &Path, owner: Option<(u32, u32)>) -> Command {
    let mut command = Command::new(program);
    if let Some((uid, gid)) = owner {
        command.uid(uid).gid(gid);
    }
    command
}

/// `$PG_BIN`, else the folder of `pg_config`, else the newest of Debian's.
pub fn binaries() -> PathBuf {
    let configured = std::env::var_os("PG_BIN").map(PathBuf::from);
    let asked = || {
        let output = Command::new("pg_config").arg("--bindir").output().ok()?;
        Some(PathBuf::from(String::from_utf8(output.stdout).ok()?.trim()))
    };
    let newest = || {
        let version = |path: &PathBuf| path.file_name()?.to_str()?.parse::<u32>().ok();
        let versions = std::fs::read_dir("/usr/lib/postgresql").ok()?.filter_map(|entry| Some(entry.ok()?.path()));
        Some(versions.max_by_key(version)?.join("bin"))
    };
    configured
        .into_iter()
        .chain(asked())
        .chain(newest())
        .find(|bin| bin.join("initdb").exists())
        .expect("PostgreSQL's server is here, or $PG_BIN says where: apt-get install postgresql")
}

/// A port of 127.0.0.1 for a server that is stopped and started again. It is below the ports that the kernel gives to
/// outgoing connections and to listeners on port 0 (Linux: from 32768 on), so that none of
/// them takes it in the meantime.
pub fn restartable_port() -> u16 {
    static TRIED: AtomicU32 = AtomicU32::new(0);
    // Processes that run at the same time begin at different places.
    let first = std::process::id().wrapping_mul(97);
    loop {
        let tried = TRIED.fetch_add(1, Ordering::Relaxed);
        let port = 10_000 + u16::try_from(first.wrapping_add(tried) % 20_000).unwrap();
        if std::net::TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
}
