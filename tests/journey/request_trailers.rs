//! The trailers of unguarded requests go to the service, without those that it must not take for header fields.

use std::convert::Infallible;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, Request};
use http_body_util::{BodyExt, Full};

use harness::h2::{self, H2Upstream};
use harness::{Proxy, Store, Upstream, World, route};

/// Trailers that pass.
const PASSING: [(&str, &str); 2] = [("x-checksum", "7"), ("x_sum", "8")];

/// Trailers that a service might take for header fields of the request, or that are not for it.
const STOPPED: [&str; 14] = [
    "authorization",
    "connection",
    "content_length",
    "cookie",
    "host",
    "idempotency-key",
    "idempotency_key",
    "oncegate-reservation",
    "te",
    "transfer-encoding",
    "x-forwarded-for",
    "x-original-url",
    "x-tenant",
    "x_forwarded_host",
];

fn announcement() -> String {
    let names = PASSING.iter().map(|(name, _)| *name).chain(STOPPED);
    names.collect::<Vec<_>>().join(", ")
}

async fn send_http1(proxy: &Proxy, path: &str) -> u16 {
    let mut bytes = format!(
        "POST {path} HTTP/1.1\r\nHost: h\r\nTrailer: {}\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n",
        announcement()
    );
    for (name, value) in PASSING.into_iter().chain(STOPPED.map(|name| (name, "forged"))) {
        bytes.push_str(&format!("{name}: {value}\r\n"));
    }
    bytes.push_str("\r\n");
    proxy.client().raw(bytes.as_bytes()).await.response().await.status
}

async fn send_http2(proxy: &Proxy, path: &str) -> u16 {
    let mut trailers = HeaderMap::new();
    for (name, value) in PASSING.into_iter().chain(STOPPED.map(|name| (name, "forged"))) {
        // HTTP/2 has no such fields (RFC 9113 section 8.2.2).
        if !matches!(name, "connection" | "transfer-encoding" | "te") {
            trailers.insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
    }
    let body = Full::from("hi").with_trailers(async move { Some(Ok::<_, Infallible>(trailers)) });
    let request = Request::post(format!("http://h{path}")).header("trailer", announcement());
    let client = h2::connect_to::<http_body_util::combinators::UnsyncBoxBody<Bytes, Infallible>>(proxy.client());
    let response = client.await.send_request(request.body(body.boxed_unsync()).unwrap()).await;
    response.unwrap().status().as_u16()
}

fn setup(store: &Store, upstream: &str) -> harness::Setup {
    let scope = "scope = [\"header:x-tenant\"]";
    Proxy::on(&store.url())
        .top(&format!("upstream = \"{upstream}\""))
        .route(&route("keyless", scope))
        .route(&route("off", &format!("mode = \"off\"\n{scope}")))
        .route(&route("observed", &format!("mode = \"observe\"\n{scope}")))
}

#[tokio::test]
async fn the_trailers_of_an_unguarded_request_reach_the_service_without_those_that_forge_fields() {
    let (http1, http2) = (Upstream::start().await, H2Upstream::start().await);
    let store = Store::sqlite();
    let before_http1 = setup(&store, &format!("http://{}", http1.address)).start().await;
    let other_store = Store::sqlite();
    let before_http2 = setup(&other_store, &format!("h2c://{}", http2.address)).start().await;
    for path in ["/keyless", "/off", "/observed", "/elsewhere"] {
        // Without a route, no field is read as the scope.
        let expected: Vec<(String, String)> = match path {
            "/elsewhere" => PASSING.into_iter().chain([("x-tenant", "forged")]).collect::<Vec<_>>(),
            _ => PASSING.to_vec(),
        }
        .into_iter()
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect();
        let sorted = |mut fields: Vec<(String, String)>| {
            fields.sort_unstable();
            fields
        };
        for client_speaks in ["http/1.1", "h2"] {
            for proxy in [&before_http1, &before_http2] {
                let status = match client_speaks {
                    "h2" => send_http2(proxy, path).await,
                    _ => send_http1(proxy, path).await,
                };
                assert_eq!(status, 201, "{client_speaks} {path}");
            }
            let case = format!("{client_speaks} {path}");
            let call = http1.last();
            assert_eq!((&*call.body, sorted(call.trailers)), (&b"hi"[..], sorted(expected.clone())), "{case}");
            let call = http2.seen().pop().unwrap();
            let trailers = call.trailers.iter();
            let trailers = trailers.map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
            assert_eq!((&*call.body, sorted(trailers.collect())), (&b"hi"[..], sorted(expected.clone())), "{case}");
        }
    }
}

#[tokio::test]
async fn trailers_that_http_1_1_cannot_send_are_not_announced() {
    let world = World::start(Store::sqlite()).await;
    for request in [
        world.post("/elsewhere").field("Trailer", "X-Checksum").body("hi"),
        world.post("/elsewhere").field("Trailer", "X-Checksum"),
        world.post("/elsewhere").field("Trailer", "Host, TE, no name").body("hi").chunked(),
        world.pay("k-1").field("Trailer", "X-Checksum").chunked(),
    ] {
        assert_eq!(request.send().await.status, 201);
        let call = world.upstream.last();
        assert_eq!((call.field("trailer"), &*call.trailers), (None, &[][..]), "{request:?}");
    }
}
