//! The cause of an unknown outcome.

use http::StatusCode;

use super::grpc_status::GrpcStatus;
use super::response_policy::ServiceStatus;

/// The reason why the outcome of an attempt is unknown. Displays its name in the store, the API, the log and the metrics: `body`,
/// `broken`, `crashed`, `grpc:INTERNAL`, `service`, `status:500`, `store` or `timeout`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum UnknownCause {
    /// A rule of the route takes the response's body for one that leaves the outcome unknown, or no rule can read the body.
    Body,
    /// The connection to the service broke after the request may have reached it, or the response was invalid.
    Broken,
    /// The instance stopped, or lost its lease, while the attempt ran.
    Crashed,
    /// The route takes the gRPC status of the call for one that leaves the outcome unknown.
    Grpc(GrpcStatus),
    /// The service said so, by `Oncegate-Decision: unknown`.
    Service,
    /// The route takes the response's status for one that leaves the outcome unknown.
    #[display("status:{}", _0.as_u16())]
    Status(StatusCode),
    /// The store has lost the attempt's outcome, in a failover.
    Store,
    /// The service did not respond within the route's `upstream_timeout`.
    Timeout,
}

impl UnknownCause {
    /// Reads a name, as [`Display`](std::fmt::Display) writes it; `None` if no cause has it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "body" => Some(Self::Body),
            "broken" => Some(Self::Broken),
            "crashed" => Some(Self::Crashed),
            "service" => Some(Self::Service),
            "store" => Some(Self::Store),
            "timeout" => Some(Self::Timeout),
            _ => match name.strip_prefix("grpc:") {
                Some(status) => GrpcStatus::parse(status).map(Self::Grpc),
                None => name.strip_prefix("status:")?.parse().ok().map(Self::Status),
            },
        }
    }
}

/// The cause of an outcome that a response with this status leaves unknown.
impl From<ServiceStatus> for UnknownCause {
    fn from(status: ServiceStatus) -> Self {
        match status {
            ServiceStatus::Grpc(status) => Self::Grpc(status),
            ServiceStatus::GrpcMissing => Self::Broken,
            ServiceStatus::Http(status) => Self::Status(status),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_reads_back() {
        let status = UnknownCause::Status(StatusCode::BAD_GATEWAY);
        let grpc = UnknownCause::Grpc(GrpcStatus::DeadlineExceeded);
        use UnknownCause::{Body, Broken, Crashed, Service, Store, Timeout};
        for cause in [Body, Broken, Crashed, grpc, Service, status, Store, Timeout] {
            assert_eq!(UnknownCause::parse(&cause.to_string()), Some(cause));
        }
        assert_eq!(status.to_string(), "status:502");
        assert_eq!(grpc.to_string(), "grpc:DEADLINE_EXCEEDED");
        let none = ["", "Broken", "status:", "status:99", "status:1000", "status", "grpc:", "grpc:4"];
        assert_eq!(none.map(UnknownCause::parse), [None; 8]);
    }
}
