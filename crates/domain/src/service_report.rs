//! Reports of a service on its own attempts, beside its responses.

use std::sync::Arc;
use std::time::{Duration, SystemTime};

use data_encoding::{HEXLOWER, HEXLOWER_PERMISSIVE};
use http::HeaderName;

use super::ids::{RecordId, Token};
use super::recovery::RecoveryPoint;
use super::state::StateKind;

/// The right to report on one attempt, as the service got it in `Oncegate-Reservation`: the record's id and the
/// attempt's token, in hex. The id finds the row without an index on tokens; the token proves the right.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReservationHandle {
    pub id: RecordId,
    pub token: Token,
}

impl ReservationHandle {
    /// Reads the field's value: 96 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let bytes = HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()?;
        let (id, token) = bytes.split_at_checked(32)?;
        Some(Self { id: RecordId::from_stored(id)?, token: Token::from_stored(token)? })
    }

    /// The field's value.
    pub fn to_hex(&self) -> String {
        let mut text = HEXLOWER.encode(self.id.as_bytes());
        HEXLOWER.encode_append(self.token.as_bytes(), &mut text);
        text
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReservedKey {
    pub service: Arc<str>,
    pub route: String,
    pub state: StateKind,
    /// When the state began; `None` while the attempt is in flight.
    pub settled_at: Option<SystemTime>,
}

#[derive(Clone, Debug)]
pub struct ServiceReport {
    pub service: Arc<str>,
    pub handle: ReservationHandle,
    pub kind: ReportKind,
}

#[derive(Clone, Debug)]
pub enum ReportKind {
    /// The attempt was not executed, and will not be. The key is forgotten after this time.
    NotExecuted(Duration),
    /// The attempt has reached this point for good.
    Reached(RecoveryPoint),
}

/// The store's answer to a [`ServiceReport`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReportResult {
    /// The key is completed: reports change nothing any more.
    Completed,
    /// The handle is no reservation, or its attempt is over: a later one has begun, or the key was forgotten.
    Gone,
    /// An open transaction holds the key's row.
    Held,
    /// Stored, to be applied once the attempt has ended, which is still running.
    Noted,
    /// Applied, durably.
    Taken,
}

/// The TTLs and limits of a route's stored responses, for services that complete a key in the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteRetention {
    pub route: Arc<str>,
    /// The time for which a completed key is remembered.
    pub ttl: Duration,
    /// The time past that for which it is remembered, to refuse late retries.
    pub remember: Option<Duration>,
    pub body_max: usize,
    pub drop_headers: Vec<HeaderName>,
    /// Whether responses are encrypted, which only a proxy can do.
    pub encrypted: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_96_hexadecimal_digits() {
        let text = format!("{}{}", "0a".repeat(32), "f1".repeat(16));
        let reservation = ReservationHandle::parse(&text).unwrap();
        assert_eq!(reservation.id, RecordId::from_stored(&[0x0a; 32]).unwrap());
        assert_eq!(reservation.token, Token::from_stored(&[0xf1; 16]).unwrap());
        assert_eq!(reservation.to_hex(), text);
        assert_eq!(ReservationHandle::parse(&text.to_uppercase()), Some(reservation));
        for wrong in
            ["", "0a", &text[..95], &text[..94], &format!("{text}00"), &text.replace('f', "g"), &"é".repeat(48)]
        {
            assert_eq!(ReservationHandle::parse(wrong), None, "{wrong}");
        }
    }
}
