//! A lossy link between a client and a service, and the verdict on the client's retries.
//!
//! The link forwards each request of an operation to the service, and loses, cuts, delays, doubles or replaces the
//! answer by a seeded `plan`. It writes down what the client sends next; `judge` makes findings of that.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::net::TcpListener;

use link::LinkServer;
use operations::{ClientEnd, ObservedOperation, ObservedRequest, OperationLog};
use plan::LinkFault;

use crate::endpoint::ProbedEndpoint;
use crate::plan::ProbeKeyPlace;
use crate::report::{IdempotencyReport, ReportWords};

pub use link::LinkTiming;
pub use operations::OperationIdentity;

mod judge;
mod link;
mod operations;
mod plan;

/// The number of operations of which each meets another fault.
pub const ROUND: usize = LinkFault::ALL.len();

/// The link, and how it tells operations apart.
pub struct ConformPlan {
    /// The service behind the link.
    pub endpoint: ProbedEndpoint,
    pub listen: SocketAddr,
    /// The way in which operations are told apart.
    pub identity: OperationIdentity,
    pub key_place: ProbeKeyPlace,
    pub seed: u64,
    pub timing: LinkTiming,
}

pub struct LossyLink {
    server: Arc<LinkServer>,
    seed: u64,
}

struct ConformCounts {
    operations: usize,
    requests: usize,
    keys: usize,
    executions: usize,
}

impl LossyLink {
    /// Starts to listen, once the service can be reached.
    /// An error is the reason why the service cannot be reached, or the address not be listened on.
    pub async fn start(plan: ConformPlan) -> Result<Self, String> {
        let ConformPlan { endpoint, listen, identity, key_place, seed, timing } = plan;
        endpoint.connect().await.map_err(|reason| format!("{}: {reason}", endpoint.authority))?;
        let listener = TcpListener::bind(listen).await.map_err(|error| format!("{listen}: {error}"))?;
        let log = OperationLog::new(identity, key_place, seed);
        let server =
            LinkServer::start(listener, endpoint, timing, log).map_err(|error| format!("{listen}: {error}"))?;
        Ok(Self { server, seed })
    }

    pub fn address(&self) -> SocketAddr {
        self.server.address
    }

    /// Begins a run of the command: all requests until its end are one operation.
    pub fn begin_run(&self) {
        self.server.log().begin_run();
    }

    pub fn end_run(&self, is_success: bool) {
        self.server.log().end_run(if is_success { ClientEnd::Succeeded } else { ClientEnd::Failed });
    }

    /// Judges the requests so far.
    pub fn report(&self) -> IdempotencyReport {
        let log = self.server.log();
        let counts = ConformCounts::of(&log);
        let upstream = self.server.endpoint.public_url();
        let retry_after = self.server.timing.retry_after;
        let unmarked = match log.unmarked {
            0 => String::new(),
            unmarked => format!(" {unmarked} requests could not be assigned, and passed."),
        };
        IdempotencyReport {
            words: ReportWords::CLIENT,
            subject: format!("the client of {upstream}"),
            procedure: format!(
                "oncegate {} forwarded {} requests of {} operations, with the seed {}.",
                env!("CARGO_PKG_VERSION"),
                counts.requests,
                counts.operations,
                self.seed
            ),
            comparison: format!("Operations are told apart by {}.{unmarked}", log.identity),
            list: log.operations.iter().map(ObservedOperation::to_line).collect(),
            facts: json!({
                "upstream": upstream,
                "seed": self.seed,
                "identity": log.identity.to_string(),
                "retry_after": retry_after.seconds(),
                "requests": counts.requests,
                "keys": counts.keys,
                "executions": counts.executions,
                "unassigned": log.unmarked,
                "operations": log.operations.iter().map(ObservedOperation::to_json).collect::<Vec<_>>(),
            }),
            checks: judge::judge(&log, retry_after),
        }
    }
}

impl ConformCounts {
    fn of(log: &OperationLog) -> Self {
        let requests = || log.operations.iter().flat_map(|operation| &operation.requests);
        Self {
            operations: log.operations.len(),
            requests: requests().count(),
            keys: requests().filter_map(|request| request.key.as_ref()).collect::<BTreeSet<_>>().len(),
            executions: requests().map(|request| request.executions).sum(),
        }
    }
}

impl ObservedOperation {
    /// Returns the operation's requests in one line: `run 3 (lost): lost; after 0.2 s, 201`.
    fn to_line(&self) -> String {
        let answers = self.requests.iter().enumerate().map(|(index, request)| match index {
            0 => request.answer.to_string(),
            _ => {
                let pause = request.at.saturating_sub(self.requests[index - 1].answered);
                format!("after {:.1} s, {}", pause.as_secs_f64(), request.answer)
            }
        });
        let answers = answers.collect::<Vec<_>>().join("; ");
        let end = self.end.name().map_or(String::new(), |end| format!("; the client {end}"));
        format!("`{}` ({}): {answers}{end}", self.name, self.plan.fault.name())
    }

    fn to_json(&self) -> Value {
        json!({
            "operation": self.name,
            "fault": self.plan.fault.name(),
            "client": self.end.name(),
            "requests": self.requests.iter().map(ObservedRequest::to_json).collect::<Vec<_>>(),
        })
    }
}

impl ObservedRequest {
    fn to_json(&self) -> Value {
        json!({
            "at_ms": u64::try_from(self.at.as_millis()).unwrap_or(u64::MAX),
            "key": self.key,
            "answer": self.answer.to_string(),
            "executions": self.executions,
        })
    }
}

impl ClientEnd {
    fn name(self) -> Option<&'static str> {
        match self {
            Self::Unseen => None,
            Self::Succeeded => Some("succeeded"),
            Self::Failed => Some("failed"),
        }
    }
}
