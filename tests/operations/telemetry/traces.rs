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
use opentelemetry_proto::tonic::common::v1::any_value::Value;
use opentelemetry_proto::tonic::trace::v1::Span;
use opentelemetry_proto::tonic::trace::v1::span::SpanKind;
use prost::Message;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::time::timeout;

use super::Metrics;
use harness::tls::{Authority, FrontMode, TlsFront};
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

fn attribute<'a>(span: &'a Span, key: &str) -> Option<&'a Value> {
    span.attributes.iter().find(|pair| pair.key == key)?.value.as_ref()?.value.as_ref()
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
        let server = named(&spans, "POST pay");
        assert_eq!((server.kind(), hex(&server.parent_span_id)), (SpanKind::Server, CALLER.to_owned()));
        let word = |word: &str| Some(Value::StringValue(word.to_owned()));
        assert_eq!(attribute(server, "http.request.method").cloned(), word("POST"));
        assert_eq!(attribute(server, "oncegate.route").cloned(), word("pay"));
        assert_eq!(attribute(server, "oncegate.status").cloned(), word("executed"));
        assert_eq!(attribute(server, "http.response.status_code"), Some(&Value::IntValue(201)));
        assert_eq!(attribute(server, "oncegate.attempt"), Some(&Value::IntValue(1)));
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
            (named(&spans, "store reserve"), named(&spans, "POST"), named(&spans, "store settle"));
        assert!(reserve.end_time_unix_nano <= upstream.start_time_unix_nano + 2_000);
        assert!(upstream.end_time_unix_nano <= settle.start_time_unix_nano + 2_000);
        let call = world.upstream.last();
        let onward = format!("00-{TRACE}-{}-01", hex(&upstream.span_id));
        assert_eq!((call.field("traceparent"), call.field("tracestate")), (Some(&*onward), Some("a=b")));
        let seen = collector.seen();
        let resource = seen.requests[0].resource_spans[0].resource.as_ref().unwrap();
        assert!(resource.attributes.iter().any(|pair| pair.key == "service.name"), "{resource:?}");
        assert!(path.is_empty() || seen.paths == [path], "{:?}", seen.paths);
        are_exported(&world, 4.0).await;
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
    assert_eq!(named(&spans, "POST pay").status.as_ref().unwrap().code, 2, "a broken upstream is an error");
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
