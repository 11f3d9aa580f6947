//! The example in `examples/orders`, run as documented, and killed at the critical moments.

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::process::{Child, Command, Stdio};

use tokio_postgres::Client as Sql;

use harness::postgres::{self, TestDatabase};
use harness::rabbitmq::{self, Broker};
use harness::relay::Relay;
use harness::{Answer, Hold, Proxy, Request, Setup, TEST_TIMEOUT, Upstream, eventually};

const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/examples/orders");

/// Debian's Python, which has Debian's modules.
const PYTHON: &str = "/usr/bin/python3";

/// The example and everything it needs.
struct Shop {
    proxy: Proxy,
    setup: Setup,
    service: Service,
    /// Between the proxy and the service.
    wire: Relay,
    /// The payment provider.
    provider: Upstream,
    sql: Sql,
}

/// The example's service. It is killed when this is dropped.
struct Service {
    child: Child,
    settings: Vec<(&'static str, String)>,
}

impl Service {
    async fn start(settings: Vec<(&'static str, String)>) -> Self {
        let mut command = Command::new(PYTHON);
        command.arg(format!("{FOLDER}/orders.py")).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.envs(settings.iter().map(|(name, value)| (name, value))).spawn().unwrap();
        let mut output = BufReader::new(child.stdout.take().unwrap()).lines();
        let ready = tokio::task::spawn_blocking(move || {
            let ready = output.next().and_then(Result::ok).as_deref() == Some("ready");
            // Its further output is for the log of a failed test.
            std::thread::spawn(move || output.map_while(Result::ok).for_each(|line| eprintln!("orders.py: {line}")));
            ready
        });
        assert!(ready.await.unwrap(), "the example's service does not start");
        Self { child, settings }
    }

    /// Kills it as a power cut does, and starts the next one.
    async fn kill9_and_restart(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        *self = Self::start(self.settings.clone()).await;
    }
}

impl Drop for Service {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Shop {
    /// Returns `None` with a message if a requirement of the example is not installed.
    async fn open() -> Option<Self> {
        let modules = Command::new(PYTHON).args(["-c", "import pika, psycopg2"]).output();
        if !modules.is_ok_and(|modules| modules.status.success()) {
            harness::skip("apt-get install python3-psycopg2 python3-pika");
            return None;
        }
        let broker = rabbitmq::shared().await?;
        let database = postgres::database().await;
        let sql = database.client().await;
        // A role of this test's own instead of the example's.
        let role = format!("orders_of_{}", database.name);
        let schema = std::fs::read_to_string(format!("{FOLDER}/schema.sql")).unwrap();
        let schema = schema.replace(" to orders;", &format!(" to {role};"));
        sql.batch_execute(&format!("create role {role} login; {schema}")).await.unwrap();

        let provider = Upstream::start().await;
        let listen = Upstream::unused_address().await;
        let settings = vec![
            ("ORDERS_LISTEN", listen.to_string()),
            ("ORDERS_DATABASE", url_as(&database, &role)),
            ("ORDERS_BROKER", broker.url()),
            // The broker is shared with other tests.
            ("ORDERS_QUEUE", database.name.clone()),
            ("ORDERS_PROVIDER", format!("http://{}/charges", provider.address)),
        ];
        let service = Service::start(settings).await;
        let wire = Relay::to(listen).await;
        let (proxy, setup) = proxy(&database, broker, wire.address).await;
        Some(Self { proxy, setup, service, wire, provider, sql })
    }

