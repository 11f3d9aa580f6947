//! Asking the service what became of an attempt: what is asked about, what it says, and what that means.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use super::attempt::Token;
use super::record::RecordId;
use super::response::StoredResponse;
use super::scope::Scope;

/// What the service is asked about: one attempt of one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Subject {
    /// Which record.
    pub id: RecordId,
    /// Which attempt. What is said of it counts for no other.
    pub token: Token,
    /// Who called.
    pub scope: Scope,
    /// The client's name for the operation, unquoted.
    pub key: Bytes,
    /// The route's name.
    pub route: Box<str>,
    /// The path as sent, with its query, where it was kept.
    pub path: Option<Bytes>,
}

/// When a route's unknown keys are to be asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Schedule {
    /// The route's name.
    pub route: Arc<str>,
    /// How long past its deadline an attempt cannot be running any more: before that, nobody is asked.
    pub quiet_after: Duration,
    /// From the first question to the second; each pause after that is twice the one before.
    pub pause_first: Duration,
    /// The longest pause; not below the first.
    pub pause_cap: Duration,
}

/// A question that has been counted and may now be asked.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// About whom.
    pub subject: Subject,
    /// Which question about this attempt it is: 1 for the first.
    pub number: u32,
    /// How often in a row, up to now, the service knew of nothing.
    pub absences: u32,
}

/// What the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It knows of nothing (404).
    Absent,
    /// It was executed, and this is its response (2xx).
    Executed(StoredResponse),
    /// Nothing that would tell.
    Nothing,
}

/// By what an answer is judged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Terms {
    /// So many times in a row the service must know of nothing.
    pub confirmations: u32,
    /// So many questions without a verdict are enough.
    pub max_attempts: u32,
    /// How long the key is remembered then.
    pub ttl: Duration,
    /// How long past that, to refuse late retries.
    pub remember: Option<Duration>,
}

/// What is to become of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// Completed, with this response.
    Completed {
        /// What every retry gets.
        response: StoredResponse,
        /// How long it is replayed.
        ttl: Duration,
        /// How long past that the key is remembered.
        remember: Option<Duration>,
    },
    /// Given up: somebody has to look at it.
    Dead,
    /// Still unknown.
    Open {
        /// How often in a row, up to now, the service knew of nothing.
        absences: u32,
    },
    /// Not executed: the next request is the next attempt.
    Retryable {
        /// How long that is remembered.
        ttl: Duration,
    },
}

/// A verdict, to be written down: taken only while the key is unknown and the attempt is its newest.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Which record.
    pub id: RecordId,
    /// Which attempt.
    pub token: Token,
    /// Which question. What says that nothing was executed counts for the last question only.
    pub probe: u32,
    /// What is to become of the key.
    pub verdict: Verdict,
    /// The evidence, for people.
    pub note: String,
}

/// A key as it was settled, to be compared with what the service says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// About whom.
    pub subject: Subject,
    /// The state's name.
    pub state: &'static str,
    /// The response's status, where it is completed.
    pub status: Option<u16>,
}

/// Some of a store's keys.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Page {
    /// Those that were asked for; there may be none on this page and more on the next.
    pub keys: Vec<Kept>,
    /// Where the next page begins; `None` after the last.
    pub next: Option<RecordId>,
}

impl Probe {
    /// What an answer means for the key.
    pub fn judge(&self, answer: Answer, terms: &Terms) -> Verdict {
        let absences = match answer {
            Answer::Executed(response) => {
                return Verdict::Completed { response, ttl: terms.ttl, remember: terms.remember };
            }
            Answer::Absent => self.absences.saturating_add(1),
            Answer::Nothing => 0,
        };
        if absences >= terms.confirmations {
            Verdict::Retryable { ttl: terms.ttl }
        } else if self.number >= terms.max_attempts {
            Verdict::Dead
        } else {
            Verdict::Open { absences }
        }
    }

    /// Whether all questions have been asked already: the last one's asker has died over it.
    pub fn is_beyond(&self, terms: &Terms) -> bool {
        self.number > terms.max_attempts
    }
}

impl Verdict {
    /// The name of the state that it leads to.
    pub fn state(&self) -> &'static str {
        match self {
            Self::Completed { .. } => "completed",
            Self::Dead => "dead",
            Self::Open { .. } => "unknown",
            Self::Retryable { .. } => "retryable",
        }
    }
}

#[cfg(test)]
mod tests {
    use http::{HeaderMap, StatusCode};

    use super::*;

    const TTL: Duration = Duration::from_secs(60);
    const TERMS: Terms = Terms { confirmations: 2, max_attempts: 4, ttl: TTL, remember: None };

    fn probe(number: u32, absences: u32) -> Probe {
        let subject = Subject {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([2; 16]),
            scope: Scope::from_stored(&[3; 32]).unwrap(),
            key: Bytes::from_static(b"k"),
            route: "pay".into(),
            path: None,
        };
        Probe { subject, number, absences }
    }

    #[test]
    fn the_service_is_believed_when_it_has_denied_so_often_in_a_row_and_asked_no_more_than_so_often() {
        for (number, absences, answer, verdict) in [
            (1, 0, Answer::Absent, Verdict::Open { absences: 1 }),
            (2, 1, Answer::Absent, Verdict::Retryable { ttl: TTL }),
            (2, 1, Answer::Nothing, Verdict::Open { absences: 0 }),
            (3, 0, Answer::Absent, Verdict::Open { absences: 1 }),
            // The last question.
            (4, 1, Answer::Absent, Verdict::Retryable { ttl: TTL }),
            (4, 0, Answer::Absent, Verdict::Dead),
            (4, 1, Answer::Nothing, Verdict::Dead),
            // One more, because its asker died.
            (5, 0, Answer::Nothing, Verdict::Dead),
        ] {
            assert_eq!(probe(number, absences).judge(answer, &TERMS), verdict, "{number} {absences}");
        }
        assert!(probe(5, 1).is_beyond(&TERMS) && !probe(4, 1).is_beyond(&TERMS));
        let once = Terms { confirmations: 1, max_attempts: 1, ..TERMS };
        assert_eq!(probe(1, 0).judge(Answer::Absent, &once), Verdict::Retryable { ttl: TTL });
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
            let verdict = probe(number, absences).judge(Answer::Executed(response.clone()), &TERMS);
            assert_eq!(verdict, Verdict::Completed { response: response.clone(), ttl: TTL, remember: None });
        }
    }
}
