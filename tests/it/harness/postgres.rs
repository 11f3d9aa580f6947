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

/// Makes the cluster, starts it, says so, and waits for its standard input to end: then it takes everything down and
/// away. Interrupts go to it too, when they go to the whole terminal, and are none of its business.
///
/// Making is not synced: what does not outlive this process need not outlive the machine. What the tests write is.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
bin=$1 home=$2 options=$3
{
  "$bin/initdb" --no-sync --username=postgres --auth=trust --encoding=UTF8 --locale=C --pgdata="$home/data" &&
  "$bin/pg_ctl" start -w -t 60 -D "$home/data" -l "$home/log" -o "$options"
} </dev/null >"$home/made" 2>&1 &&
  echo started || { cat "$home/made" "$home/log" | tr '\n' ' '; echo; }
cat >/dev/null
"$bin/pg_ctl" stop -D "$home/data" -m immediate >/dev/null 2>&1
rm -rf "$home"
"#;

impl Cluster {
    /// Makes a cluster in a directory of its own and starts it on a free port of 127.0.0.1.
    pub fn start(options: &str) -> Self {
        // Between looking for a port and taking it somebody else may be faster.
        (0..5).find_map(|_| Self::try_start(options)).expect("of five ports one is still free when it is taken")
    }

    fn try_start(options: &str) -> Option<Self> {
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
            .arg(&options)
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

    /// Kills it as a power cut would.
    pub fn crash(&self) {
        self.control(&["stop", "-m", "immediate"]);
    }

    /// Starts it again on its port, and waits until it has recovered.
    pub fn restart(&self) {
        self.control(&["start", "-w", "-l", &self.home.join("log").to_string_lossy(), "-o", &self.options]);
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

async fn connect(url: &str) -> Client {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await.unwrap();
    tokio::spawn(connection);
    client
}

/// Who the server runs as: it refuses root.
fn owner() -> Option<(u32, u32)> {
    let id = |flags: &[&str]| -> Option<u32> {
        let output = Command::new("id").args(flags).output().unwrap();
        output.status.success().then(|| String::from_utf8(output.stdout).unwrap().trim().parse().unwrap())
    };
    (id(&["-u"]) == Some(0)).then(|| {
        let there = "there is a user postgres, as PostgreSQL does not run as root: apt-get install postgresql";
        (id(&["-u", "postgres"]).expect(there), id(&["-g", "postgres"]).expect(there))
    })
}

fn as_owner(program: &Path, owner: Option<(u32, u32)>) -> Command {
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
