//! Fields that identify a caller and may occur once.

use std::borrow::Cow;

use http::{HeaderMap, HeaderValue};

use oncegate_http::protocol::refusal::Refusal;

/// With two values, nobody can tell which one the service would believe.
pub(super) const AMBIGUOUS: Refusal = Refusal::ScopeMissing(
    Cow::Borrowed("A field, cookie or parameter that identifies the caller was sent more than once."),
    None,
);

/// The one value of a field that names the caller.
pub(super) fn single<'a>(headers: &'a HeaderMap, name: &http::HeaderName) -> Result<Option<&'a HeaderValue>, Refusal> {
    let mut lines = headers.get_all(name).iter();
    match (lines.next(), lines.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}
