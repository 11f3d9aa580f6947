//! The cause of an unknown outcome.

use http::StatusCode;

use super::grpc_status::GrpcStatus;
use super::macros::named;
use super::response_policy::ServiceStatus;

/// The reason why the outcome of an attempt is unknown. Displays its name in the store, the API, the log and the
/// metrics: `body`, `broken`, `cancelled`, `crashed`, `grpc:INTERNAL`, `service`, `status:500`, `store` or `timeout`. A
/// response that stopped within its body has the number of bytes that came: `broken:4096`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
#[display(rename_all = "lowercase")]
pub enum UnknownCause {
    /// By a rule of the route, the response's body leaves the outcome unknown, or no rule can read the body.
    Body,
    /// The connection to the service broke after the request may have reached it, or the response was invalid.
    Broken,
    /// The client has left, and the route stops the service then.
    Cancelled,
    /// The instance stopped, or lost its lease, while the attempt ran.
    Crashed,
    /// The route takes the gRPC status of the call for one that leaves the outcome unknown.
    Grpc(GrpcStatus),
    /// The service said so, by `Oncegate-Decision: unknown`.
    Service,
    /// The route takes the response's status for one that leaves the outcome unknown.
    #[display("status:{}", _0.as_u16())]
    Status(StatusCode),
    /// The response stopped after this many bytes of its body, which clients may have got.
    #[display("{_0}:{_1}")]
    Stopped(BodyStop, u64),
    /// The store has lost the attempt's outcome, in a failover.
    Store,
    /// The service did not respond within the route's `upstream_timeout`.
    Timeout,
}

named! {
    #[derive(PartialOrd, Ord, derive_more::Display)]
    #[display("{}", self.name())]
    pub enum BodyStop {
        /// The connection to the service broke.
        Broken => "broken",
        /// Its clients have left, and the route stops the service then.
        Cancelled => "cancelled",
        /// The service sent nothing for the route's `stream_idle_timeout`, or was not done within its `stream_timeout`.
        Timeout => "timeout",
    }
}

impl BodyStop {
    /// The same cause, of an attempt without any response.
    fn without_response(self) -> UnknownCause {
        match self {
            Self::Broken => UnknownCause::Broken,
            Self::Cancelled => UnknownCause::Cancelled,
            Self::Timeout => UnknownCause::Timeout,
        }
    }
}

impl UnknownCause {
    /// Reads a name, as [`Display`](std::fmt::Display) writes it; `None` if no cause has it.
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "body" => Some(Self::Body),
            "broken" => Some(Self::Broken),
            "cancelled" => Some(Self::Cancelled),
            "crashed" => Some(Self::Crashed),
            "service" => Some(Self::Service),
            "store" => Some(Self::Store),
            "timeout" => Some(Self::Timeout),
            _ => match name.split_once(':')? {
                ("grpc", status) => GrpcStatus::parse(status).map(Self::Grpc),
                ("status", status) => status.parse().ok().map(Self::Status),
                (stop, bytes) => Some(Self::Stopped(BodyStop::parse(stop)?, bytes.parse().ok()?)),
            },
        }
    }

    /// The cause without a number of bytes, of which there may be any number.
    pub fn without_bytes(self) -> Self {
        match self {
            Self::Stopped(stop, _) => stop.without_response(),
            other => other,
        }
    }
}

impl From<ServiceStatus> for UnknownCause {
    fn from(status: ServiceStatus) -> Self {
        match status {
            ServiceStatus::Grpc(status) => Self::Grpc(status),
            ServiceStatus::GrpcUnclear => Self::Broken,
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
        use UnknownCause::{Body, Broken, Cancelled, Crashed, Service, Stopped, Store, Timeout};
        let stopped = BodyStop::ALL.map(|stop| Stopped(stop, 4_096));
        for cause in
            [Body, Broken, Cancelled, Crashed, grpc, Service, status, Store, Timeout].into_iter().chain(stopped)
        {
            assert_eq!(UnknownCause::parse(&cause.to_string()), Some(cause));
        }
        assert_eq!(status.to_string(), "status:502");
        assert_eq!(grpc.to_string(), "grpc:DEADLINE_EXCEEDED");
        assert_eq!(stopped.map(|cause| cause.to_string()), ["broken:4096", "cancelled:4096", "timeout:4096"]);
        assert_eq!(stopped.map(UnknownCause::without_bytes), [Broken, Cancelled, Timeout]);
        let none =
            ["", "broken:", "crashed:1", "Broken", "status:", "status:99", "status:1000", "status", "grpc:", "grpc:4"];
        assert_eq!(none.map(UnknownCause::parse), [None; 10]);
    }
}
