//! Traces as a collector receives them: a real gRPC and HTTP server that reads them with OpenTelemetry's own messages.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceRequest;
use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Metrics;
use harness::consumer_world::consumer_world_with;
use harness::rabbitmq::message;
use harness::relay::remote;
use harness::tls::{Authority, FrontMode, TlsFront};
use harness::vendor::{VendorDouble, VendorRules};
use harness::{Answer, Hold, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, route};

/// A collector.
pub struct Collector {
    pub address: SocketAddr,
    seen: Arc<watch::Sender<Seen>>,
    is_away: Arc<AtomicBool>,
}

#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub requests: Vec<ExportTraceServiceRequest>,
    pub raw: Vec<Bytes>,
    pub paths: Vec<String>,
    pub fields: Vec<HeaderMap>,
}

impl Seen {
    pub fn spans(&self) -> Vec<Span> {
        let resources = self.requests.iter().flat_map(|request| &request.resource_spans);
        resources.flat_map(|spans| &spans.scope_spans).flat_map(|spans| spans.spans.clone()).collect()
    }
}

impl Collector {
    pub async fn start() -> Self {
        Self::start_at("127.0.0.1:0".parse().unwrap()).await
    }

    async fn start_at(address: SocketAddr) -> Self {
        let listener = TcpListener::bind(address).await.unwrap();
        let (address, seen, is_away) = (listener.local_addr().unwrap(), Arc::default(), Arc::default());
        let (record, away) = (Arc::clone(&seen), Arc::clone(&is_away));
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (record, away): (Arc<watch::Sender<Seen>>, Arc<AtomicBool>) =
                    (Arc::clone(&record), Arc::clone(&away));
                tokio::spawn(async move {
                    let service = service_fn(|request| take(request, Arc::clone(&record), Arc::clone(&away)));
                    let _ = Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service).await;
                });
            }
        });
        Self { address, seen, is_away }
    }

    /// Waits for this many spans.
    pub async fn spans(&self, count: usize) -> Vec<Span> {
        let mut seen = self.seen.subscribe();
        let waited = timeout(TEST_TIMEOUT, seen.wait_for(|seen| seen.spans().len() >= count)).await;
        assert!(waited.is_ok(), "there are no {count} spans: {:#?}", self.seen.borrow().spans());
        let spans = self.seen.borrow().spans();
        assert_eq!(spans.len(), count, "{spans:#?}");
        spans
    }

    pub fn seen(&self) -> Seen {
        self.seen.borrow().clone()
    }
}

type Answered = Response<http_body_util::combinators::BoxBody<Bytes, Infallible>>;

async fn take(
    request: Request<Incoming>,
    seen: Arc<watch::Sender<Seen>>,
    is_away: Arc<AtomicBool>,
) -> Result<Answered, Infallible> {
    let (head, body) = request.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let is_grpc = head.headers["content-type"] == "application/grpc";
    assert_eq!(head.method, "POST");
    let away = is_away.load(Ordering::Relaxed);
    if !away {
        let message = if is_grpc {
            assert_eq!(head.version, http::Version::HTTP_2);
            assert_eq!(head.headers["te"], "trailers");
            assert_eq!(head.uri.path(), "/opentelemetry.proto.collector.trace.v1.TraceService/Export");
            let length = u32::from_be_bytes(body[1..5].try_into().unwrap());
            assert_eq!((body[0], length as usize), (0, body.len() - 5));
            body.slice(5..)
        } else {
            assert_eq!(head.headers["content-type"], "application/x-protobuf");
            body.clone()
        };
        let request = ExportTraceServiceRequest::decode(&*message).unwrap();
        // OpenTelemetry's own code would write the same bytes: the decoder ignored none.
        assert_eq!(request.encoded_len(), message.len());
        seen.send_modify(|seen| {
            seen.requests.push(request);
            seen.raw.push(message);
            seen.paths.push(head.uri.path().to_owned());
            seen.fields.push(head.headers);
        });
    }
    if !is_grpc {
        let mut response = Response::new(Full::new(Bytes::new()).boxed());
        *response.status_mut() = if away { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
        return Ok(response);
    }
    let mut trailers = HeaderMap::new();
    trailers.insert("grpc-status", HeaderValue::from_static(if away { "14" } else { "0" }));
    let frames = [Ok(Frame::data(Bytes::from_static(&[0; 5]))), Ok(Frame::trailers(trailers))];
    let mut response = Response::new(BodyExt::boxed(StreamBody::new(futures_util::stream::iter(frames))));
    response.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
    Ok(response)
}

/// The setup with this collector.
pub fn traced(setup: Setup, otlp: &str) -> Setup {
    setup.telemetry(&format!("otlp = \"{otlp}\""))
}

async fn world(otlp: &str) -> World {
    World::with(Store::sqlite(), |setup| traced(setup.route(&route("pay", "")), otlp)).await
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const CALLER: &str = "b7ad6b7169203331";

/// Waits until the proxy has counted this many spans as accepted.
async fn are_exported(world: &World, count: f64) {
    let exported = async || Metrics::of(&world.proxy).await.get("oncegate_spans_exported_total") == count;
    eventually(TEST_TIMEOUT, async || exported().await.then_some(())).await;
}

/// The request's only span of that name.
fn named<'a>(spans: &'a [Span], name: &str) -> &'a Span {
    let found: Vec<_> = spans.iter().filter(|span| span.name == name).collect();
    assert_eq!(found.len(), 1, "{name}: {spans:#?}");
    found[0]
}

