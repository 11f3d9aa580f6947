//! What a service says of its own attempts, beside its responses.

use std::sync::Arc;
use std::time::Duration;

use http::HeaderName;

use super::attempt::Token;
use super::record::RecordId;
use super::recovery::RecoveryPoint;

/// The right to speak of one attempt, as the service got it in `Oncegate-Reservation`: the record's id and the attempt's
/// token, in hex. The id finds the row without an index on tokens; the token is the right to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Whose attempt.
    pub id: RecordId,
    /// Which attempt.
    pub token: Token,
}

impl Reservation {
    /// What stands in the field, if it is 96 hexadecimal digits.
    pub fn parse(text: &str) -> Option<Self> {
        let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let byte = |pair: &[u8]| match pair {
            [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
            _ => None,
        };
        let bytes = text.as_bytes().chunks(2).map(byte).collect::<Option<Vec<u8>>>()?;
        let (id, token) = bytes.split_at_checked(32)?;
        Some(Self { id: RecordId::from_stored(id)?, token: Token::from_stored(token)? })
    }

    /// As it stands in the field.
    pub fn to_hex(&self) -> String {
        self.id.as_bytes().iter().chain(self.token.as_bytes()).map(|byte| format!("{byte:02x}")).collect()
    }
}

/// A service's word on its own attempt.
#[derive(Clone, Debug)]
pub struct Word {
    /// Whose attempts are spoken of: the service's name.
    pub service: Arc<str>,
    /// Of which attempt.
    pub of: Reservation,
    /// What.
    pub what: What,
}

/// What is said of an attempt.
#[derive(Clone, Debug)]
pub enum What {
    /// It was not executed, and will not be: forgotten so long after.
    NotExecuted(Duration),
    /// It has come so far, for good.
    Reached(RecoveryPoint),
}

/// What became of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The key is completed: nothing is to be said any more.
    Completed,
    /// It is no reservation, or is over: a later attempt has begun, or the key was forgotten.
    Gone,
    /// Somebody's open transaction holds the key.
    Held,
    /// Written down; it counts once the attempt has ended, which is still running.
    Noted,
    /// It is so, durably.
    Taken,
}

/// What a route says about what is kept, for those who complete a key in the store itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Terms {
    /// The route's name.
    pub route: Arc<str>,
    /// How long a completed key is remembered.
    pub ttl: Duration,
    /// How long past that, to refuse late retries.
    pub remember: Option<Duration>,
    /// The largest body that is kept, in bytes.
    pub body_max: usize,
    /// Fields that are not kept.
    pub drop_headers: Vec<HeaderName>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reservation_is_96_hexadecimal_digits() {
        let text = format!("{}{}", "0a".repeat(32), "f1".repeat(16));
        let reservation = Reservation::parse(&text).unwrap();
        assert_eq!(reservation.id, RecordId::from_stored(&[0x0a; 32]).unwrap());
        assert_eq!(reservation.token, Token::from_stored(&[0xf1; 16]).unwrap());
        assert_eq!(reservation.to_hex(), text);
        assert_eq!(Reservation::parse(&text.to_uppercase()), Some(reservation));
        for wrong in
            ["", "0a", &text[..95], &text[..94], &format!("{text}00"), &text.replace('f', "g"), &"é".repeat(48)]
        {
            assert_eq!(Reservation::parse(wrong), None, "{wrong}");
        }
    }
}
