//! A real RabbitMQ for the tests: on free ports, with a name, a port mapper and a home of its own, started when the first
//! test of a process needs it, and never longer alive than that process.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::eventually;

/// A running broker. Its end is this value's end.
pub struct Broker {
    port: u16,
    /// Its standard input is a pipe that ends with this process, however that ends.
    #[expect(dead_code, reason = "it holds the pipe")]
    guardian: Child,
}

/// Starts the port mapper and the broker, each in a group of its own, and takes everything away when its input ends.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
server=$1 home=$2
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 >/dev/null 2>&1 </dev/null & epmd=$!
setsid "$server" >>"$home/log" 2>&1 </dev/null & pid=$!
cat >/dev/null
kill -9 -$pid 2>/dev/null
kill $epmd
wait
rm -rf "$home"
"#;

/// Erlang starts within seconds, on a busy machine within a minute.
const START_MAX: Duration = Duration::from_secs(120);

/// The one that tests share; `None`, said loudly, where RabbitMQ is not installed.
pub async fn shared() -> Option<&'static Broker> {
    static SHARED: OnceLock<Option<Broker>> = OnceLock::new();
    let broker = tokio::task::spawn_blocking(|| SHARED.get_or_init(Broker::launch)).await.unwrap().as_ref()?;
    eventually(START_MAX, async || broker.greets().await.ok()).await;
    Some(broker)
}

impl Broker {
    fn launch() -> Option<Self> {
        let Some(server) = server() else {
            eprintln!("skipped: RabbitMQ is not installed (apt-get install rabbitmq-server)");
            return None;
        };
        let home = tempfile::Builder::new().prefix("oncegate-rabbitmq-").tempdir().unwrap().keep();
        let port = || TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let (node, between_nodes, mapper) = (port(), port(), port());
        let at = |name: &str| home.join(name).into_os_string();
        let guardian = Command::new("sh")
            .args(["-c", GUARDIAN, "guardian"])
            .args([&server, &home])
            .current_dir(&home)
            .env("HOME", &home)
            .env("ERL_EPMD_PORT", mapper.to_string())
            .env("RABBITMQ_NODENAME", format!("oncegate-{node}@localhost"))
            .env("RABBITMQ_NODE_IP_ADDRESS", "127.0.0.1")
            .env("RABBITMQ_NODE_PORT", node.to_string())
            .env("RABBITMQ_DIST_PORT", between_nodes.to_string())
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "-kernel inet_dist_use_interface {127,0,0,1}")
            .env("RABBITMQ_MNESIA_BASE", at("data"))
            .env("RABBITMQ_LOG_BASE", at("logs"))
            .env("RABBITMQ_PID_FILE", at("pid"))
            .env("RABBITMQ_CONF_ENV_FILE", "/dev/null")
            .env("RABBITMQ_CONFIG_FILE", at("rabbitmq"))
            .env("RABBITMQ_ADVANCED_CONFIG_FILE", at("advanced.config"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", at("plugins"))
            .env("RABBITMQ_GENERATED_CONFIG_DIR", at("config"))
            .env("RABBITMQ_SCHEMA_DIR", at("schema"))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .unwrap();
        Some(Self { port: node, guardian })
    }

    /// How a client is told of it.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    /// Asks for the protocol of AMQP 0-9-1, and hears the first method (a frame of type 1).
    async fn greets(&self) -> std::io::Result<()> {
        let mut stream = TcpStream::connect(SocketAddr::from(([127, 0, 0, 1], self.port))).await?;
        stream.write_all(b"AMQP\0\0\x09\x01").await?;
        match stream.read_u8().await? {
            1 => Ok(()),
            _ => Err(std::io::ErrorKind::InvalidData.into()),
        }
    }
}

/// The broker's own script, not the one before it that becomes another user.
fn server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = PathBuf::from("/usr/lib/rabbitmq/bin");
    let folders = [debian].into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("rabbitmq-server")).find(|program| Path::exists(program))
}