#[tokio::test]
async fn an_attempts_span_contains_store_and_service_spans_and_propagates_to_the_service() {
    for path in ["", "/v1/traces"] {
        let collector = Collector::start().await;
        let world = world(&format!("http://{}{path}", collector.address)).await;
        let traceparent = format!("00-{TRACE}-{CALLER}-01");
        let answer = world.pay("k-1").field("traceparent", &traceparent).field("tracestate", "a=b").send().await;
        assert_eq!(answer.oncegate_status(), Some("executed"));
        let spans = collector.spans(4).await;
        let server = named(&spans, "POST /pay");
        assert_eq!((server.kind(), hex(&server.parent_span_id)), (SpanKind::Server, CALLER.to_owned()));
        for span in &spans {
            assert_eq!(hex(&span.trace_id), TRACE);
            assert!(span.start_time_unix_nano <= span.end_time_unix_nano, "{span:?}");
            assert!(span.status.is_none());
            if span.span_id != server.span_id {
                assert_eq!((&span.parent_span_id, span.kind()), (&server.span_id, SpanKind::Client));
                // Equal to the microsecond, the resolution of the measurement.
                assert!(span.start_time_unix_nano + 2_000 >= server.start_time_unix_nano);
                assert!(span.end_time_unix_nano <= server.end_time_unix_nano + 2_000, "{span:?} {server:?}");
            }
        }
        let (reserve, upstream, settle) =
            (named(&spans, "reserve keys"), named(&spans, "POST"), named(&spans, "settle keys"));
        assert!(reserve.end_time_unix_nano <= upstream.start_time_unix_nano + 2_000);
        assert!(upstream.end_time_unix_nano <= settle.start_time_unix_nano + 2_000);
        let call = world.upstream.last();
        let onward = format!("00-{TRACE}-{}-01", hex(&upstream.span_id));
        assert_eq!((call.field("traceparent"), call.field("tracestate")), (Some(&*onward), Some("a=b")));
        let seen = collector.seen();
        assert!(path.is_empty() || seen.paths == [path], "{:?}", seen.paths);
        are_exported(&world, 4.0).await;
    }
}

fn text(value: &KeyValue) -> String {
    match value.value.as_ref().unwrap().value.as_ref().unwrap() {
        Value::StringValue(text) => text.clone(),
        Value::IntValue(number) => number.to_string(),
        other => panic!("{other:?}"),
    }
}

