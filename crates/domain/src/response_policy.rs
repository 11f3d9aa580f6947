//! A route's policy on outcomes: verdicts on statuses, and retries of unknown outcomes.

use http::StatusCode;

use super::grpc_status::GrpcStatus;

/// The verdict on an attempt by its response's status. Ordered by how little it promises about the attempt's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ResponseVerdict {
    /// Treat the attempt as not executed: `retryable`.
    Release,
    /// Store the response: `completed`.
    Store,
    /// The outcome is not known: `unknown`.
    Unknown,
}

/// The response to a retry of an unknown outcome.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnUnknown {
    /// 409, until the service or an operator has reported the outcome.
    Hold,
    /// The next attempt, at once. It may overlap the one it follows.
    Retry,
    /// The next attempt, once the one before cannot be running any more.
    RetryWhenQuiet,
    /// 409, while Oncegate sends the kept request again under its key at the vendor, which executes a key once within
    /// its window.
    Vendor,
}

/// The status by which a service says how a request ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, derive_more::Display, derive_more::From)]
pub enum ServiceStatus {
    /// The status of a gRPC call that was answered.
    #[from(ignore)]
    Grpc(GrpcStatus),
    /// The response to a gRPC call has none, or several that differ: it broke off, or not the service alone made it.
    #[display("without a clear grpc-status")]
    GrpcUnclear,
    /// The HTTP status of any other response, also that of a gateway that answers for a gRPC server.
    #[display("{}", _0.as_str())]
    Http(StatusCode),
}

impl ServiceStatus {
    pub fn is_success(self) -> bool {
        match self {
            Self::Grpc(status) => status == GrpcStatus::Ok,
            Self::GrpcUnclear => false,
            Self::Http(status) => status.is_success(),
        }
    }

    /// Whether the service refuses the caller, and not the request: its credentials, or that it has not paid.
    pub fn refuses_caller(self) -> bool {
        match self {
            Self::Grpc(status) => matches!(status, GrpcStatus::PermissionDenied | GrpcStatus::Unauthenticated),
            Self::GrpcUnclear => false,
            Self::Http(status) => {
                matches!(status, StatusCode::UNAUTHORIZED | StatusCode::PAYMENT_REQUIRED | StatusCode::FORBIDDEN)
            }
        }
    }

    /// Whether the same request may get another response at another time.
    pub fn may_pass(self) -> bool {
        match self {
            Self::Grpc(status) => {
                matches!(status, GrpcStatus::Aborted | GrpcStatus::Unavailable)
                    || default_verdict(status) == ResponseVerdict::Unknown
            }
            Self::GrpcUnclear => true,
            Self::Http(status) => matches!(status.as_u16(), 408 | 425 | 429 | 500..),
        }
    }
}

/// The verdict on a gRPC status that no list of the route has.
// See docs/decisions/0024-judge-grpc-by-its-status.md.
pub fn default_verdict(status: GrpcStatus) -> ResponseVerdict {
    match status {
        // The same call would be refused again, or has to be part of another one (ABORTED).
        GrpcStatus::Ok
        | GrpcStatus::InvalidArgument
        | GrpcStatus::NotFound
        | GrpcStatus::AlreadyExists
        | GrpcStatus::FailedPrecondition
        | GrpcStatus::Aborted
        | GrpcStatus::OutOfRange
        | GrpcStatus::Unimplemented => ResponseVerdict::Store,
        // The call was turned away: the caller, the moment or the server was not right for it.
        GrpcStatus::PermissionDenied | GrpcStatus::Unavailable | GrpcStatus::Unauthenticated => {
            ResponseVerdict::Release
        }
        // The call began and did not come to its end. Libraries make these too: of exceptions, broken streams, and of a
        // message that is larger than the server's own limit.
        GrpcStatus::ResourceExhausted
        | GrpcStatus::Cancelled
        | GrpcStatus::Unknown
        | GrpcStatus::DeadlineExceeded
        | GrpcStatus::Internal
        | GrpcStatus::DataLoss => ResponseVerdict::Unknown,
    }
}

/// An entry of a status list: one code, a class or a gRPC status.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StatusEntry {
    /// The hundreds digit of `2xx`.
    Class(u16),
    Code(u16),
    Grpc(GrpcStatus),
}

impl StatusEntry {
    /// Parses `201`, `2xx` or `grpc:UNAVAILABLE`; only final HTTP statuses, 200 to 599, can be listed.
    pub fn parse(text: &str) -> Option<Self> {
        if let Some(name) = text.strip_prefix("grpc:") {
            return GrpcStatus::parse(name).map(Self::Grpc);
        }
        if let Some(class) = text.strip_suffix("xx") {
            return class.parse().ok().filter(|class| (2..=5).contains(class)).map(Self::Class);
        }
        let three_digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
        let code = text.parse().ok().filter(|code| three_digits && (200..600).contains(code))?;
        Some(Self::Code(code))
    }
}

