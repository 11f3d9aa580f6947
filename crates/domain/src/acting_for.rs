//! Fields that name the account for which a caller acts.
//!
//! One credential may act for many accounts, such as a platform's. So the same key for another account is another
//! operation: such a field is a part of the scope of its dialect, and elsewhere of each fingerprint.
//!
//! Each field is documented by its API: `As-User` by Box, `Dropbox-API-Select-*` by Dropbox, `On-Behalf-Of` by
//! SendGrid, `X-On-Behalf-Of` by Airwallex, `X-Scope-OrgID` by Grafana Loki and Mimir, `X-Goog-User-Project` by Google
//! Cloud, and the others by the API in their name. `X-Tenant-Id` is usual for a service's own tenants.

use http::{HeaderMap, HeaderName};

/// The fields.
// A field that is added changes the fingerprints of the requests that have it: their retries are refused until the TTL.
static FIELDS: [HeaderName; 16] = [
    HeaderName::from_static("as-user"),
    HeaderName::from_static("dropbox-api-select-admin"),
    HeaderName::from_static("dropbox-api-select-user"),
    HeaderName::from_static("harvest-account-id"),
    HeaderName::from_static("on-behalf-of"),
    HeaderName::from_static("openai-organization"),
    HeaderName::from_static("openai-project"),
    HeaderName::from_static("paypal-auth-assertion"),
    HeaderName::from_static("stripe-account"),
    HeaderName::from_static("stripe-context"),
    HeaderName::from_static("x-goog-user-project"),
    HeaderName::from_static("x-mailgun-on-behalf-of"),
    HeaderName::from_static("x-on-behalf-of"),
    HeaderName::from_static("x-scope-orgid"),
    HeaderName::from_static("x-tenant-id"),
    HeaderName::from_static("xero-tenant-id"),
];

/// Whether a field names the account for which a caller acts.
pub fn is_acting_for(name: &HeaderName) -> bool {
    FIELDS.contains(name)
}

pub fn fields_in(headers: &HeaderMap) -> impl Iterator<Item = &'static HeaderName> {
    // A request has fewer names than it takes time to look for each of these, and most begin with another letter.
    let candidates = headers.keys().filter(|name| name.as_str().starts_with(['a', 'd', 'h', 'o', 'p', 's', 'x']));
    let places = candidates.filter_map(|name| FIELDS.iter().position(|field| field == name));
    let found = places.fold(0_u16, |found, place| found | 1 << place);
    FIELDS.iter().enumerate().filter(move |(place, _)| found >> place & 1 == 1).map(|(_, name)| name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fields_are_sorted_and_each_is_there_once_as_in_the_documents() {
        let names: Vec<_> = FIELDS.iter().map(HeaderName::as_str).collect();
        assert!(names.is_sorted_by(|one, other| one < other), "{names:?}");
        let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/callers.md")).unwrap();
        let page = page.to_lowercase();
        assert!(
            names.iter().all(|name| name.starts_with(['a', 'd', 'h', 'o', 'p', 's', 'x'])),
            "as `fields_in` expects"
        );
        names.iter().for_each(|name| assert!(page.contains(&format!("`{name}`")), "docs/callers.md lacks {name}"));
        let headers: HeaderMap = [("Stripe-Account", "a"), ("X-Tenant-Id", "b"), ("X-Other", "c")]
            .map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap()))
            .into_iter()
            .collect();
        assert_eq!(fields_in(&headers).collect::<Vec<_>>(), ["stripe-account", "x-tenant-id"]);
    }
}
