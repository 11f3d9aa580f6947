//! Unknown outcomes, and a service that can be asked how they ended.

use std::time::Duration;

use crate::harness::proxy::Setup;
use crate::harness::{Answer, Proxy, Response, Store, Upstream, World, route};

mod asking;
mod comparing;
mod many;

/// Where the service is asked, with the question in its query.
const QUESTION: &str = "lookup?key={key}&route={route}&path={path}";

/// How often, at first.
const EVERY: &str = "500ms";

/// From its reservation until an attempt is quiet here: the store's time and a second to send it, the upstream's time, a
/// lease, and nothing more.
const QUIET: Duration = Duration::from_millis(1_000 + 1_000 + 500 + 1_000);

/// A service, and somebody beside it who knows what it has done.
struct Desk {
    world: World,
    lookup: Upstream,
}

impl Desk {
    /// With one route, `POST /pay`.
    async fn open(store: Store, terms: &str) -> Self {
        Self::with(store, terms, "").await
    }

    /// With more lines about the route.
    async fn with(store: Store, terms: &str, lines: &str) -> Self {
        let lookup = Upstream::start().await;
        let reconcile = reconcile(&lookup, terms);
        let world =
            World::with(store, |setup| hasty(setup).route(&route("pay", &format!("{reconcile}\n{lines}")))).await;
        Self { world, lookup }
    }

    /// The service breaks off: nobody knows what became of this key.
    async fn lose(&self, key: &str, how: Answer) {
        self.world.upstream.then(how);
        assert_eq!(self.world.pay(key).send().await.outcome(), (502, "upstream-broken".to_owned()));
    }

    /// Waits until a retry gets something else than that the outcome is unknown.
    async fn clears_up(&self, key: &str) -> Response {
        crate::harness::eventually(crate::harness::PATIENCE, async || {
            Some(self.world.pay(key).send().await).filter(|answer| answer.outcome().1 != "outcome-unknown")
        })
        .await
    }
}

fn reconcile(lookup: &Upstream, terms: &str) -> String {
    let url = format!("http://{}/{QUESTION}", lookup.address);
    format!("reconcile = {{ url = \"{url}\", after = \"0s\", every = \"{EVERY}\", {terms} }}")
}

/// Short times, so that an attempt is soon over.
fn hasty(setup: Setup) -> Setup {
    setup.short_leases().store("timeout = \"1s\"").defaults("upstream_timeout = \"500ms\"")
}

/// A proxy like this one, beside it on the same store.
async fn beside(world: &World) -> Proxy {
    world.setup.start().await
}
