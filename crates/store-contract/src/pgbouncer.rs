//! A real PgBouncer in transaction mode in front of a test's PostgreSQL: on a free port, for this process alone, and
//! never the package's own service.

use std::fs;
use std::io::Write;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};

use tokio::sync::OnceCell;
use tokio_postgres::{Client, NoTls};

use crate::postgres::{TestDatabase, as_owner, owner, restartable_port};
use crate::programs::{find_program, skip};
use crate::waiting::{TEST_TIMEOUT, eventually};

/// A running PgBouncer. It ends when this value is dropped.
pub struct Bouncer {
    port: u16,
    /// The guardian's standard input is a pipe that closes when this process ends in any way.
    guardian: Child,
}

/// Starts PgBouncer, restarts it for each line of input, and cleans up at the end of the input.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
program=$1 home=$2
start() { "$program" "$home/pgbouncer.ini" >>"$home/log" 2>&1 </dev/null & pid=$!; }
start
while read -r _; do kill -9 $pid; wait $pid; start; done
kill -9 $pid
rm -rf "$home"
"#;

/// The shared one in front of the tests' cluster; `None` with a message if PgBouncer is not installed.
pub async fn shared(database: &TestDatabase) -> Option<&'static Bouncer> {
    static SHARED: OnceCell<Option<Bouncer>> = OnceCell::const_new();
    SHARED.get_or_init(|| Bouncer::before(database)).await.as_ref()
}

impl Bouncer {
    /// A separate one in front of a database's server; `None` with a message if PgBouncer is not installed.
    pub async fn before(database: &TestDatabase) -> Option<Self> {
        let Some(program) = find_program(&["pgbouncer"]) else {
            skip("pgbouncer is not installed (apt-get install pgbouncer)");
            return None;
        };
        let home = tempfile::Builder::new().prefix("oncegate-pgbouncer-").tempdir().unwrap().keep();
        let port = restartable_port();
        let (host, server) = database.address().split_once(':').unwrap();
        // Round robin: two consecutive statements run in two sessions.
        let ini = format!(
            "[databases]\n* = host={host} port={server} user=postgres\n\
             [pgbouncer]\npool_mode = transaction\nlisten_addr = 127.0.0.1\nlisten_port = {port}\nunix_socket_dir =\n\
             auth_type = any\nadmin_users = postgres\nserver_round_robin = 1\nmax_client_conn = 1000\ndefault_pool_size = 16\n\
             server_login_retry = 0.1\n"
        );
        fs::write(home.join("pgbouncer.ini"), ini).unwrap();
        if let Some((uid, gid)) = owner() {
            chown(&home, Some(uid), Some(gid)).unwrap();
        }
        let guardian = as_owner(Path::new("sh"), owner())
            .args(["-c", GUARDIAN, "guardian"])
            .args([&program, &home])
            .current_dir(&home)
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        let bouncer = Self { port, guardian };
        bouncer.is_up().await;
        Some(bouncer)
    }

    /// The database's address through PgBouncer.
    pub fn to(&self, database: &TestDatabase) -> TestDatabase {
        database.at(&format!("127.0.0.1:{}", self.port))
    }

    /// Closes all connections of a database, the clients' and the server's, and accepts new ones.
    pub async fn drop_connections(&self, database: &TestDatabase) {
        let console = self.console().await.unwrap();
        console.batch_execute(&format!("KILL {}", database.name)).await.unwrap();
        console.batch_execute(&format!("RESUME {}", database.name)).await.unwrap();
    }

    /// Kills it with signal 9 and starts it again.
    pub async fn restart(&mut self) {
        let console = self.console().await.unwrap();
        self.guardian.stdin.as_mut().unwrap().write_all(b"again\n").unwrap();
        eventually(TEST_TIMEOUT, async || console.is_closed().then_some(())).await;
        self.is_up().await;
    }

    async fn is_up(&self) {
        eventually(TEST_TIMEOUT, async || self.console().await.ok()).await;
    }

    async fn console(&self) -> Result<Client, tokio_postgres::Error> {
        let url = format!("postgres://postgres@127.0.0.1:{}/pgbouncer", self.port);
        let (client, connection) = tokio_postgres::connect(&url, NoTls).await?;
        tokio::spawn(connection);
        Ok(client)
    }
}

impl Drop for Bouncer {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}
