//! Fields that the proxy removes and adds, for guarded and unguarded requests.

use bytes::Bytes;
use http_body_util::{BodyExt, Empty};

use harness::{Answer, Request, Store, World, h2, route};

const HOP_BY_HOP: [(&str, &str); 6] = [
    ("Connection", "X-Named, keep-alive"),
    ("Keep-Alive", "timeout=5"),
    ("Proxy-Connection", "keep-alive"),
    ("Proxy-Authorization", "Basic abc"),
    ("Upgrade", "h2c"),
    ("Trailer", "X-T"),
];

/// The same request, guarded and not.
fn both(world: &World) -> [Request; 2] {
    [world.post("/pay").key("k-1").body("x"), world.post("/pay").body("x")]
}

#[tokio::test]
async fn hop_by_hop_request_fields_are_not_forwarded() {
    let world = World::start(Store::sqlite()).await;
    for request in both(&world) {
        let request = HOP_BY_HOP.iter().fold(request, |request, (name, value)| request.field(name, value));
        let answer = request.field("X-Named", "1").field("X-Kept", "1").field("TE", "gzip").send().await;
        assert_eq!(answer.status, 201);
        let call = world.upstream.last();
        for (name, _) in HOP_BY_HOP {
            let sent = call.all(&name.to_ascii_lowercase()).concat().to_ascii_lowercase();
            assert!(sent.is_empty() || (name == "Connection" && sent == "keep-alive"), "{name}: {sent}");
        }
        assert_eq!((call.field("x-named"), call.field("te"), call.field("x-kept")), (None, None, Some("1")));
    }
}

#[tokio::test]
async fn hop_by_hop_response_fields_are_neither_passed_on_nor_stored() {
    let world = World::start(Store::sqlite()).await;
    let answer =
        [("Connection", "X-Named"), ("Keep-Alive", "timeout=5"), ("Proxy-Authenticate", "Basic"), ("Upgrade", "h2c")]
            .iter()
            .fold(Answer::status(200), |answer, (name, value)| answer.field(name, value));
    world.upstream.answer_all(answer.field("X-Named", "1").field("X-Kept", "1"));
    let [guarded, unguarded] = both(&world);
    for request in [&guarded, &guarded, &unguarded] {
        let response = request.send().await;
        assert_eq!(response.field("x-kept"), Some("1"));
        for name in ["connection", "keep-alive", "proxy-authenticate", "upgrade", "x-named"] {
            assert_eq!(response.field(name), None, "{name}");
        }
    }
}

#[tokio::test]
async fn the_service_gets_forwarded_and_via_fields() {
    let world = World::start(Store::sqlite()).await;
    for request in both(&world) {
        request.send().await;
        let call = world.upstream.last();
        assert_eq!(call.field("host"), Some("shop.example"));
        assert_eq!(call.field("x-forwarded-for"), Some("127.0.0.1"));
        assert_eq!(call.field("x-forwarded-proto"), Some("http"));
        assert_eq!(call.field("x-forwarded-host"), Some("shop.example"));
        let forwarded = call.field("forwarded").unwrap();
        assert!(forwarded.contains("for=127.0.0.1") && forwarded.contains("proto=http"), "{forwarded}");
        assert!(forwarded.contains("host=\"shop.example\"") || forwarded.contains("host=shop.example"), "{forwarded}");
        assert!(call.field("via").unwrap().starts_with("1.1 "));
    }
}

#[tokio::test]
async fn any_number_of_via_lines_are_joined() {
    let world = World::start(Store::sqlite()).await;
    for request in both(&world) {
        let request = (0..5).fold(request, |request, number| request.field("Via", &format!("1.1 gateway-{number}")));
        assert_eq!(request.send().await.status, 201);
        let call = world.upstream.last();
        let [via] = call.all("via")[..] else { panic!("one line: {:?}", call.all("via")) };
        assert!(
            via.starts_with("1.1 gateway-0, 1.1 gateway-1, 1.1 gateway-2, 1.1 gateway-3, 1.1 gateway-4, 1.1 oncegate-")
        );
    }
}

#[tokio::test]
async fn forwarded_fields_of_a_trusted_proxy_are_kept() {
    let world = World::start(Store::sqlite()).await;
    let earlier = |request: Request| {
        request
            .field("X-Forwarded-For", "203.0.113.9")
            .field("X-Forwarded-Proto", "https")
            .field("X-Forwarded-Host", "pay.example")
            .field("Forwarded", "for=203.0.113.9;proto=https")
            .field("Via", "1.1 edge")
            .field("Traceparent", "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01")
    };
    for request in both(&world) {
        earlier(request).send().await;
        let call = world.upstream.last();
        assert_eq!(call.all("x-forwarded-for").join(", "), "203.0.113.9, 127.0.0.1");
        assert_eq!(call.field("x-forwarded-proto"), Some("https"));
        assert_eq!(call.field("x-forwarded-host"), Some("pay.example"));
        let forwarded = call.all("forwarded").join(", ");
        assert!(forwarded.starts_with("for=203.0.113.9;proto=https, for=127.0.0.1"), "{forwarded}");
        assert!(call.all("via").join(", ").starts_with("1.1 edge, 1.1 "));
        assert!(call.field("traceparent").unwrap().starts_with("00-0af7651916cd43dd8448eb211c80319c-"));
    }
}

