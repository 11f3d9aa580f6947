//! Requests that a route does not guard because of their bodies: operations of GraphQL that only read.

use http::{Method, request};

use super::key_location;
use crate::config::{Dialect, Route};
use crate::protocol::graphql;

/// Whether the body has to be read to know if its route guards the request: in GraphQL the operation is there. Without a key, a request
/// passes anyhow, unless its route requires one.
pub(super) fn may_only_read(head: &request::Parts, route: &Route) -> bool {
    let may_have_key =
        || !matches!(key_location::in_head(head, &route.key), Ok(None)) || key_location::may_be_in_body(&route.key);
    route.dialect == Dialect::Graphql && head.method == Method::POST && (route.key.required || may_have_key())
}

/// Whether a request that has come in whole is one that its route does not guard.
pub(super) fn only_reads(head: &request::Parts, body: &[u8], route: &Route) -> bool {
    route.dialect == Dialect::Graphql && graphql::request_only_reads(head, body)
}
