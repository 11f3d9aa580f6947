//! The operation that a request's body names, in GraphQL and in JSON-RPC: the path is the same for all of them.

use std::sync::Arc;

use bytes::Bytes;
use http::header::CONTENT_ENCODING;
use http::{Method, StatusCode, request};

use super::fingerprinting::{Fingerprinting, LARGE_DOCUMENT};
use super::key_location;
use oncegate_domain::jsonrpc::{RpcCall, RpcMessage, RpcOperation, is_declared};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::place::Place;
use oncegate_domain::scope::Salt;
use oncegate_http::protocol::charset;
use oncegate_http::protocol::graphql::GraphqlBodyForm;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Dialect, Route};

/// What a request's body says about its admission.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum BodyOperation {
    /// A call of JSON-RPC that its route guards.
    Call(RpcCall),
    /// Nothing: the head decides.
    Unnamed,
    /// The route does not guard the operation.
    Passes {
        /// Whether it changes nothing, as far as its route says.
        only_reads: bool,
    },
    /// The request cannot be guarded as a whole, and must not pass.
    Refused(Refusal),
}

impl BodyOperation {
    /// The guarded operation, where it is a part of the key's space.
    pub(super) fn call(&self) -> Option<&RpcOperation> {
        match self {
            Self::Call(call) => Some(&call.operation),
            Self::Passes { .. } | Self::Refused(_) | Self::Unnamed => None,
        }
    }
}

const GUARDED_BATCH: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The batch has a call that this route guards, with a key or on a route that requires one. The answer to a part of a batch cannot \
     be kept. Send each guarded call alone. Nothing of this batch was executed.",
);

const GUARDED_NOTIFICATION: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The request has no `id`, and it has a key, or its route requires one. A notification gets no answer that could be kept. Send it as \
     a call, with an `id`. It was not executed.",
);

const INVALID_ID: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The `id` of the request is neither a text nor a number nor null, so that services differ about what it is. Send it with another \
     `id`. It was not executed.",
);

const AMBIGUOUS: Refusal = Refusal::BadRequest(
    StatusCode::BAD_REQUEST,
    "The request has a `method`, and programs may read the body in different ways: it has a member twice, or under a name that differs \
     in case alone, a `method` that is no text, or something that is no JSON. Send each member once, in JSON. It was not executed.",
);

const ENCODED: Refusal = Refusal::BadRequest(
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "The operation is in the body, and the body has a Content-Encoding. Send it without.",
);

const NOT_UTF8: Refusal = Refusal::BadRequest(
    StatusCode::UNSUPPORTED_MEDIA_TYPE,
    "The operation is in the body, and the Content-Type names another encoding than UTF-8. Send it in UTF-8.",
);

/// Whether the body has to be read to know if its route guards the request. Without a key, a request passes anyhow,
/// unless its route requires one.
pub(super) fn is_needed(head: &request::Parts, route: &Route) -> bool {
    let may_have_key = || has_key(head, None, route) || route.options.key.may_be_in_body();
    (route.options.dialect == Dialect::Graphql || route.options.dialect.is_jsonrpc())
        && head.method == Method::POST
        && (route.options.key.required || may_have_key())
}

/// Reads the operation of a request that has come in whole. A large body is read on another thread.
pub(super) async fn read(
    head: &request::Parts,
    body: &Bytes,
    route: &Arc<Route>,
    fingerprinting: &Fingerprinting,
) -> BodyOperation {
    if body.len() < LARGE_DOCUMENT {
        return read_at_once(head, body, route);
    }
    let (body, route) = (body.clone(), Arc::clone(route));
    let (mut owned, ()) = request::Request::new(()).into_parts();
    (owned.method, owned.uri, owned.headers) = (head.method.clone(), head.uri.clone(), head.headers.clone());
    fingerprinting.run_on_thread(move || read_at_once(&owned, &body, &route)).await
}

/// The same on this thread, whatever the size of the body.
pub(super) fn read_at_once(head: &request::Parts, body: &[u8], route: &Route) -> BodyOperation {
    match route.options.dialect {
        Dialect::Graphql if GraphqlBodyForm::find(head).is_some_and(|form| form.only_reads(body)) => {
            BodyOperation::Passes { only_reads: true }
        }
        dialect if dialect.is_jsonrpc() && head.method == Method::POST => read_jsonrpc(head, body, route),
        _ => BodyOperation::Unnamed,
    }
}

