//! A real HAProxy in front of several stores, with the configuration that `deploy/haproxy` has for them.

use std::fs;
use std::net::SocketAddr;
use std::path::PathBuf;

use super::client::Client;
use super::guarded_process::{GuardedProcess, new_home};
use super::postgres::restartable_port;
use super::{TEST_TIMEOUT, eventually, find_program};

const CONFIGURATION: &str = include_str!("../../../deploy/haproxy/sharding.cfg");

/// A running HAProxy. It ends when this value is dropped.
pub struct ShardingHaproxy {
    pub client: Client,
    home: PathBuf,
    _process: GuardedProcess,
}

impl ShardingHaproxy {
    /// Starts one before two stores with two proxies each; `None` with a message if HAProxy is not installed.
    pub async fn before(shards: [[SocketAddr; 2]; 2]) -> Option<Self> {
        let Some(program) = find_program(&["haproxy"]) else {
            super::skip("HAProxy is not installed (apt-get install haproxy)");
            return None;
        };
        let (home, port) = (new_home("haproxy"), restartable_port());
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        fs::write(home.join("sharding.cfg"), configuration(address, shards)).unwrap();
        let process = GuardedProcess::start(&home, &[program.to_str().unwrap(), "-db", "-f", "sharding.cfg"], "");
        let haproxy = Self { client: Client { address }, home, _process: process };
        eventually(TEST_TIMEOUT, async || haproxy.client.try_connect().await.ok()).await;
        Some(haproxy)
    }

    /// Whether a request has moved to another server since the start, because the
    /// connection to the first one was refused.
    pub fn has_redispatched(&self) -> bool {
        // Of the five numbers of connections, the last one counts the retries; a plus says
        // that the server was another one.
        let log = fs::read_to_string(self.home.join("log")).unwrap();
        log.lines().any(|line| line.split(' ').any(|word| word.split('/').count() == 5 && word.contains("/+")))
    }
}

/// The shipped configuration with the test's addresses, and without another user.
fn configuration(address: SocketAddr, shards: [[SocketAddr; 2]; 2]) -> String {
    let mut text = CONFIGURATION.to_owned();
    let mut replace = |shipped: &str, with: &str| {
        assert!(text.contains(shipped), "the configuration has {shipped:?}");
        text = text.replace(shipped, with);
    };
    replace("    bind :8080\n", &format!("    bind {address}\n"));
    replace("    user haproxy\n    group haproxy\n", "");
    for (shard, proxies) in shards.iter().enumerate() {
        for (number, proxy) in proxies.iter().enumerate() {
            replace(&format!("10.20.{shard}.1{}:8080", number + 1), &proxy.to_string());
        }
    }
    text
}