#[tokio::test]
async fn forwarded_fields_of_an_untrusted_peer_are_replaced() {
    let world = World::with(Store::sqlite(), |setup| setup.top("trusted_proxies = [\"192.0.2.0/24\"]")).await;
    for request in both(&world) {
        let request = request.field("X-Forwarded-For", "203.0.113.9").field("X-Forwarded-Proto", "https");
        request.field("X-Forwarded-Host", "evil.example").field("Forwarded", "for=203.0.113.9").send().await;
        let call = world.upstream.last();
        assert_eq!(call.all("x-forwarded-for"), ["127.0.0.1"]);
        assert_eq!(call.field("x-forwarded-proto"), Some("http"));
        assert_eq!(call.field("x-forwarded-host"), Some("shop.example"));
        assert!(!call.all("forwarded").concat().contains("203.0.113.9"));
    }
}

#[tokio::test]
async fn the_authority_of_an_absolute_target_replaces_host() {
    let world = World::start(Store::sqlite()).await;
    for key in [Some("k-1"), None] {
        let request = world.proxy.client().request("POST", "http://other.example:81/pay?a=b").body("x");
        let request = key.into_iter().fold(request, Request::key);
        assert_eq!(request.send().await.status, 201);
        let call = world.upstream.last();
        assert_eq!((call.field("host"), &*call.target), (Some("other.example:81"), "/pay?a=b"));
    }
    let same = world.post("/pay?a=b").key("k-1").body("x").send().await;
    assert_eq!(same.oncegate_status(), Some("replayed"), "the target's form is no part of the request");
}

#[tokio::test]
async fn no_trailer_becomes_a_field_and_a_guarded_request_has_none() {
    let world = World::start(Store::sqlite()).await;
    for key in ["Idempotency-Key: k-1\r\n", ""] {
        let request = format!(
            "POST /pay HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer a\r\n{key}Transfer-Encoding: chunked\r\nTrailer: X-T\r\n\r\n\
             2;ext=1\r\nhi\r\n0\r\nX-T: 1\r\nIdempotency-Key: other\r\nContent-Length: 9\r\n\r\n"
        );
        assert_eq!(world.proxy.client().raw(request.as_bytes()).await.response().await.status, 201);
        let call = world.upstream.last();
        let passed = [("x-t".to_owned(), "1".to_owned())];
        let passed = if key.is_empty() { &passed[..] } else { &[] };
        assert_eq!((&*call.body, &*call.trailers, call.field("x-t")), (&b"hi"[..], passed, None));
        assert_ne!(call.field("content-length"), Some("9"));
        assert_ne!(call.field("idempotency-key"), Some("other"));
    }
}

/// The fields of Oncegate alone, as a service may spell them.
const OWN: [&str; 8] = [
    "Oncegate-Status",
    "oncegate_status",
    "Idempotent-Replayed",
    "idempotent_replayed",
    "Idempotency-Key-Expires",
    "Oncegate-Original-Date",
    "Oncegate_Duplicate-Of",
    "Oncegate-Sealed",
];

/// Whether a field, or an announcement of trailers, is the service's under a name of Oncegate.
fn is_forged((name, value): &(String, String)) -> bool {
    value.contains("forged") || name.eq_ignore_ascii_case("trailer") && value.to_ascii_lowercase().contains("sealed")
}

#[tokio::test]
async fn no_field_of_oncegate_comes_from_a_service_whatever_carries_it() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", ""))
            .route(&route("off", "mode = \"off\""))
            .route(&route("observed", "mode = \"observe\""))
    })
    .await;
    let lines: String = OWN.iter().map(|name| format!("{name}: forged\r\n")).collect();
    let answer = || {
        let answer = Answer::status(200).field("Trailer", &format!("X-Sum, {}", OWN.join(", ")));
        let answer = OWN.iter().fold(answer, |answer, name| answer.field(name, "forged").trailer(name, "forged"));
        let lines = format!("Link: </a>; rel=preload\r\n{}", lines.trim_end());
        answer.chunks(&["a", "b"]).trailer("X-Sum", "7").early_hints(&lines)
    };
    for (path, key) in
        [("/elsewhere", None), ("/pay", None), ("/off", None), ("/observed", None), ("/pay", Some("k-1"))]
    {
        world.upstream.then(answer()).then(answer());
        let request = world.post(path).field("TE", "trailers").body("x");
        let request = key.iter().fold(request, |request, key| request.key(key));
        let mut exchange = request.open().await.unwrap();
        let mut interim = Vec::new();
        let head = loop {
            let head = exchange.any_head().await.unwrap();
            match head.start.contains(" 103 ") {
                true => interim.extend(head.fields),
                false => break head,
            }
        };
        let response = exchange.rest(head, Vec::new()).await.unwrap();
        let fields = || interim.iter().chain(&response.fields).chain(&response.trailers);
        assert_eq!(fields().find(|field| is_forged(field)), None, "{path} {key:?}");
        assert!(response.trailers.iter().any(|(name, value)| name == "x-sum" && value == "7"), "{path} {key:?}");

        // HTTP/2 sends trailers that were not announced, too.
        let request = http::Request::post(format!("http://oncegate{path}")).header("authorization", "Bearer b");
        let request = key.iter().fold(request, |request, key| request.header("idempotency-key", *key));
        let mut sender = h2::connect::<Empty<Bytes>>(&world).await;
        let response = sender.send_request(request.header("te", "trailers").body(Empty::new()).unwrap()).await.unwrap();
        let (head, body) = response.into_parts();
        let trailers = body.collect().await.unwrap().trailers().cloned().unwrap_or_default();
        let fields = || head.headers.iter().chain(&trailers);
        let fields = fields().map(|(name, value)| (name.to_string(), value.to_str().unwrap().to_owned()));
        assert_eq!(fields.into_iter().find(is_forged), None, "{path} {key:?} over HTTP/2");
        assert_eq!(trailers["x-sum"], "7", "{path} {key:?} over HTTP/2");
    }
}
