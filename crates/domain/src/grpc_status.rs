//! The status codes of gRPC (`doc/statuscodes.md` in the repository of gRPC).

use super::macros::named;

named! {
    /// The status of a gRPC call. Each value is at the place of its code. Displays the name in the configuration, the
    /// store, the log and the metrics: `grpc:UNAVAILABLE`.
    #[derive(PartialOrd, Ord, Hash, derive_more::Display)]
    #[display("grpc:{}", self.name())]
    pub enum GrpcStatus {
        Ok => "OK",
        Cancelled => "CANCELLED",
        Unknown => "UNKNOWN",
        InvalidArgument => "INVALID_ARGUMENT",
        DeadlineExceeded => "DEADLINE_EXCEEDED",
        NotFound => "NOT_FOUND",
        AlreadyExists => "ALREADY_EXISTS",
        PermissionDenied => "PERMISSION_DENIED",
        ResourceExhausted => "RESOURCE_EXHAUSTED",
        FailedPrecondition => "FAILED_PRECONDITION",
        Aborted => "ABORTED",
        OutOfRange => "OUT_OF_RANGE",
        Unimplemented => "UNIMPLEMENTED",
        Internal => "INTERNAL",
        Unavailable => "UNAVAILABLE",
        DataLoss => "DATA_LOSS",
        Unauthenticated => "UNAUTHENTICATED",
    }
}

impl GrpcStatus {
    pub fn code(self) -> u8 {
        self as u8
    }

    /// Reads the value of `grpc-status`. A code that the specification does not know counts as `UNKNOWN`, as in
    /// clients; `None` for a value that is no number.
    pub fn from_code(value: &[u8]) -> Option<Self> {
        let digits =
            str::from_utf8(value).ok().filter(|_| !value.is_empty() && value.iter().all(u8::is_ascii_digit))?;
        let known = digits.parse().ok().and_then(|code: usize| Self::ALL.get(code));
        Some(known.copied().unwrap_or(Self::Unknown))
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
            assert_eq!(GrpcStatus::parse(status.name()), Some(status));
        }
        assert_eq!(GrpcStatus::parse("unavailable"), None);
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
