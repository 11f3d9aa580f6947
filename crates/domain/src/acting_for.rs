//! Fields that name the account for which a caller acts, each documented by its API.
//!
//! One credential may act for many accounts, such as a platform's. So the same key for another account is another
//! operation: such a field is a part of the scope of its dialect, and elsewhere of each fingerprint.

use http::{HeaderMap, HeaderName};

/// The fields.
// A field that is added changes the fingerprints of the requests that have it: their retries are refused until the TTL.
static FIELDS: [HeaderName; 8] = [
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    HeaderName::from_static("paypal-auth-assertion"),
    HeaderName::from_static("stripe-account"),
    HeaderName::from_static("stripe-context"),
    HeaderName::from_static("x-goog-user-project"),
    HeaderName::from_static("x-tenant-id"),
    HeaderName::from_static("xero-tenant-id"),
];

/// Whether a field names the account for which a caller acts.
pub fn is_acting_for(name: &HeaderName) -> bool {
    FIELDS.contains(name)
}

/// Those of the fields that a request has.
pub fn fields_in(headers: &HeaderMap) -> impl Iterator<Item = &'static HeaderName> {
    FIELDS.iter().filter(|name| headers.contains_key(*name))
}