#[derive(Clone, Debug)]
pub struct StatusList {
    /// The verdict on the statuses in the list.
    pub verdict: ResponseVerdict,
    pub entries: Vec<StatusEntry>,
    /// Whether the list is written in the file: a written list overrides a default one.
    pub written: bool,
}

/// The verdict on every status, computed once.
#[derive(Clone, derive_more::Debug)]
#[debug("StatusTable(..)")]
pub struct StatusTable {
    /// Each with whether its code is listed by itself, so that the fields of a response change nothing.
    http: Box<[(ResponseVerdict, bool); 400]>,
    /// The verdicts on the statuses of gRPC calls, each at the place of its code.
    grpc: [ResponseVerdict; GrpcStatus::ALL.len()],
}

impl StatusTable {
    /// Computes the table: a written list overrides a default one, an exact code overrides a class, and an HTTP status
    /// in no list is unknown. A gRPC status in no list has its [`default_verdict`].
    /// An error is an entry that is in two written lists.
    pub fn new(lists: &[StatusList]) -> Result<Self, StatusEntry> {
        let mut listed = std::collections::HashSet::new();
        for list in lists.iter().filter(|list| list.written) {
            let entries: std::collections::HashSet<_> = list.entries.iter().collect();
            if let Some(twice) = entries.into_iter().find(|entry| !listed.insert(**entry)) {
                return Err(*twice);
            }
        }
        let mut table = Self {
            http: Box::new([(ResponseVerdict::Unknown, false); 400]),
            grpc: GrpcStatus::ALL.map(default_verdict),
        };
        let mut entries: Vec<_> =
            lists.iter().flat_map(|list| list.entries.iter().map(move |entry| (list, *entry))).collect();
        // From the weakest to the strongest, each overwriting those before.
        entries.sort_by_key(|(list, entry)| (list.written, matches!(entry, StatusEntry::Code(_))));
        for (list, entry) in entries {
            let (codes, is_exact) = match entry {
                StatusEntry::Class(class) => (class * 100..class * 100 + 100, false),
                StatusEntry::Code(code) => (code..code + 1, true),
                StatusEntry::Grpc(status) => {
                    table.grpc[usize::from(status.code())] = list.verdict;
                    continue;
                }
            };
            for code in codes {
                table.http[usize::from(code - 200)] = (list.verdict, is_exact);
            }
        }
        Ok(table)
    }

    /// The verdict on a response. A 4xx whose fields ask for the same request at another time or with a payment
    /// (`asks_again`) was not executed, whatever the verdict on its class, unless its code is listed by itself. A gRPC
    /// call without a clear status may have executed.
    pub fn verdict_on(&self, status: impl Into<ServiceStatus>, asks_again: bool) -> ResponseVerdict {
        match status.into() {
            ServiceStatus::Grpc(status) => self.grpc[usize::from(status.code())],
            ServiceStatus::GrpcUnclear => ResponseVerdict::Unknown,
            ServiceStatus::Http(status) => self.verdict_on_http(status, asks_again),
        }
    }

    /// Whether a list has the code by itself, and not only its class.
    pub fn names(&self, status: StatusCode) -> bool {
        self.listed(status).is_some_and(|(_, is_exact)| *is_exact)
    }

    fn listed(&self, status: StatusCode) -> Option<&(ResponseVerdict, bool)> {
        usize::from(status.as_u16()).checked_sub(200).and_then(|index| self.http.get(index))
    }