/// The spans of a request's trace, each in a line: kind, name, parent, and all attributes by their names. What differs
/// from run to run is left out.
fn lines_of_trace(spans: &[Span], number: usize, upstream: &str) -> Vec<String> {
    let of_trace: Vec<_> = spans.iter().filter(|span| hex(&span.trace_id) == trace_id(number)).collect();
    let show = |span: &&Span| {
        let parent = of_trace.iter().find(|one| one.span_id == span.parent_span_id);
        let parent = match parent {
            Some(parent) => parent.name.clone(),
            None if hex(&span.parent_span_id) == CALLER => "caller".to_owned(),
            None => "nobody".to_owned(),
        };
        let (host, port) = upstream.split_once(':').unwrap();
        let mut shown: Vec<_> = span.attributes.iter().map(|pair| (&*pair.key, text(pair))).collect();
        shown.sort();
        let shown = shown.into_iter().map(|(key, value)| match (key, &*value) {
            ("oncegate.record", id) => {
                assert_eq!(id.len(), 64);
                "oncegate.record".to_owned()
            }
            ("server.address", address) if address == host => "server.address=SERVICE".to_owned(),
            ("server.port", number) if number == port => "server.port=SERVICE".to_owned(),
            // By the moment at which the connections are cut.
            ("error.type", "timeout" | "unavailable") => "error.type=AWAY".to_owned(),
            _ => format!("{key}={}", value.replace(upstream, "SERVICE")),
        });
        let status = span.status.as_ref().map_or("", |status| if status.code == 2 { " failed" } else { " ?" });
        let shown = shown.collect::<Vec<_>>().join(" ");
        format!("{:?} `{}` of {parent}{status}: {shown}", span.kind(), span.name)
    };
    of_trace.iter().map(show).collect()
}

fn trace_id(number: usize) -> String {
    format!("{:031}{number}", 0)
}

