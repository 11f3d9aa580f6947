//! Many messages, each sent three times, at two proxies that are killed again and again.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use super::{acknowledged, consumer, route};
use harness::rabbitmq::{self, message};
use harness::{Proxy, Setup, Store, Upstream, eventually};

/// The default number; `ONCEGATE_SOAK_MESSAGES` overrides it, and `make soak` sets ten thousand.
const MESSAGES: usize = 600;

/// The number of messages whose outcome one kill may make unknown at once.
const PREFETCH: usize = 16;

/// After so many kills the proxies live on: unknown keys are asked about after a lease, and a proxy that is killed each
/// second never comes to that.
const KILLS_MAX: usize = 60;

/// The interval between two kills, and the one of a long run.
const KILL_EVERY: Duration = Duration::from_millis(400);
const KILL_EVERY_LONG: Duration = Duration::from_secs(1);

struct ProxySlot {
    setup: Setup,
    proxy: Proxy,
}

/// The lines of a route that asks an endpoint beside the service, which answers truthfully. `upstream_timeout` is
/// short: until it is over, the record that a killed proxy was executing holds up its partition.
pub async fn reconciled_soon(upstream: Arc<Upstream>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    tokio::spawn(async move {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            let upstream = Arc::clone(&upstream);
            tokio::spawn(async move {
                let mut head = String::new();
                BufReader::new(&mut stream).read_line(&mut head).await?;
                let key = head.split(['=', ' ']).nth(2).unwrap_or_default().replace("%2F", "/");
                let status = if upstream.executed_for(&key) > 0 { 200 } else { 404 };
                let answer = format!("HTTP/1.1 {status} Whatever\r\nContent-Length: 0\r\nConnection: close\r\n\r\n");
                stream.write_all(answer.as_bytes()).await
            });
        }
    });
    format!(
        "upstream_timeout = \"1s\"\nreconcile = {{ url = \"http://{address}/?k={{key}}\", after = \"0s\", \
         every = \"200ms\", max_attempts = 50 }}"
    )
}

#[tokio::test]
async fn duplicate_messages_at_two_repeatedly_killed_proxies_are_executed_once_and_none_is_lost() {
    let Some(broker) = rabbitmq::shared().await else { return };
    let setting = std::env::var("ONCEGATE_SOAK_MESSAGES").ok();
    let messages: usize =
        setting.map_or(MESSAGES, |number| number.parse().expect("ONCEGATE_SOAK_MESSAGES is a number"));
    let (queue, store) = (broker.queue().await, Store::postgres().await);
    let upstream = Arc::new(Upstream::start().await);
    let lines = reconciled_soon(Arc::clone(&upstream)).await;
    let setup = Proxy::on(&store.url()).upstream(upstream.address).short_leases().store("timeout = \"1s\"");
    let lines =
        setup.route(&route(&lines)).consumer(&consumer(&broker.url(), &queue, &format!("prefetch = {PREFETCH}")));
    let mut seats = Vec::new();
    for _ in 0..2 {
        seats.push(ProxySlot { setup: lines.clone(), proxy: lines.start().await });
    }
    // The copies are apart in the queue, so they can reach different proxies.
    for _ in 0..3 {
        queue.publish((0..messages).map(|number| message(&format!("k-{number}")))).await;
    }
    let (begun, mut kills) = (Instant::now(), 0);
    let limit = Duration::from_secs(60 + messages as u64 / 10);
    while (kills < KILLS_MAX && queue.waiting().await > 0) || kills < 2 {
        // Time and not an event: the interval between two kills under load.
        sleep(if messages > MESSAGES { KILL_EVERY_LONG } else { KILL_EVERY }).await;
        let seat = &mut seats[kills % 2];
        seat.proxy.kill9().await;
        seat.proxy = seat.setup.start().await;
        kills += 1;
    }
    let is_drained = async || (queue.waiting().await == 0).then_some(());
    eventually(limit.saturating_sub(begun.elapsed()), is_drained).await;
    let settled = async || {
        let states = store.states().await;
        (states.len() == messages && states.iter().all(|state| state == "completed")).then_some(())
    };
    eventually(Duration::from_secs(60), settled).await;
    for seat in &seats {
        assert_eq!(seat.proxy.stop().await, Some(0));
    }
    // The last drain may return held messages: they are not executed either. A drain also returns messages that were
    // delivered just before it, so the queue is empty only when all that are left are acknowledged.
    let left = queue.waiting().await;
    let last = lines.start().await;
    acknowledged(&last, left as usize).await;
    queue.has_waiting(0).await;
    assert_eq!(last.stop().await, Some(0));
    assert_eq!(queue.waiting().await, 0);

    let mut executions: BTreeMap<String, usize> = BTreeMap::new();
    for call in upstream.executed() {
        *executions.entry(call.field("idempotency-key").unwrap().to_owned()).or_default() += 1;
    }
    let twice: Vec<_> = executions.iter().filter(|(_, times)| **times > 1).collect();
    assert!(twice.is_empty(), "executed more than once: {twice:?}");
    assert_eq!(executions.len(), messages, "some were lost");
    println!("{messages} messages, three copies of each, {kills} kills, {left} given back at the last drain");
}