/// Whether a request has a key, or something at a place of the key that is none.
fn has_key(head: &request::Parts, body: Option<&[u8]>, route: &Route) -> bool {
    let path = RequestPath::new(head.uri.path());
    let reader = key_location::place_reader(route, &path, head);
    // Whether there is a key does not depend on the salt.
    !matches!(key_location::find(route, &reader, body, &Salt::new([0; 32])), Ok(None))
}

fn read_jsonrpc(head: &request::Parts, body: &[u8], route: &Route) -> BodyOperation {
    if !head.headers.get_all(CONTENT_ENCODING).iter().all(|coding| coding == "identity") {
        return BodyOperation::Refused(ENCODED);
    }
    if !charset::is_plain(&head.headers) {
        return BodyOperation::Refused(NOT_UTF8);
    }
    // UCP also has a REST binding, whose documents may have members of the same names.
    if route.options.dialect == Dialect::Ucp && !is_declared(body) {
        return BodyOperation::Unnamed;
    }
    let keys = || {
        let path = RequestPath::new(head.uri.path());
        let reader = key_location::place_reader(route, &path, head);
        let is_there = |place: &Place| !matches!(key_location::read_place(place, &reader, body), Ok(None));
        route.options.key.json_places(is_there).collect()
    };
    let head_counts = || route.options.key.required || has_key(head, None, route);
    // The answer to such a request could not be kept, or not be found again.
    let unless_keyed =
        |is_guarded: bool, refusal| match is_guarded && (head_counts() || has_key(head, Some(body), route)) {
            true => BodyOperation::Refused(refusal),
            false => BodyOperation::Passes { only_reads: !is_guarded },
        };
    match RpcMessage::read(body, route.options.dialect.names_tools(), keys) {
        RpcMessage::Call(call) if call.operation.is_among(&route.options.operations) => BodyOperation::Call(call),
        RpcMessage::Call(_) | RpcMessage::Response => BodyOperation::Passes { only_reads: true },
        RpcMessage::InvalidId(operation) => unless_keyed(operation.is_among(&route.options.operations), INVALID_ID),
        RpcMessage::Notification(operation) => {
            unless_keyed(operation.is_among(&route.options.operations), GUARDED_NOTIFICATION)
        }
        RpcMessage::Ambiguous => unless_keyed(true, AMBIGUOUS),
        RpcMessage::Batch(elements) => {
            let is_guarded =
                |operation| Option::is_none_or(operation, |one: &RpcOperation| one.is_among(&route.options.operations));
            let head_counts = head_counts();
            let mut guarded = elements.iter().filter(|element| is_guarded(element.operation.as_ref())).peekable();
            let only_reads = guarded.peek().is_none();
            match guarded.any(|element| head_counts || element.has_key) {
                true => BodyOperation::Refused(GUARDED_BATCH),
                false => BodyOperation::Passes { only_reads },
            }
        }
        RpcMessage::Unclear => BodyOperation::Unnamed,
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::mpsc;
    use std::task::{Context, Poll, Waker};

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
        Arc::clone(&loaded.expect("it loads").live.routes[0])
    }

    #[tokio::test]
    async fn a_large_body_is_judged_on_another_thread() {
        let (route, fingerprinting) = (graphql_route(), Fingerprinting::default());
        let mut head = Request::post("/graphql").body(()).unwrap().into_parts().0;
        head.headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        let mut context = Context::from_waker(Waker::noop());
        // Until the thread is free, a judgement on it cannot be there at the first poll.
        let (free, freed) = mpsc::channel::<()>();
        let mut occupied = pin!(fingerprinting.run_on_thread(move || freed.recv()));
        assert!(occupied.as_mut().poll(&mut context).is_pending());
        let bodies =
            [10, LARGE_DOCUMENT].map(|blanks| format!("{}{{\"query\":\"{{ a }}\"}}", " ".repeat(blanks)).into());
        let [mut small, mut large] = bodies.each_ref().map(|body| Box::pin(read(&head, body, &route, &fingerprinting)));
        let only_reads = BodyOperation::Passes { only_reads: true };
        assert_eq!(small.as_mut().poll(&mut context), Poll::Ready(only_reads));
        assert_eq!(large.as_mut().poll(&mut context), Poll::Pending);
        drop(free);
        occupied.await.unwrap_err();
        assert_eq!(large.await, BodyOperation::Passes { only_reads: true });
    }
}