/// Each end of a request with its spans. All of their attributes are here: what is not here is not exported.
#[tokio::test]
async fn each_end_of_a_request_has_the_spans_of_the_semantic_conventions() {
    const SERVER: &str = "http.request.method=POST http.route=/accounts/{id}/pay network.protocol.version=1.1 \
                          oncegate.route=pay server.address=shop.example server.port=8443 \
                          url.path=/accounts/{id}/pay url.scheme=http";
    const KEYED: &str = "client.address=127.0.0.1 oncegate.record";
    const CALL: &str = "http.request.method=POST network.protocol.version=1.1 server.address=SERVICE server.port=SERVICE \
                        url.full=http://SERVICE/accounts/{id}/pay";
    let sorted = |head: String, attributes: String| {
        let mut attributes: Vec<_> = attributes.split(' ').filter(|one| !one.is_empty()).collect();
        attributes.sort_unstable();
        format!("{head}: {}", attributes.join(" "))
    };
    let failed = |more: &str| if more.contains("error.type") { " failed" } else { "" };
    let server = |code: u16, more: &str| {
        let head = format!("Server `POST /accounts/{{id}}/pay` of caller{}", failed(more));
        sorted(head, format!("{SERVER} http.response.status_code={code} {more}"))
    };
    let call = |more: &str| {
        sorted(format!("Client `POST` of POST /accounts/{{id}}/pay{}", failed(more)), format!("{CALL} {more}"))
    };
    let store = |operation: &str, more: &str| {
        let names = format!("db.collection.name=keys db.operation.name={operation} db.system.name=postgresql {more}");
        sorted(format!("Client `{operation} keys` of POST /accounts/{{id}}/pay{}", failed(more)), names)
    };
    let attempt =
        |server: String, about_call: &str| vec![server, store("reserve", ""), call(about_call), store("settle", "")];

    let collector = Collector::start().await;
    let (world, relay) = remote(|setup| {
        let lines = "name = \"pay\"\npath = \"/accounts/{id}/pay\"\nmethods = [\"POST\"]\n\
                     key = { required = true }\nkeep_client_address = true";
        traced(setup.route(lines), &format!("http://{}/v1/traces", collector.address))
    })
    .await;
    let send = async |number: usize, key: &str, body: &str| {
        let traceparent = format!("00-{}-{CALLER}-01", trace_id(number));
        let request = world.post("/accounts/alice/pay?card=4242").host("shop.example:8443").body(body);
        let request = request.field("traceparent", &traceparent).field("User-Agent", "s3cret");
        let request = if key.is_empty() { request } else { request.key(key) };
        request.send().await.status
    };
    assert_eq!(send(1, "k-1", "10 EUR").await, 201);
    assert_eq!(send(2, "k-1", "10 EUR").await, 201);
    assert_eq!(send(3, "", "10 EUR").await, 400);
    assert_eq!(send(4, "k-1", "20 EUR").await, 422);
    world.upstream.then(Answer::status(503)).then(Answer::status(404)).then(Answer::close());
    assert_eq!(send(5, "k-2", "10 EUR").await, 503);
    assert_eq!(send(6, "k-2", "10 EUR").await, 404);
    assert_eq!(send(7, "k-3", "10 EUR").await, 502);
    relay.cut();
    assert_eq!(send(8, "k-4", "10 EUR").await, 503);
    let service = world.upstream.address.to_string();
    let spans = eventually(TEST_TIMEOUT, async || {
        let spans = collector.seen().spans();
        (!lines_of_trace(&spans, 8, &service).is_empty()).then_some(spans)
    })
    .await;

    let keyed = |code: u16, more: &str| server(code, &format!("{KEYED} {more}"));
    let expected = [
        attempt(keyed(201, "oncegate.attempt=1 oncegate.status=executed"), "http.response.status_code=201"),
        vec![keyed(201, "oncegate.status=replayed")],
        vec![server(400, "oncegate.refusal=key-missing oncegate.status=rejected")],
        vec![keyed(422, "oncegate.differs=body oncegate.refusal=key-reused oncegate.status=key-reused")],
        attempt(
            keyed(503, "error.type=503 oncegate.attempt=1 oncegate.status=released"),
            "error.type=503 http.response.status_code=503",
        ),
        attempt(
            keyed(404, "oncegate.attempt=2 oncegate.status=executed"),
            "error.type=404 http.request.resend_count=1 http.response.status_code=404",
        ),
        attempt(
            keyed(
                502,
                "error.type=upstream-broken oncegate.attempt=1 oncegate.cause=broken oncegate.refusal=upstream-broken \
                 oncegate.status=unknown",
            ),
            "error.type=upstream-broken",
        ),
        vec![
            keyed(503, "error.type=store-unavailable oncegate.refusal=store-unavailable oncegate.status=rejected"),
            store("reserve", "error.type=AWAY"),
        ],
    ];
    for (index, expected) in expected.iter().enumerate() {
        assert_eq!(&lines_of_trace(&spans, index + 1, &service), expected, "{}", index + 1);
    }
    let seen = collector.seen();
    for request in &seen.raw {
        let text = String::from_utf8_lossy(request);
        assert!(["alice", "4242", "s3cret", "k-1"].iter().all(|secret| !text.contains(secret)), "{text}");
    }
    let resource_spans = &seen.requests[0].resource_spans[0];
    let scope = resource_spans.scope_spans[0].scope.as_ref().unwrap();
    assert_eq!((&*scope.name, &*scope.version), ("oncegate", env!("CARGO_PKG_VERSION")));
    let attributes = &resource_spans.resource.as_ref().unwrap().attributes;
    let mut resource: Vec<_> = attributes.iter().map(|pair| format!("{}={}", pair.key, text(pair))).collect();
    resource.retain(|pair| !pair.starts_with("service.instance.id="));
    resource.sort();
    let version = env!("CARGO_PKG_VERSION");
    let expected = [
        "oncegate.service=default".to_owned(),
        "service.name=oncegate".to_owned(),
        format!("service.version={version}"),
        "telemetry.sdk.language=rust".to_owned(),
        "telemetry.sdk.name=oncegate".to_owned(),
        format!("telemetry.sdk.version={version}"),
    ];
    assert_eq!((resource, attributes.len()), (expected.to_vec(), expected.len() + 1));
}

