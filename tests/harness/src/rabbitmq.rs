//! A real RabbitMQ for the tests: on free ports, with its own name, cookie, port mapper and home, started when the
//! first test of a process needs it, and ended with that process.

use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use lapin::message::Delivery;
use lapin::options::*;
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Confirmation, Connection, ConnectionProperties, ExchangeKind};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::postgres::restartable_port;
use super::{TEST_TIMEOUT, eventually};

/// A running broker. It ends when this value is dropped.
pub struct Broker {
    port: u16,
    /// The guardian's standard input is a pipe that closes when this process ends in any way.
    guardian: Child,
}

/// Starts the port mapper and the broker, each in its own process group; kills the broker for each line `kill`, shuts
/// it down for each line `stop`, starts it for each line `start`, and cleans up at the end of the input.
const GUARDIAN: &str = r#"
trap '' INT HUP TERM
server=$1 home=$2
epmd -port "$ERL_EPMD_PORT" -address 127.0.0.1 >/dev/null 2>&1 </dev/null & epmd=$!
start() { (trap - TERM; exec setsid "$server" >>"$home/log" 2>&1 </dev/null) & pid=$!; }
kill9() { kill -9 -$pid; wait $pid; } 2>/dev/null
stop() { kill -TERM $pid; wait $pid; } 2>/dev/null
start
while read -r word; do
  case $word in kill) kill9 ;; stop) stop ;; start) start ;; esac
done
kill9
kill -9 $epmd
wait $epmd
rm -rf "$home"
"#;

/// Erlang starts and stops within seconds, and within a minute on a busy machine.
const START_MAX: Duration = Duration::from_secs(120);

/// Longer than a running server takes to greet on a busy machine.
const CONNECT_MAX: Duration = Duration::from_secs(5);

/// The shared broker; `None` with a message if RabbitMQ is not installed.
pub async fn shared() -> Option<&'static Broker> {
    static SHARED: OnceLock<Option<Broker>> = OnceLock::new();
    let broker = tokio::task::spawn_blocking(|| SHARED.get_or_init(Broker::launch)).await.unwrap().as_ref()?;
    broker.is_up().await;
    Some(broker)
}

impl Broker {
    /// A separate broker for one test.
    pub async fn start() -> Option<Self> {
        let broker = tokio::task::spawn_blocking(Self::launch).await.unwrap()?;
        broker.is_up().await;
        Some(broker)
    }