    fn verdict_on_http(&self, status: StatusCode, asks_again: bool) -> ResponseVerdict {
        match self.listed(status) {
            None => ResponseVerdict::Unknown,
            Some((_, false)) if status.is_client_error() && asks_again => ResponseVerdict::Release,
            Some((verdict, _)) => *verdict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(verdict: ResponseVerdict, entries: &[&str], written: bool) -> StatusList {
        let entries = entries.iter().map(|entry| StatusEntry::parse(entry).unwrap()).collect();
        StatusList { verdict, entries, written }
    }

    fn judge(table: &StatusTable, code: u16) -> ResponseVerdict {
        table.verdict_on(StatusCode::from_u16(code).unwrap(), false)
    }

    #[test]
    fn a_written_list_beats_a_default_one_and_an_exact_code_beats_a_class() {
        let table = StatusTable::new(&[
            list(ResponseVerdict::Store, &["2xx", "4xx", "503"], false),
            list(ResponseVerdict::Release, &["429", "5xx"], false),
            list(ResponseVerdict::Unknown, &["5xx", "404"], true),
            list(ResponseVerdict::Store, &["500"], true),
        ])
        .unwrap();
        for (code, verdict) in [
            (200, ResponseVerdict::Store),
            (302, ResponseVerdict::Unknown),
            (404, ResponseVerdict::Unknown),
            (410, ResponseVerdict::Store),
            (429, ResponseVerdict::Release),
            (500, ResponseVerdict::Store),
            (503, ResponseVerdict::Unknown),
            (600, ResponseVerdict::Unknown),
            (101, ResponseVerdict::Unknown),
        ] {
            assert_eq!(judge(&table, code), verdict, "{code}");
        }
    }

    #[test]
    fn a_status_that_refuses_the_caller_is_told_from_others() {
        let http = |code| ServiceStatus::from(StatusCode::from_u16(code).unwrap());
        let refuses = [
            http(401),
            http(402),
            http(403),
            ServiceStatus::Grpc(GrpcStatus::PermissionDenied),
            ServiceStatus::Grpc(GrpcStatus::Unauthenticated),
        ];
        assert!(refuses.iter().all(|status| status.refuses_caller()));
        let others = [http(400), http(404), ServiceStatus::Grpc(GrpcStatus::NotFound), ServiceStatus::GrpcUnclear];
        assert!(others.iter().all(|status| !status.refuses_caller()));
        assert_eq!(
            [http(404), ServiceStatus::GrpcUnclear].map(|status| status.to_string()),
            ["404", "without a clear grpc-status"]
        );
    }

    #[test]
    fn an_http_status_is_written_with_three_digits() {
        assert!(StatusEntry::parse("201").is_some() && StatusEntry::parse("2xx").is_some());
        assert!(
            ["0201", "+201", "20", "199", "600", "1xx", "6xx"].iter().all(|text| StatusEntry::parse(text).is_none())
        );
    }

    #[test]
    fn the_same_entry_in_two_written_lists_is_an_error() {
        let lists = [
            list(ResponseVerdict::Store, &["404", "404"], true),
            list(ResponseVerdict::Release, &["5xx", "404"], true),
        ];
        assert_eq!(StatusTable::new(&lists).unwrap_err(), StatusEntry::Code(404));
    }

    #[test]
    fn a_4xx_that_asks_again_is_released_unless_its_code_is_listed() {
        let table = StatusTable::new(&[list(ResponseVerdict::Store, &["2xx", "4xx", "422"], true)]).unwrap();
        let with = |code| table.verdict_on(StatusCode::from_u16(code).unwrap(), true);
        assert_eq!(with(409), ResponseVerdict::Release);
        assert_eq!(with(422), ResponseVerdict::Store);
        assert_eq!(with(201), ResponseVerdict::Store);
    }

    #[test]
    fn a_list_that_names_a_grpc_status_beats_its_default_and_http_entries_leave_it() {
        let table = StatusTable::new(&[
            list(ResponseVerdict::Store, &["2xx", "4xx", "grpc:UNKNOWN"], true),
            list(ResponseVerdict::Unknown, &["5xx", "grpc:UNAVAILABLE"], true),
        ])
        .unwrap();
        for status in GrpcStatus::ALL {
            let verdict = match status {
                GrpcStatus::Unknown => ResponseVerdict::Store,
                GrpcStatus::Unavailable => ResponseVerdict::Unknown,
                status => default_verdict(status),
            };
            assert_eq!(table.verdict_on(ServiceStatus::Grpc(status), true), verdict, "{status}");
        }
        let stores_all = StatusTable::new(&[list(ResponseVerdict::Store, &["2xx"], true)]).unwrap();
        assert_eq!(stores_all.verdict_on(ServiceStatus::GrpcUnclear, false), ResponseVerdict::Unknown);
    }

    #[test]
    fn the_documents_have_each_grpc_status_with_its_default_verdict() {
        let page = include_str!("../../../docs/grpc.md");
        for status in GrpcStatus::ALL {
            let verdict = match default_verdict(status) {
                ResponseVerdict::Release => "released",
                ResponseVerdict::Store => "stored",
                ResponseVerdict::Unknown => "unknown",
            };
            let row = format!("\n| {} `{}` | {verdict} |", status.code(), status.name());
            assert_eq!(page.matches(&row).count(), 1, "{row}");
        }
    }

    #[test]
    fn only_final_statuses_can_be_listed() {
        for text in
            ["1xx", "6xx", "xx", "20", "2000", "199", "600", "+20", "2XX", "", "grpc:", "grpc:14", "grpc:OKAY", "OK"]
        {
            assert_eq!(StatusEntry::parse(text), None, "{text:?}");
        }
    }
}
