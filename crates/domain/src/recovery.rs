//! Recovery points: the progress of an attempt, reported by its service.

use std::sync::Arc;

/// The name of a step that a service has completed for good, such as `charge_created`. The next attempt carries it, so
/// that the service can continue from there.
///
/// 1 to 128 letters, digits, `.`, `_`, `:` and `-`: it becomes a header field's value, and part of services' logs.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct RecoveryPoint(Arc<str>);

pub const NAME_LENGTH_MAX: usize = 128;

impl RecoveryPoint {
    pub fn parse(name: &str) -> Option<Self> {
        let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._:-".contains(&byte);
        let fits = (1..=NAME_LENGTH_MAX).contains(&name.len()) && name.bytes().all(known);
        fits.then(|| Self(name.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
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
