//! How far an attempt has come, in its service's own words.

use std::fmt;
use std::sync::Arc;

/// The name of a step that a service has put behind it for good, such as `charge_created`: the next attempt is told, and
/// goes on from there.
///
/// 1 to 128 letters, digits, `.`, `_`, `:` and `-`: it goes into a header field, and into logs of services.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPoint(Arc<str>);

/// How long a name may be, in characters.
pub const NAME_LENGTH_MAX: usize = 128;

impl RecoveryPoint {
    /// A name, if it is one.
    pub fn parse(name: &str) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let fits = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(known);
        fits.then(|| Self(name.into()))
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for RecoveryPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_short_and_plain() {
        for good in ["charge_created", "a", "2:b.c-D", &"x".repeat(128)] {
            assert_eq!(RecoveryPoint::parse(good).unwrap().as_str(), good);
        }
        for bad in ["", "a b", "a\r\nb: c", "ä", "a/b", "\"a\"", &"x".repeat(129)] {
            assert_eq!(RecoveryPoint::parse(bad), None, "{bad:?}");
        }
    }
}
