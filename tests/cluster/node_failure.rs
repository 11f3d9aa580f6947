//! The failures: each ends nodes of the cluster with signal 9, and starts them again.

use std::time::Duration;

use tokio::time::sleep;

use harness::citus::{CitusCluster, CitusNode};

/// The time for which a killed node is away.
const AWAY: Duration = Duration::from_secs(4);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeFailure {
    None,
    Worker,
    WorkerTwice,
    Coordinator,
    CoordinatorAndWorker,
}

impl NodeFailure {
    pub const ALL: [Self; 5] =
        [Self::None, Self::Worker, Self::WorkerTwice, Self::Coordinator, Self::CoordinatorAndWorker];

    pub fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Worker => "worker",
            Self::WorkerTwice => "other-worker-twice",
            Self::Coordinator => "coordinator",
            Self::CoordinatorAndWorker => "coordinator-and-worker",
        }
    }

    /// The nodes that it ends.
    pub fn nodes(self) -> &'static [CitusNode] {
        use CitusNode::{Coordinator, FirstWorker, SecondWorker};
        match self {
            Self::None => &[],
            Self::Worker => &[FirstWorker],
            Self::WorkerTwice => &[SecondWorker],
            Self::Coordinator => &[Coordinator],
            Self::CoordinatorAndWorker => &[Coordinator, FirstWorker],
        }
    }

    /// Lets it happen, and returns once all nodes are there again.
    pub async fn strike(self, cluster: &CitusCluster) {
        match self {
            Self::None => sleep(AWAY).await,
            Self::WorkerTwice => {
                kill_and_restart(cluster, self.nodes()).await;
                // Long enough for some keys to be executed on it.
                sleep(AWAY / 2).await;
                kill_and_restart(cluster, self.nodes()).await;
            }
            Self::Worker | Self::Coordinator | Self::CoordinatorAndWorker => {
                kill_and_restart(cluster, self.nodes()).await;
            }
        }
    }
}

async fn kill_and_restart(cluster: &CitusCluster, nodes: &[CitusNode]) {
    for node in nodes {
        cluster.kill9(*node);
    }
    sleep(AWAY).await;
    for node in nodes {
        cluster.restart(*node).await;
    }
}
