//! Requests that a route does not guard because of their bodies: operations of GraphQL that only read.

use bytes::Bytes;
use http::{Method, request};

use super::fingerprinting::Fingerprinting;
use super::key_location;
use oncegate_config::{Dialect, Route};
use oncegate_http::protocol::graphql::GraphqlBodyForm;

/// The size from which a body is large: a document takes up to 0.1 µs for each byte, ten times as long as JSON for a fingerprint.
const LARGE_BODY: usize = 8 * 1024;

/// Whether the body has to be read to know if its route guards the request: in GraphQL the operation is there. Without a key, a request
/// passes anyhow, unless its route requires one.
pub(super) fn may_only_read(head: &request::Parts, route: &Route) -> bool {
    let may_have_key =
        || !matches!(key_location::in_head(head, &route.key), Ok(None)) || key_location::may_be_in_body(&route.key);
    route.dialect == Dialect::Graphql && head.method == Method::POST && (route.key.required || may_have_key())
}

/// Whether a request that has come in whole is one that its route does not guard. A large body is judged on another thread.
pub(super) async fn only_reads(
    head: &request::Parts,
    body: &Bytes,
    route: &Route,
    fingerprinting: &Fingerprinting,
) -> bool {
    let Some(form) = body_form(head, route) else { return false };
    if body.len() < LARGE_BODY {
        return form.only_reads(body);
    }
    let body = body.clone();
    fingerprinting.run_on_thread(move || form.only_reads(&body)).await
}

/// The same on this thread, whatever the size of the body.
pub(super) fn only_reads_at_once(head: &request::Parts, body: &[u8], route: &Route) -> bool {
    body_form(head, route).is_some_and(|form| form.only_reads(body))
}

fn body_form(head: &request::Parts, route: &Route) -> Option<GraphqlBodyForm> {
    if route.dialect == Dialect::Graphql { GraphqlBodyForm::find(head) } else { None }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::Arc;
    use std::task::{Context, Waker};

    use http::header::CONTENT_TYPE;
    use http::{HeaderValue, Request};

    use super::*;
    use oncegate_config::{self as config, Overrides, ProcessEnvironment};

    fn graphql_route() -> Arc<Route> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("oncegate.toml");
        let file = "upstream = 'http://a'\n[[routes]]\nname = 'r'\npath = '/graphql'\ndialect = 'graphql'";
        std::fs::write(&path, file).unwrap();
        let loaded = config::load(Some(&path), &Overrides::default(), &ProcessEnvironment);
        Arc::clone(&loaded.expect("it loads").routes[0])
    }

    #[tokio::test]
    async fn a_large_body_is_judged_on_another_thread() {
        let (route, fingerprinting) = (graphql_route(), Fingerprinting::default());
        let mut head = Request::post("/graphql").body(()).unwrap().into_parts().0;
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (blanks, is_small) in [(10, true), (LARGE_BODY, false)] {
            let body = Bytes::from(format!("{}{{\"query\":\"{{ a }}\"}}", " ".repeat(blanks)));
            let mut judging = pin!(only_reads(&head, &body, &route, &fingerprinting));
            let first = judging.as_mut().poll(&mut Context::from_waker(Waker::noop()));
            assert_eq!(first.is_ready(), is_small, "{blanks}");
            if first.is_pending() {
                assert!(judging.await);
            }
        }
    }
}
