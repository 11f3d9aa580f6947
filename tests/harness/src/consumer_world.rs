//! A proxy that consumes a queue of RabbitMQ.

use super::rabbitmq::{self, Broker, Queue};
use super::{Proxy, Setup, Store, World};

/// A queue, a service, and a proxy that consumes the queue and calls the service.
pub struct ConsumerWorld {
    pub broker: &'static Broker,
    pub queue: Queue,
    pub world: World,
}

/// The default route of these tests, plus these lines.
pub fn route(lines: &str) -> String {
    format!("name = \"pay\"\npath = \"/pay\"\nmethods = [\"POST\"]\n{lines}")
}

/// A consumer of this queue for that route, plus these lines.
pub fn consumer(url: &str, queue: &Queue, lines: &str) -> String {
    format!("amqp = {url:?}\nqueue = {:?}\nroute = \"pay\"\n{lines}", queue.name)
}

/// Returns `None` where RabbitMQ is not installed.
pub async fn consumer_world(store: Store, about_route: &str, about_consumer: &str) -> Option<ConsumerWorld> {
    consumer_world_with(store, about_route, about_consumer, |setup| setup).await
}

pub async fn consumer_world_with(
    store: Store,
    about_route: &str,
    about_consumer: &str,
    more: impl FnOnce(Setup) -> Setup,
) -> Option<ConsumerWorld> {
    let broker = rabbitmq::shared().await?;
    let queue = broker.queue().await;
    let consumer = consumer(&broker.url(), &queue, about_consumer);
    let world = World::with(store, |setup| more(setup.route(&route(about_route)).consumer(&consumer))).await;
    Some(ConsumerWorld { broker, queue, world })
}

impl ConsumerWorld {
    /// Drains the proxy, and returns the number of messages left in the queue: the unacknowledged ones.
    pub async fn left_after_drain(&self) -> u32 {
        assert_eq!(self.world.proxy.stop().await, Some(0));
        self.queue.waiting().await
    }
}

/// Waits until a proxy has acknowledged this many messages.
pub async fn acknowledged(proxy: &Proxy, count: usize) {
    proxy.wait_for_logs("a message is acknowledged", count).await;
}
