//! The parts of every test with real processes: a store of its own, a service that counts, the proxy between them, and
//! a client.

#![allow(clippy::new_without_default, reason = "a test makes its parts by name")]
#![allow(clippy::unwrap_used, reason = "a test that cannot go on should say where")]
#![allow(missing_docs, reason = "for tests alone: a name and its test say it")]

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

pub use client::{Client, Exchange, Request, Response};
pub use proxy::{Proxy, Setup};
pub use store::Store;
pub use store_contract::programs::{find_program, skip};
pub use store_contract::waiting::{TEST_TIMEOUT, eventually};
pub use store_contract::{pgbouncer, postgres, store_fixture, traps};
pub use upstream::{Answer, Feed, Hold, Upstream};

pub mod browser;
pub mod citus;
pub mod client;
pub mod consumer_world;
pub mod database_link;
pub mod dump;
pub mod failover;
pub mod fake_clock;
pub mod full_listener;
pub mod grpc;
pub mod guarded_process;
pub mod h2;
pub mod haproxy;
pub mod in_process;
pub mod issuer;
pub mod kafka;
pub mod metrics;
pub mod oidc_issuer;
pub mod openapi;
pub mod operations;
pub mod operator;
pub mod patroni;
pub mod proxy;
pub mod rabbitmq;
pub mod redis;
pub mod relay;
pub mod reload;
pub mod store;
pub mod streams;
pub mod syscall_fault;
pub mod tls;
pub mod upstream;
pub mod vendor;
pub mod wire;

/// The program that is built with the tests.
pub fn program() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    test.parent().unwrap().with_file_name("oncegate")
}

/// The folder of the repository.
pub fn root() -> &'static Path {
    Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../.."))
}

/// The Python that `make test` has installed packages in.
pub fn python() -> PathBuf {
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| root().join("target"), PathBuf::from);
    target.join("recipes/bin/python3")
}

/// A store, a service, and the proxy in front of it.
pub struct World {
    pub upstream: Upstream,
    pub proxy: Proxy,
    pub setup: Setup,
    pub store: Store,
}

impl World {
    /// With the built-in route: every POST and PATCH with a key.
    pub async fn start(store: Store) -> Self {
        Self::with(store, |setup| setup).await
    }

    /// With one route for `POST /pay` and these lines in it.
    pub async fn guarding(store: Store, lines: &str) -> Self {
        Self::with(store, |setup| {
            setup.route(&format!("name = \"pay\"\npath = \"/pay\"\nmethods = [\"POST\"]\n{lines}"))
        })
        .await
    }

    /// With additional setup of the proxy.
    pub async fn with(store: Store, more: impl FnOnce(Setup) -> Setup) -> Self {
        let upstream = Upstream::start().await;
        let address = upstream.address;
        Self::before(store, upstream, address, more).await
    }

    /// With an unreachable service, and the address at which a test can start one.
    pub async fn before_unreachable_service(store: Store) -> (Self, SocketAddr) {
        let address = Upstream::unused_address().await;
        (Self::before(store, Upstream::start().await, address, |setup| setup).await, address)
    }

    async fn before(store: Store, upstream: Upstream, address: SocketAddr, more: impl FnOnce(Setup) -> Setup) -> Self {
        let setup = more(Proxy::on(&store.url()).upstream(address));
        let proxy = setup.start().await;
        Self { upstream, proxy, setup, store }
    }

    /// Kills the proxy as a power cut does, unless it has ended, and starts the next one on the same store.
    pub async fn crash_and_restart(&mut self) {
        self.proxy.kill9().await;
        self.proxy = self.setup.start().await;
    }

    /// Drains the proxy, and starts one with another setup on the same store and service.
    pub async fn restart_as(&mut self, more: impl FnOnce(Setup) -> Setup) {
        assert_eq!(self.proxy.stop().await, Some(0));
        self.setup = more(Proxy::on(&self.store.url()).upstream(self.upstream.address));
        self.proxy = self.setup.start().await;
    }

    /// The same with a setup that finds keys elsewhere: the first start is refused, and the next one accepts that.
    pub async fn restart_accepting(&mut self, more: impl FnOnce(Setup) -> Setup) {
        assert_eq!(self.proxy.stop().await, Some(0));
        let setup = more(Proxy::on(&self.store.url()).upstream(self.upstream.address));
        let refused = setup.fails().await;
        assert_eq!(refused.code, 78, "{}", refused.stderr);
        self.setup = setup.store(&accept_route_changes(&refused.stderr));
        self.proxy = self.setup.start().await;
    }

    pub fn post(&self, path: &str) -> Request {
        self.proxy.post(path)
    }

    pub fn get(&self, path: &str) -> Request {
        self.proxy.client().get(path)
    }

    /// The request that most tests send.
    pub fn pay(&self, key: &str) -> Request {
        self.post("/pay").key(key).json(r#"{"amount":10,"currency":"EUR"}"#)
    }
}

/// The line of `[store]` that accepts the change which a start or `oncegate check --connect` refused with this text.
pub fn accept_route_changes(refusal: &str) -> String {
    let (_, digest) =
        refusal.rsplit_once("accept_route_changes = \"").unwrap_or_else(|| panic!("no digest: {refusal}"));
    format!("accept_route_changes = \"{}\"", digest.split_once('"').unwrap().0)
}

/// A named route for `POST` at the path of the same name, plus these lines.
pub fn route(name: &str, lines: &str) -> String {
    format!("name = \"{name}\"\npath = \"/{name}\"\nmethods = [\"POST\"]\n{lines}")
}

/// A service at this address, with `NAME.example` as its host.
pub fn service(name: &str, address: SocketAddr) -> String {
    format!("name = \"{name}\"\nhost = \"{name}.example\"\nupstream = \"http://{address}\"")
}

/// Two tests from one body: it runs on SQLite and on PostgreSQL.
#[macro_export]
macro_rules! on_both_stores {
    ($test:ident) => {
        mod $test {
            #[tokio::test]
            async fn sqlite() {
                super::$test($crate::Store::sqlite()).await;
            }

            #[tokio::test]
            async fn postgres() {
                super::$test($crate::Store::postgres().await).await;
            }
        }
    };
}
