//! Responses that stream.

use super::wire::Head;
use super::{Answer, Exchange, Feed, Request, World};

pub const EVENTS: &str = "text/event-stream";

/// A request whose client reads trailers.
pub fn pay(world: &World, key: &str) -> Request {
    world.pay(key).field("TE", "trailers")
}

/// Lets the next answer of the service be fed by the test.
pub fn feed(world: &World, media_type: &str) -> Feed {
    let feed = Feed::new();
    world.upstream.then(Answer::fed(200, media_type, &feed));
    feed
}

/// Sends the request and reads the head.
pub async fn open(request: Request) -> (Exchange, Head) {
    let mut exchange = request.open().await.unwrap();
    let head = exchange.any_head().await.unwrap();
    (exchange, head)
}