    fn launch() -> Option<Self> {
        let Some(server) = server() else {
            super::skip("RabbitMQ is not installed (apt-get install rabbitmq-server)");
            return None;
        };
        let home = tempfile::Builder::new().prefix("oncegate-rabbitmq-").tempdir().unwrap().keep();
        let (node, between_nodes, mapper) = (restartable_port(), restartable_port(), restartable_port());
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

    /// Kills it as a power cut would, and waits until it refuses clients. A queue that was declared just before may be
    /// lost: RabbitMQ 3.10 confirms some declarations before they are on the disk.
    pub async fn kill9(&mut self) {
        self.tell("kill");
        self.is_down().await;
    }

    /// Shuts it down, so that durable queues and persistent messages are on the disk, and
    /// waits until it refuses clients.
    pub async fn stop(&mut self) {
        self.tell("stop");
        self.is_down().await;
    }

    /// Starts it again, and waits until it accepts clients.
    pub async fn restart(&mut self) {
        self.tell("start");
        self.is_up().await;
    }

    fn tell(&mut self, word: &str) {
        writeln!(self.guardian.stdin.as_mut().unwrap(), "{word}").unwrap();
    }

    /// The URL for a consumer's configuration.
    pub fn url(&self) -> String {
        format!("amqp://guest:guest@127.0.0.1:{}", self.port)
    }

    pub fn address(&self) -> SocketAddr {
        ([127, 0, 0, 1], self.port).into()
    }

    /// A new durable queue.
    pub async fn queue(&self) -> Queue {
        self.queue_with(FieldTable::default()).await
    }

    pub async fn queue_with(&self, arguments: FieldTable) -> Queue {
        static COUNTER: AtomicU32 = AtomicU32::new(1);
        let queue = Queue::at(self, &format!("queue-{}", COUNTER.fetch_add(1, Ordering::Relaxed))).await;
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        queue.channel.queue_declare((*queue.name).into(), options, arguments).await.unwrap();
        queue
    }

    /// A new exchange, and a queue bound to it that gets all its messages.
    pub async fn exchange(&self) -> (String, Queue) {
        let queue = self.queue().await;
        let name = format!("dead-of-{}", queue.name);
        let options = ExchangeDeclareOptions { durable: true, ..Default::default() };
        let fields = FieldTable::default();
        queue.channel.exchange_declare((*name).into(), ExchangeKind::Fanout, options, fields.clone()).await.unwrap();
        let bound =
            queue.channel.queue_bind((*queue.name).into(), (*name).into(), "".into(), Default::default(), fields);
        bound.await.unwrap();
        (name, queue)
    }

    async fn is_up(&self) {
        eventually(START_MAX, || self.connect()).await;
    }

    async fn is_down(&self) {
        eventually(START_MAX, async || TcpStream::connect(self.address()).await.err()).await;
    }

    /// `None` also where a server that is starting leaves lapin without an answer.
    async fn connect(&self) -> Option<Connection> {
        timeout(CONNECT_MAX, Connection::connect(&self.url(), ConnectionProperties::default())).await.ok()?.ok()
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        drop(self.guardian.stdin.take());
        drop(self.guardian.wait());
    }
}

/// A queue, with a publisher's channel.
pub struct Queue {
    pub name: String,
    channel: Channel,
    /// Kept open, since its channels end with it.
    _connection: Connection,
}

/// A message to publish.
#[derive(Clone, Debug, Default)]
pub struct Message {
    headers: FieldTable,
    body: Vec<u8>,
    id: Option<String>,
    persistent: bool,
}

/// The default message of these tests.
pub fn message(key: &str) -> Message {
    Message { body: br#"{"amount":10}"#.to_vec(), persistent: true, ..Message::default() }
        .header("x-idempotency-key", key)
}

impl Message {
    pub fn header(mut self, name: &str, value: &str) -> Self {
        self.headers.insert(name.into(), AMQPValue::LongString(value.as_bytes().into()));
        self
    }

    pub fn body(self, body: impl Into<Vec<u8>>) -> Self {
        Self { body: body.into(), ..self }
    }

    pub fn id(self, id: &str) -> Self {
        Self { id: Some(id.to_owned()), ..self }
    }

    pub fn without_headers(self) -> Self {
        Self { headers: FieldTable::default(), ..self }
    }
}

impl Queue {
    /// An existing or missing queue of that name.
    pub async fn at(broker: &Broker, name: &str) -> Self {
        let connection = eventually(TEST_TIMEOUT, || broker.connect()).await;
        let channel = connection.create_channel().await.unwrap();
        channel.confirm_select(ConfirmSelectOptions::default()).await.unwrap();
        Self { name: name.to_owned(), channel, _connection: connection }
    }

    /// Declares it under its name.
    pub async fn declare(&self) {
        let options = QueueDeclareOptions { durable: true, ..Default::default() };
        self.channel.queue_declare((*self.name).into(), options, FieldTable::default()).await.unwrap();
    }

    /// Binds it to an exchange, so that it gets all its messages.
    pub async fn bind(&self, exchange: &str) {
        let (name, fields) = ((*self.name).into(), FieldTable::default());
        self.channel.queue_bind(name, exchange.into(), "".into(), Default::default(), fields).await.unwrap();
    }

    /// Publishes messages, and waits until the broker has confirmed them all.
    pub async fn publish(&self, messages: impl IntoIterator<Item = Message>) {
        let mut confirmations = Vec::new();
        for message in messages {
            let properties = BasicProperties::default()
                .with_content_type("application/json".into())
                .with_delivery_mode(if message.persistent { 2 } else { 1 })
                .with_headers(message.headers);
            let properties = match message.id {
                Some(id) => properties.with_message_id((*id).into()),
                None => properties,
            };
            let options = BasicPublishOptions::default();
            let sent = self.channel.basic_publish("".into(), (*self.name).into(), options, &message.body, properties);
            confirmations.push(sent.await.unwrap());
        }
        for confirmation in confirmations {
            assert_eq!(confirmation.await.unwrap(), Confirmation::Ack(None));
        }
    }

    /// The number of waiting messages, without unacknowledged ones.
    pub async fn waiting(&self) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let queue = self.channel.queue_declare((*self.name).into(), options, FieldTable::default()).await.unwrap();
        queue.message_count()
    }

    /// The number of its consumers.
    pub async fn consumers(&self) -> u32 {
        let options = QueueDeclareOptions { passive: true, ..Default::default() };
        let queue = self.channel.queue_declare((*self.name).into(), options, FieldTable::default()).await.unwrap();
        queue.consumer_count()
    }

    /// Waits until this many messages wait in it.
    pub async fn has_waiting(&self, count: u32) {
        eventually(TEST_TIMEOUT, async || (self.waiting().await == count).then_some(())).await;
    }

    /// Takes its next message.
    pub async fn next(&self) -> Delivery {
        let taken = eventually(TEST_TIMEOUT, async || {
            self.channel.basic_get((*self.name).into(), BasicGetOptions { no_ack: true }).await.unwrap()
        });
        taken.await.delivery
    }

    /// Deletes it with its messages.
    pub async fn delete(&self) {
        self.channel.queue_delete((*self.name).into(), QueueDeleteOptions::default()).await.unwrap();
    }
}

/// The value of an Oncegate header of a dead letter.
pub fn dead_letter_header(dead_letter: &Delivery, name: &str) -> Option<String> {
    match dead_letter.properties.headers().as_ref()?.inner().get(name)? {
        AMQPValue::LongString(text) => Some(text.to_string()),
        AMQPValue::LongInt(number) => Some(number.to_string()),
        other => panic!("{other:?}"),
    }
}

/// The broker's own script, and not the wrapper that switches the user.
fn server() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let debian = PathBuf::from("/usr/lib/rabbitmq/bin");
    let folders = [debian].into_iter().chain(std::env::split_paths(&path));
    folders.map(|folder| folder.join("rabbitmq-server")).find(|program| Path::exists(program))
}