#[tokio::test]
async fn a_message_has_the_span_of_a_consumer_in_its_producers_trace() {
    let collector = Collector::start().await;
    let lines = "key = \"header:x-idempotency-key\"\nscope = [\"none\"]";
    let setup = |setup| traced(setup, &format!("http://{}", collector.address));
    let Some(consumers) = consumer_world_with(Store::sqlite(), "", lines, setup).await else { return };
    let traceparent = format!("00-{}-{CALLER}-01", trace_id(1));
    consumers.world.upstream.then(Answer::status(400));
    consumers.queue.publish([message("k-1").header("traceparent", &traceparent)]).await;
    let spans = collector.spans(4).await;
    let shown = lines_of_trace(&spans, 1, &consumers.world.upstream.address.to_string());
    let expected = format!(
        "Consumer `process {queue}` of caller failed: error.type=400 messaging.destination.name={queue} \
         messaging.operation.name=process messaging.operation.type=process messaging.system=rabbitmq oncegate.attempt=1 \
         oncegate.record oncegate.route=pay oncegate.status=executed",
        queue = consumers.queue.name
    );
    assert_eq!(shown[0], expected);
    assert!(shown[2].starts_with(&format!("Client `POST` of process {}", consumers.queue.name)), "{shown:#?}");
}

#[tokio::test]
async fn opentelemetrys_variables_name_the_collector_its_fields_and_the_resource() {
    let collector = Collector::start().await;
    let nobody = Upstream::unused_address().await;
    let world = World::with(Store::sqlite(), |setup| {
        let setup = traced(setup.route(&route("pay", "")), &format!("http://{nobody}"));
        setup
            .environment("OTEL_EXPORTER_OTLP_ENDPOINT", &format!("http://{}/base", collector.address))
            .environment("OTEL_EXPORTER_OTLP_HEADERS", "api-key=a%20b")
            .environment("OTEL_RESOURCE_ATTRIBUTES", "service.instance.id=pod-1,telemetry.sdk.name=x")
            .environment("OTEL_SERVICE_NAME", "gate")
            .environment("OTEL_TRACES_SAMPLER", "parentbased_always_off")
    })
    .await;
    world.pay("k-1").send().await;
    let begun = world.upstream.last().field("traceparent").unwrap().to_owned();
    assert!(begun.ends_with("-00"), "the service behind records it as little: {begun}");
    world.pay("k-2").field("traceparent", &format!("00-{TRACE}-{CALLER}-01")).send().await;
    let spans = collector.spans(4).await;
    assert!(spans.iter().all(|span| hex(&span.trace_id) == TRACE));
    let seen = collector.seen();
    assert_eq!(seen.paths, ["/base/v1/traces"]);
    assert_eq!(seen.fields[0]["api-key"], "a b");
    let attributes = &seen.requests[0].resource_spans[0].resource.as_ref().unwrap().attributes;
    let attribute = |key: &str| {
        let found: Vec<_> = attributes.iter().filter(|pair| pair.key == key).map(text).collect();
        assert_eq!(found.len(), 1, "{key}: {found:?}");
        found.concat()
    };
    assert_eq!((attribute("service.name"), attribute("service.instance.id")), ("gate".to_owned(), "pod-1".to_owned()));
    assert_eq!(attribute("telemetry.sdk.name"), "oncegate");
}

#[tokio::test]
async fn a_state_of_another_trace_is_not_forwarded_with_a_new_one() {
    let collector = Collector::start().await;
    let world = world(&format!("http://{}", collector.address)).await;
    for traceparent in ["", "00-invalid"] {
        let request = world.pay(&format!("k{traceparent}")).field("tracestate", "a=b");
        let request = if traceparent.is_empty() { request } else { request.field("traceparent", traceparent) };
        request.send().await;
        let call = world.upstream.last();
        assert_eq!((call.all("traceparent").len(), call.field("tracestate")), (1, None), "{traceparent}");
    }
}

#[tokio::test]
async fn a_vendor_learns_of_no_trace() {
    let collector = Collector::start().await;
    let vendor = VendorDouble::start(VendorRules { field: "idempotency-key", window: TEST_TIMEOUT }).await;
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.upstream(vendor.address).top("secret = \"a secret of some length\"");
        traced(setup.route(&route("pay", "vendor = \"stripe\"")), &format!("http://{}", collector.address))
    })
    .await;
    for request in [world.pay("k-1"), world.get("/pay")] {
        request.field("traceparent", &format!("00-{TRACE}-{CALLER}-01")).field("tracestate", "a=b").send().await;
    }
    collector.spans(6).await;
    let heads = vendor.heads();
    assert_eq!(heads.len(), 2);
    for head in heads {
        assert!(["traceparent", "tracestate"].iter().all(|name| head.all(name).next().is_none()), "{head:?}");
    }
}

