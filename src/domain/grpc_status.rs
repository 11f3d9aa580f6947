//! The status codes of gRPC (`doc/statuscodes.md` in the repository of gRPC).

/// The status of a gRPC call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "the names are the specification's")]
pub enum GrpcStatus {
    Ok,
    Cancelled,
    Unknown,
    InvalidArgument,
    DeadlineExceeded,
    NotFound,
    AlreadyExists,
    PermissionDenied,
    ResourceExhausted,
    FailedPrecondition,
    Aborted,
    OutOfRange,
    Unimplemented,
    Internal,
    Unavailable,
    DataLoss,
    Unauthenticated,
}

impl GrpcStatus {
    /// All statuses, each at the place of its code.
    pub const ALL: [Self; 17] = [
        Self::Ok,
        Self::Cancelled,
        Self::Unknown,
        Self::InvalidArgument,
        Self::DeadlineExceeded,
        Self::NotFound,
        Self::AlreadyExists,
        Self::PermissionDenied,
        Self::ResourceExhausted,
        Self::FailedPrecondition,
        Self::Aborted,
        Self::OutOfRange,
        Self::Unimplemented,
        Self::Internal,
        Self::Unavailable,
        Self::DataLoss,
        Self::Unauthenticated,
    ];

    /// Returns the code, the value of `grpc-status`.
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Reads the value of `grpc-status`. A code that the specification does not know counts as `UNKNOWN`, as in clients;
    /// `None` for a value that is no number.
    pub fn from_code(value: &[u8]) -> Option<Self> {
        let digits = std::str::from_utf8(value).ok().filter(|text| !text.is_empty())?;
        if !digits.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let known = digits.parse().ok().and_then(|code: usize| Self::ALL.get(code));
        Some(known.copied().unwrap_or(Self::Unknown))
    }

    /// Returns the specification's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ok => "OK",
            Self::Cancelled => "CANCELLED",
            Self::Unknown => "UNKNOWN",
            Self::InvalidArgument => "INVALID_ARGUMENT",
            Self::DeadlineExceeded => "DEADLINE_EXCEEDED",
            Self::NotFound => "NOT_FOUND",
            Self::AlreadyExists => "ALREADY_EXISTS",
            Self::PermissionDenied => "PERMISSION_DENIED",
            Self::ResourceExhausted => "RESOURCE_EXHAUSTED",
            Self::FailedPrecondition => "FAILED_PRECONDITION",
            Self::Aborted => "ABORTED",
            Self::OutOfRange => "OUT_OF_RANGE",
            Self::Unimplemented => "UNIMPLEMENTED",
            Self::Internal => "INTERNAL",
            Self::Unavailable => "UNAVAILABLE",
            Self::DataLoss => "DATA_LOSS",
            Self::Unauthenticated => "UNAUTHENTICATED",
        }
    }

    /// Reads a name; `None` if no status has it.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|status| status.name() == name)
    }
}

/// The name in the configuration, the store, the log and the metrics: `grpc:UNAVAILABLE`.
impl std::fmt::Display for GrpcStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "grpc:{}", self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_is_at_the_place_of_its_code_and_reads_back() {
        for (code, status) in (0..).zip(GrpcStatus::ALL) {
            assert_eq!(status.code(), code);
            assert_eq!(GrpcStatus::from_code(code.to_string().as_bytes()), Some(status));
            assert_eq!(GrpcStatus::from_name(status.name()), Some(status));
        }
        assert_eq!(GrpcStatus::from_name("unavailable"), None);
    }

    #[test]
    fn a_code_without_a_name_is_unknown_and_a_value_that_is_no_number_is_none() {
        for (value, status) in [
            (&b"17"[..], Some(GrpcStatus::Unknown)),
            (b"99999999999999999999999", Some(GrpcStatus::Unknown)),
            (b"014", Some(GrpcStatus::Unavailable)),
            (b"", None),
            (b"+5", None),
            (b"-1", None),
            (b"OK", None),
            (b"\xff", None),
        ] {
            assert_eq!(GrpcStatus::from_code(value), status, "{value:?}");
        }
    }
}
