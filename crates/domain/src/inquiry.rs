//! Reconciliation: the question to the service about one attempt, the service's answer, and the verdict on it.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;

use super::ids::{RecordId, Token};
use super::response::StoredResponse;
use super::scope::Scope;
use super::state::StateKind;

/// The attempt that the service is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquirySubject {
    pub id: RecordId,
    /// The attempt's token. The answer counts for this attempt and no other.
    pub token: Token,
    pub scope: Scope,
    /// The client's name for the operation, unquoted.
    pub key: Bytes,
    pub route: Box<str>,
    /// The path as sent, with its query, where it was kept.
    pub path: Option<Bytes>,
}

/// When a route's unknown keys are to be asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InquirySchedule {
    pub route: Arc<str>,
    /// The time past its deadline after which an attempt cannot be running any more: before that, the service is not
    /// asked.
    pub quiet_after: Duration,
    /// The pause between the first two questions; each pause after that is twice the one before.
    pub pause_first: Duration,
    pub pause_cap: Duration,
}

/// A question that has been counted and may now be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Inquiry {
    pub subject: InquirySubject,
    /// The question's number for this attempt: 1 for the first.
    pub number: u32,
    /// The number of 404 responses in a row up to now.
    pub absences: u32,
    /// When the key became unknown.
    pub unknown_since: SystemTime,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InquiryAnswer {
    /// The operation is not known to the service (404).
    Absent,
    /// The operation was executed, and this is its response (2xx).
    Executed(StoredResponse),
    /// Any other answer, or none: it proves nothing.
    Nothing,
}

/// The rules by which a service's answer settles a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReconcilePolicy {
    /// The number of 404 responses in a row after which "not executed" is accepted.
    pub confirmations: u32,
    /// The number of questions after which the key is given up.
    pub max_attempts: u32,
    pub ttl: Duration,
    /// The time past that for which a completed key is remembered, to refuse late retries.
    pub remember: Option<Duration>,
}

/// The key's state by the service's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InquiryVerdict {
    Completed {
        response: Arc<StoredResponse>,
        /// The time for which the response is replayed.
        ttl: Duration,
        /// The time past that for which the key is remembered.
        remember: Option<Duration>,
    },
    /// Given up: an operator must decide.
    Dead,
    /// Still unknown.
    Open {
        /// The number of 404 responses in a row up to now.
        absences: u32,
    },
    /// Not executed: the next request is the next attempt.
    Retryable {
        /// The time for which the key is remembered.
        ttl: Duration,
    },
}

/// A verdict to be written to the store: taken only while the key is unknown and the attempt is its newest.
#[derive(Clone, Debug)]
pub struct InquiryFinding {
    pub id: RecordId,
    pub token: Token,
    /// The question's number. A verdict of "not executed" counts for the last question only.
    pub inquiry: u32,
    pub verdict: InquiryVerdict,
    /// The evidence, for people.
    pub note: String,
}

/// A settled key, to be compared with the service's answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledKey {
    pub subject: InquirySubject,
    pub state: StateKind,
    pub status: Option<u16>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SettledKeyPage {
    /// The keys of the routes that were asked for; there may be none on this page and more on the next.
    pub keys: Vec<SettledKey>,
    /// The first id of the next page; `None` after the last.
    pub next: Option<RecordId>,
}

impl Inquiry {
    // See docs/decisions/0005-believe-not-executed-late.md.
    pub fn verdict_on(&self, answer: InquiryAnswer, policy: &ReconcilePolicy) -> InquiryVerdict {
        let absences = match answer {
            InquiryAnswer::Executed(response) => {
                return InquiryVerdict::Completed {
                    response: response.into(),
                    ttl: policy.ttl,
                    remember: policy.remember,
                };
            }
            InquiryAnswer::Absent => self.absences.saturating_add(1),
            InquiryAnswer::Nothing => 0,
        };
        if absences >= policy.confirmations {
            InquiryVerdict::Retryable { ttl: policy.ttl }
        } else if self.number >= policy.max_attempts {
            InquiryVerdict::Dead
        } else {
            InquiryVerdict::Open { absences }
        }
    }

    /// Whether this question is past the last: the instance that asked the last one died before it stored a verdict.
    pub fn is_past_last(&self, policy: &ReconcilePolicy) -> bool {
        self.number > policy.max_attempts
    }
}

impl InquiryVerdict {
    pub fn state(&self) -> StateKind {
        match self {
            Self::Completed { .. } => StateKind::Completed,
            Self::Dead => StateKind::Dead,
            Self::Open { .. } => StateKind::Unknown,
            Self::Retryable { .. } => StateKind::Retryable,
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    const TTL: Duration = Duration::from_secs(60);
    const POLICY: ReconcilePolicy = ReconcilePolicy { confirmations: 2, max_attempts: 4, ttl: TTL, remember: None };

    fn inquiry(number: u32, absences: u32) -> Inquiry {
        let subject = InquirySubject {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([2; 16]),
            scope: Scope::from_stored(&[3; 32]).unwrap(),
            key: Bytes::from_static(b"k"),
            route: "pay".into(),
            path: None,
        };
        Inquiry { subject, number, absences, unknown_since: SystemTime::UNIX_EPOCH }
    }

    #[test]
    fn a_404_is_believed_after_enough_in_a_row_and_the_key_is_dead_after_the_last_question() {
        for (number, absences, answer, verdict) in [
            (1, 0, InquiryAnswer::Absent, InquiryVerdict::Open { absences: 1 }),
            (2, 1, InquiryAnswer::Absent, InquiryVerdict::Retryable { ttl: TTL }),
            (2, 1, InquiryAnswer::Nothing, InquiryVerdict::Open { absences: 0 }),
            (3, 0, InquiryAnswer::Absent, InquiryVerdict::Open { absences: 1 }),
            // The last question.
            (4, 1, InquiryAnswer::Absent, InquiryVerdict::Retryable { ttl: TTL }),
            (4, 0, InquiryAnswer::Absent, InquiryVerdict::Dead),
            (4, 1, InquiryAnswer::Nothing, InquiryVerdict::Dead),
            // One more, because the instance that asked the last one died.
            (5, 0, InquiryAnswer::Nothing, InquiryVerdict::Dead),
        ] {
            assert_eq!(inquiry(number, absences).verdict_on(answer, &POLICY), verdict, "{number} {absences}");
        }
        assert!(inquiry(5, 1).is_past_last(&POLICY) && !inquiry(4, 1).is_past_last(&POLICY));
        let once = ReconcilePolicy { confirmations: 1, max_attempts: 1, ..POLICY };
        assert_eq!(inquiry(1, 0).verdict_on(InquiryAnswer::Absent, &once), InquiryVerdict::Retryable { ttl: TTL });
    }

    #[test]
    fn a_response_is_proof_at_any_time() {
        let response = StoredResponse {
            status: StatusCode::OK,
            headers: HeaderMap::new(),
            body: None,
            trailers: HeaderMap::new(),
        };
        for (number, absences) in [(1, 0), (4, 1), (9, 0)] {
            let verdict = inquiry(number, absences).verdict_on(InquiryAnswer::Executed(response.clone()), &POLICY);
            assert_eq!(
                verdict,
                InquiryVerdict::Completed { response: response.clone().into(), ttl: TTL, remember: None }
            );
        }
    }
}
