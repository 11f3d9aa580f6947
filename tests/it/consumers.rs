//! Messages as callers: each is executed once, whatever is delivered twice or dies in between, and none is lost.

use std::time::Duration;

use crate::harness::rabbitmq::{self, Broker, Queue};
use crate::harness::{Proxy, Setup, Store, World};

mod copies;
mod letters;
mod life;
mod messages;
mod trouble;
mod wires;

/// A queue, and a proxy that consumes it before a service.
pub struct Office {
    pub broker: &'static Broker,
    pub queue: Queue,
    pub world: World,
}

/// The route that most tests have, and these lines about it.
pub fn route(lines: &str) -> String {
    format!("name = \"pay\"\npath = \"/pay\"\nmethods = [\"POST\"]\n{lines}")
}

/// A consumer of this queue for that route, and these lines about it.
pub fn consumer(url: &str, queue: &Queue, lines: &str) -> String {
    format!("amqp = {url:?}\nqueue = {:?}\nroute = \"pay\"\n{lines}", queue.name)
}

/// `None` where RabbitMQ is not installed.
pub async fn office(store: Store, about_route: &str, about_consumer: &str) -> Option<Office> {
    office_with(store, about_route, about_consumer, |setup| setup).await
}

pub async fn office_with(
    store: Store,
    about_route: &str,
    about_consumer: &str,
    more: impl FnOnce(Setup) -> Setup,
) -> Option<Office> {
    let broker = rabbitmq::shared().await?;
    let queue = broker.queue().await;
    let consumer = consumer(&broker.url(), &queue, about_consumer);
    let world = World::with(store, |setup| more(setup.route(&route(about_route)).consumer(&consumer))).await;
    Some(Office { broker, queue, world })
}

impl Office {
    /// Drains the proxy, and counts what is left in the queue then: what nobody has acknowledged.
    pub async fn left_after_drain(&self) -> u32 {
        assert_eq!(self.world.proxy.stop().await, Some(0));
        self.queue.waiting().await
    }
}

/// Waits until a proxy has acknowledged so many messages.
pub async fn acknowledged(proxy: &Proxy, count: usize) {
    proxy.logs_times("a message is acknowledged", count).await;
}

/// Longer than a message that is held takes to be tried again, some times over.
pub const SOME_TRIES: Duration = Duration::from_secs(2);
