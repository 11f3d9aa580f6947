//! The events: each ends or replaces the primary.

use std::time::Duration;

use rustix::process::{Signal, kill_process};
use tokio::time::{Instant, sleep, sleep_until};

use super::patroni::{PatroniCluster, PatroniNode, eventually};
use super::postgres::{freeze, thaw};

/// The shortest time for which a server is frozen; it stays so until another one is promoted.
const FREEZE_MIN: Duration = Duration::from_secs(20);

/// The time for which a former primary stays cut off or frozen beside its successor.
const OVERLAP: Duration = Duration::from_secs(3);

/// The time for which waits are cancelled: twice as long as a call of the store tries.
const CANCELLING: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FailoverEvent {
    /// A planned switchover by Patroni's API.
    Switchover,
    /// `kill -9` of the primary's first process. Its agent lives, and starts it again.
    KilledServer,
    /// SIGSTOP of all processes of the primary, as by a hung disk. Its agent lives.
    FrozenServer,
    /// The primary loses etcd and its standbys, and its clients still reach it.
    CutNode,
    /// `kill -9` of the primary's agent. The server goes on, also when its successor is promoted.
    KilledAgent,
    /// The primary's log reaches no standby for some seconds, while each commit's wait for one is cancelled. Then agent
    /// and server are killed.
    CancelledWaits,
}

impl FailoverEvent {
    pub const ALL: [Self; 6] = [
        Self::Switchover,
        Self::KilledServer,
        Self::FrozenServer,
        Self::CutNode,
        Self::KilledAgent,
        Self::CancelledWaits,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::Switchover => "switchover",
            Self::KilledServer => "killed-server",
            Self::FrozenServer => "frozen-server",
            Self::CutNode => "cut-node",
            Self::KilledAgent => "killed-agent",
            Self::CancelledWaits => "cancelled-waits",
        }
    }

    /// Lets it happen, and returns once a primary works and the cause is gone. The killed agent stays dead. Returns the
    /// time after which a server took writes again, or another one did.
    pub async fn strike(self, cluster: &PatroniCluster) -> Duration {
        let former = eventually("there is a primary", async || cluster.primary(None).await).await;
        let node = &cluster.nodes[former];
        let process = node.postmaster().unwrap();
        let begun = Instant::now();
        match self {
            Self::Switchover => {
                cluster.switch_over(former).await;
                wait_for_successor(cluster, former, begun).await
            }
            Self::KilledServer => {
                kill_process(process, Signal::KILL).unwrap();
                eventually("a server takes writes again", async || {
                    let restarted = node.postmaster() != Some(process) && node.takes_writes().await == Some(true);
                    (restarted || cluster.primary(Some(former)).await.is_some()).then_some(())
                })
                .await;
                begun.elapsed()
            }
            Self::FrozenServer => {
                freeze(process);
                let promoted = wait_for_successor(cluster, former, begun).await;
                sleep_until(begun + FREEZE_MIN.max(promoted + OVERLAP)).await;
                thaw(process);
                wait_for_demotion(node).await;
                promoted
            }
            Self::CutNode => {
                node.cut();
                let promoted = wait_for_successor(cluster, former, begun).await;
                sleep(OVERLAP).await;
                node.restore();
                wait_for_demotion(node).await;
                promoted
            }
            Self::KilledAgent => {
                node.agent.kill9();
                wait_for_successor(cluster, former, begun).await
            }
            Self::CancelledWaits => {
                node.cut_replication();
                node.cancel_waits(CANCELLING).await;
                let lost = Instant::now();
                node.agent.kill9();
                kill_process(process, Signal::KILL).unwrap();
                wait_for_successor(cluster, former, lost).await
            }
        }
    }
}

async fn wait_for_successor(cluster: &PatroniCluster, former: usize, begun: Instant) -> Duration {
    eventually("another server is promoted", async || cluster.primary(Some(former)).await).await;
    begun.elapsed()
}

async fn wait_for_demotion(node: &PatroniNode) {
    eventually("the former primary is a standby", async || (node.takes_writes().await == Some(false)).then_some(()))
        .await;
}