#[tokio::test]
async fn a_trace_starts_at_the_proxy_without_a_parent_and_an_unsampled_one_is_not_recorded() {
    let collector = Collector::start().await;
    let world = world(&format!("http://{}", collector.address)).await;
    let unsampled = format!("00-{TRACE}-{CALLER}-00");
    world.pay("k-1").field("traceparent", &unsampled).send().await;
    assert_eq!(world.upstream.last().field("traceparent"), Some(&*unsampled));
    world.get("/elsewhere").send().await;
    let spans = collector.spans(2).await;
    let (server, onward) = match spans[0].kind() {
        SpanKind::Server => (&spans[0], &spans[1]),
        _ => (&spans[1], &spans[0]),
    };
    assert_eq!((&*server.name, server.parent_span_id.len()), ("GET", 0), "what passes is traced, too");
    assert_ne!(hex(&server.trace_id), TRACE);
    let onward_context = format!("00-{}-{}-01", hex(&server.trace_id), hex(&onward.span_id));
    assert_eq!(world.upstream.last().field("traceparent"), Some(&*onward_context));
    world.upstream.then(Answer::close());
    world.pay("k-2").send().await;
    let spans = collector.spans(6).await;
    assert_eq!(named(&spans, "POST /pay").status.as_ref().unwrap().code, 2, "a broken upstream is an error");
}

#[tokio::test]
async fn a_collector_outage_fails_no_request_and_waiting_spans_are_sent_afterwards() {
    let collector = Collector::start().await;
    collector.is_away.store(true, Ordering::Relaxed);
    let world = world(&format!("http://{}", collector.address)).await;
    world.pay("k-1").send().await;
    world.proxy.wait_for_log("the collector of traces cannot be reached").await;
    world.pay("k-2").send().await;
    collector.is_away.store(false, Ordering::Relaxed);
    collector.spans(8).await;
    world.proxy.wait_for_log("accepts spans again").await;
    assert_eq!(Metrics::of(&world.proxy).await.get("oncegate_spans_dropped_total"), 0.0);
}

#[tokio::test]
async fn a_drain_sends_waiting_spans_and_no_collector_prevents_the_exit() {
    let collector = Collector::start().await;
    let world = world(&format!("http://{}", collector.address)).await;
    let hold = Hold::new();
    world.upstream.then(Answer::status(201).hold(&hold));
    let running = world.pay("k-1").spawn();
    world.upstream.wait_for_executed(1).await;
    world.proxy.signal(rustix::process::Signal::TERM);
    world.proxy.wait_for_log("draining").await;
    hold.release();
    running.await.unwrap().unwrap();
    assert_eq!(world.proxy.ended().await, Some(0));
    collector.spans(4).await;

    let nobody = Upstream::unused_address().await;
    let world = self::world(&format!("http://{nobody}")).await;
    world.pay("k-1").send().await;
    let begun = tokio::time::Instant::now();
    assert_eq!(world.proxy.stop().await, Some(0));
    assert!(begun.elapsed().as_secs() < 8, "{:?}", begun.elapsed());
    world.proxy.wait_for_log("did not accept the last spans").await;
}

#[tokio::test]
async fn a_tls_collector_is_verified_with_the_systems_authorities() {
    let authority = Authority::new();
    let collector = Collector::start().await;
    let pair = authority.issue(&["127.0.0.1"]);
    let server = oncegate_trust::tls::server_config(pair.certificate.as_bytes(), pair.key.as_bytes(), None).unwrap();
    let front = TlsFront::before(collector.address, FrontMode::Tls(server)).await;
    let world = World::with(Store::sqlite(), |setup| {
        let setup = setup.environment("SSL_CERT_FILE", authority.file().to_str().unwrap());
        traced(setup.route(&route("pay", "")), &format!("https://{}", front.address))
    })
    .await;
    world.pay("k-1").send().await;
    collector.spans(4).await;
    are_exported(&world, 4.0).await;
}
