//! The fields of a request on its way out to somebody else's host.

use http::HeaderMap;

use oncegate_http::protocol::fields;
use oncegate_settings::Route;

/// Sets the fields that the route has for each request. A vendor learns nothing of who stands before it.
pub(super) fn set_fields(headers: &mut HeaderMap, route: &Route) {
    for (name, value) in route.options.set_headers.iter() {
        headers.insert(name, value.clone());
    }
    if route.vendor.is_some() {
        fields::prepare_for_vendor(headers, route.service.upstream.host());
    }
}