    fn order(&self, key: &str) -> Request {
        self.proxy.post("/orders").key(key).json(r#"{"item":"book","amount":10}"#)
    }

    async fn number(&self, sql: &str) -> i64 {
        self.sql.query_one(sql, &[]).await.unwrap().get(0)
    }

    async fn orders(&self) -> i64 {
        self.number("select count(*) from shop.orders").await
    }

    /// Waits until this many orders are paid.
    async fn has_paid(&self, orders: i64) {
        let paid = "select count(*) from shop.orders where state = 'paid'";
        eventually(TEST_TIMEOUT, async || (self.number(paid).await == orders).then_some(())).await;
    }

    /// The keys under which the provider was charged.
    fn charges(&self) -> Vec<String> {
        let asked = self.provider.executed();
        asked.iter().map(|charge| charge.field("idempotency-key").unwrap_or_default().to_owned()).collect()
    }
}

/// The proxy with the example's own configuration.
async fn proxy(database: &TestDatabase, broker: &Broker, upstream: SocketAddr) -> (Proxy, Setup) {
    let text = std::fs::read_to_string(format!("{FOLDER}/oncegate.toml")).unwrap();
    let setup = Proxy::from_file_text(&text, &database.url, upstream)
        .environment("ORDERS_BROKER", &broker.url())
        .environment("ORDERS_QUEUE", &database.name);
    (setup.start().await, setup)
}

fn url_as(database: &TestDatabase, role: &str) -> String {
    database.url.replace("postgres://postgres@", &format!("postgresql://{role}@"))
}

#[tokio::test]
async fn a_proxy_killed_before_the_answer_leaves_one_order_one_payment_and_one_replay() {
    let Some(mut shop) = Shop::open().await else { return };
    // The service has the request, and waits for the table.
    let held = &mut shop.sql;
    let hold = held.transaction().await.unwrap();
    hold.batch_execute("lock table shop.orders").await.unwrap();
    let first = shop.proxy.post("/orders").key("order-1").json(r#"{"item":"book","amount":10}"#).spawn();
    let waits = "select count(*) from pg_locks where relation = 'shop.orders'::regclass and not granted";
    eventually(TEST_TIMEOUT, async || (hold.query_one(waits, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(()))
        .await;
    // From here on the service's answer reaches no one.
    shop.wire.silence();
    hold.commit().await.unwrap();
    let state = "select count(*) from oncegate.keys where state = 'completed' and route = 'create-order'";
    eventually(TEST_TIMEOUT, async || (shop.number(state).await == 1).then_some(())).await;
    assert!(!first.is_finished());
    shop.proxy.kill9().await;
    first.await.unwrap().expect_err("its connection went with the proxy");
    shop.wire.restore();
    shop.proxy = shop.setup.start().await;

    let replays = [shop.order("order-1").send().await, shop.order("order-1").send().await];
    for replay in &replays {
        assert_eq!((replay.status, replay.oncegate_status(), replay.is_replay()), (201, Some("replayed"), true));
        assert_eq!(replay.field("content-type"), Some("application/json"));
        assert_eq!(replay.text(), r#"{"order": 1, "state": "accepted"}"#);
    }
    assert_eq!(replays[0].comparable(), replays[1].comparable());
    assert_eq!(shop.orders().await, 1);
    shop.has_paid(1).await;
    assert_eq!(shop.charges(), ["order-1:payment"]);
    // A retry gets the same bytes.
    let next = shop.order("\"order-2\"").send().await;
    assert_eq!(
        (next.status, next.oncegate_status(), &*next.text()),
        (201, Some("executed"), r#"{"order": 2, "state": "accepted"}"#)
    );
    assert_eq!(shop.order("\"order-2\"").send().await.comparable(), next.replayed());
    shop.has_paid(2).await;
    assert_eq!(shop.charges(), ["order-1:payment", "order-2:payment"]);
}

#[tokio::test]
async fn a_service_killed_after_the_charge_continues_from_its_recovery_point() {
    let Some(mut shop) = Shop::open().await else { return };
    // The payment step has its message, and waits for the provider.
    let charged = Hold::new();
    shop.provider.then(Answer::status(201).hold(&charged));
    assert_eq!(shop.order("order-1").send().await.status, 201);
    shop.provider.wait_for_executed(1).await;
    // It charges, stores its recovery point, and waits for the order.
    let hold = shop.sql.transaction().await.unwrap();
    hold.batch_execute("select from shop.orders for update").await.unwrap();
    charged.release();
    let point = "select count(*) from oncegate.keys where recovery_point = 'charge_created' and attempt = 1";
    eventually(TEST_TIMEOUT, async || (hold.query_one(point, &[]).await.unwrap().get::<_, i64>(0) == 1).then_some(()))
        .await;
    shop.service.kill9_and_restart().await;
    hold.commit().await.unwrap();

    // The message is still unacknowledged, and is retried without help.
    shop.has_paid(1).await;
    let settled_rows =
        "select count(*) from oncegate.keys where route = 'process-payment' and state = 'completed' and attempt >= 2";
    eventually(TEST_TIMEOUT, async || (shop.number(settled_rows).await == 1).then_some(())).await;
    assert_eq!(shop.charges(), ["order-1:payment"], "one charge");
    assert_eq!(shop.provider.executed()[0].target, "/charges");
}
