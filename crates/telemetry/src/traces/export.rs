//! Sends spans to a collector: OTLP over gRPC, or over HTTP if the collector's URL has a path.
//!
//! There is one connection, and one batch at a time. While a collector is unavailable, the same batch is sent again and
//! the queue behind it fills and then drops spans. A batch that the collector refuses is dropped.

use std::error::Error;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::{BufMut, Bytes, BytesMut};
use http::header::{CONTENT_TYPE, HOST, HeaderValue, TE, USER_AGENT};
use http::{HeaderMap, Method, Request, StatusCode, Uri, Version};
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tokio_rustls::TlsConnector;
use tokio_util::sync::CancellationToken;

use super::{Span, SpanReceiver, protobuf};
use oncegate_settings::{OtlpCollector, UpstreamTarget};
use oncegate_trust::tls::Trust;

/// A batch is sent when it has 512 spans, as in OpenTelemetry's own exporters, or 1 s after its first span, a delay
/// that a person who watches accepts.
const BATCH_SPANS_MAX: usize = 512;
const BATCH_DELAY: Duration = Duration::from_secs(1);

/// The time limit of one batch: connecting, sending and the collector's answer.
const SEND_TIMEOUT: Duration = Duration::from_secs(10);

/// The pauses between two tries while the collector is unavailable.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_CAP: Duration = Duration::from_secs(5);

/// The time limit for the spans that still wait when the proxy stops.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(2);

/// The bytes of an answer that are read; a larger answer is an error.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

const GRPC_PATH: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

/// The destination of spans, and the resource that they are from.
pub struct SpanExporter {
    collector: OtlpCollector,
    trust: Trust,
}

impl SpanExporter {
    /// The exporter of an instance. The resource that the collector is configured with wins over the instance's own.
    pub fn new(mut collector: OtlpCollector, trust: Trust, service: &str, instance: &str) -> Self {
        const VERSION: &str = env!("CARGO_PKG_VERSION");
        let resource = &mut collector.resource;
        resource.retain(|(name, _)| !name.starts_with("telemetry.sdk."));
        for (name, value) in [
            ("service.name", "oncegate"),
            ("service.version", VERSION),
            ("service.instance.id", instance),
            ("oncegate.service", service),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.name", "oncegate"),
            ("telemetry.sdk.version", VERSION),
        ] {
            if resource.iter().all(|(known, _)| **known != *name) {
                resource.push((name.into(), value.into()));
            }
        }
        Self { collector, trust }
    }
}

enum ExportError {
    /// The collector may accept it later.
    Unavailable(Box<dyn Error + Send + Sync>),
    /// The collector will never accept it.
    Refused(String),
}

/// Sends spans as they arrive until `stop`, and then those that still wait, for at most 2 s.
pub async fn run(exporter: SpanExporter, mut receiver: SpanReceiver, stop: CancellationToken) {
    let (mut connection, mut spans) = (None, Vec::new());
    loop {
        tokio::select! {
            () = collect_batch(&mut receiver, &mut spans) => {}
            () = stop.cancelled() => break,
        }
        tokio::select! {
            () = send_until_settled(&exporter, &mut connection, &spans, &receiver) => spans.clear(),
            () = stop.cancelled() => break,
        }
    }
    send_rest(&exporter, &mut connection, spans, receiver).await;
}

/// Collects the spans that arrive within a second of the first. Cancelling it loses none.
async fn collect_batch(receiver: &mut SpanReceiver, spans: &mut Vec<Span>) {
    // The queue's other end lives as long as the proxy: `None` comes only at its end, together with `stop`.
    spans.extend(receiver.queue.recv().await.unwrap_or_default());
    let until = Instant::now() + BATCH_DELAY;
    while spans.len() < BATCH_SPANS_MAX {
        match timeout_at(until, receiver.queue.recv()).await {
            Ok(Some(more)) => spans.extend(more),
            Ok(None) | Err(_) => break,
        }
    }
}

/// Sends a batch again and again until the collector accepts or refuses it. Logs once when the collector becomes
/// unavailable, and once when it is back.
async fn send_until_settled(
    exporter: &SpanExporter,
    connection: &mut Option<CollectorConnection>,
    spans: &[Span],
    receiver: &SpanReceiver,
) {
    let mut pause = PAUSE_FIRST;
    let mut is_reported = false;
    loop {
        match exporter.send(connection, spans).await {
            Ok(()) => {
                receiver.counts.exported.fetch_add(spans.len() as u64, Ordering::Relaxed);
                if is_reported {
                    tracing::info!("the collector of traces accepts spans again");
                }
                return;
            }
            Err(ExportError::Refused(why)) => {
                receiver.counts.count_dropped(spans.len());
                tracing::warn!(why, spans = spans.len(), "the collector of traces refuses spans; they are dropped");
                return;
            }
            Err(ExportError::Unavailable(error)) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(%error, "the collector of traces cannot be reached; spans wait, and are dropped once the queue is full");
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_CAP);
            }
        }
    }
}

/// Sends the spans that wait at the end of the proxy, for at most 2 s, and drops the rest.
async fn send_rest(
    exporter: &SpanExporter,
    connection: &mut Option<CollectorConnection>,
    mut spans: Vec<Span>,
    mut receiver: SpanReceiver,
) {
    receiver.queue.close();
    while let Ok(more) = receiver.queue.try_recv() {
        spans.extend(more);
    }
    let mut left = spans.as_slice();
    let _ = timeout(SHUTDOWN_TIMEOUT, async {
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(BATCH_SPANS_MAX));
            if exporter.send(connection, now).await.is_err() {
                return;
            }
            receiver.counts.exported.fetch_add(now.len() as u64, Ordering::Relaxed);
            left = later;
        }
    })
    .await;
    if !left.is_empty() {
        receiver.counts.count_dropped(left.len());
        tracing::warn!(spans = left.len(), "the collector of traces did not accept the last spans; they are dropped");
    }
}

enum CollectorConnection {
    Grpc(http2::SendRequest<Full<Bytes>>),
    Http(http1::SendRequest<Full<Bytes>>),
}

impl SpanExporter {
    /// Sends a batch and waits for the collector's answer.
    async fn send(&self, connection: &mut Option<CollectorConnection>, spans: &[Span]) -> Result<(), ExportError> {
        let body = protobuf::encode_request(&self.collector.resource, spans);
        let sent = timeout(SEND_TIMEOUT, self.send_without_timeout(connection, body)).await;
        let sent = sent.unwrap_or_else(|_| Err(ExportError::Unavailable("no answer in time".into())));
        if matches!(sent, Err(ExportError::Unavailable(_))) {
            *connection = None;
        }
        sent
    }

    async fn send_without_timeout(
        &self,
        connection: &mut Option<CollectorConnection>,
        body: Vec<u8>,
    ) -> Result<(), ExportError> {
        let mut open = connection.take();
        if let Some(idle) = &mut open
            && !idle.is_ready().await
        {
            open = None;
        }
        let open = match open {
            Some(open) => open,
            None => self.connect().await.map_err(ExportError::Unavailable)?,
        };
        let (response, is_grpc) = match connection.insert(open) {
            CollectorConnection::Grpc(sender) => (sender.send_request(self.grpc_request(&body)).await, true),
            CollectorConnection::Http(sender) => (sender.send_request(self.http_request(body)).await, false),
        };
        let (head, answer) = response.map_err(|error| ExportError::Unavailable(error.into()))?.into_parts();
        let whole = Limited::new(answer, ANSWER_BYTES_MAX).collect().await.map_err(ExportError::Unavailable)?;
        match (is_grpc, head.status) {
            // `grpc-status` is in the trailers, or in the head of an answer without a message.
            (true, StatusCode::OK) => check_grpc_status(whole.trailers().unwrap_or(&head.headers)),
            (false, status) if status.is_success() => Ok(()),
            (_, status) => Err(http_error(status)),
        }
    }

    /// Builds a gRPC request: the message after its length, not compressed ("Length-Prefixed-Message").
    fn grpc_request(&self, body: &[u8]) -> Request<Full<Bytes>> {
        let mut framed = BytesMut::with_capacity(5 + body.len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
        framed.put_slice(body);
        let scheme = if matches!(self.collector.upstream, UpstreamTarget::Https(..)) { "https" } else { "http" };
        let uri =
            Uri::builder().scheme(scheme).authority(self.collector.upstream.host()).path_and_query(GRPC_PATH).build();
        let mut request = self.post(uri.expect("scheme, authority and path are all there"), framed.freeze());
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        request
    }

    fn http_request(&self, body: Vec<u8>) -> Request<Full<Bytes>> {
        let path = self.collector.path.clone().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let mut request = self.post(path.into(), body.into());
        let host = HeaderValue::from_str(self.collector.upstream.host()).expect("an authority is plain ASCII");
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        request
    }

    fn post(&self, uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
        let mut request = Request::new(Full::new(body));
        *request.method_mut() = Method::POST;
        *request.uri_mut() = uri;
        *request.headers_mut() = self.collector.fields.clone();
        let agent = HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION")));
        request.headers_mut().insert(USER_AGENT, agent);
        request
    }

    async fn connect(&self) -> Result<CollectorConnection, Box<dyn Error + Send + Sync>> {
        let address = self.collector.upstream.host_and_port().expect("the configuration allows only http and https");
        let stream = TcpStream::connect(address).await?;
        stream.set_nodelay(true)?;
        match &self.collector.upstream {
            UpstreamTarget::Https(_, name) => {
                let mut config = ClientConfig::clone(&self.trust.config());
                let protocol = if self.collector.path.is_some() { &b"http/1.1"[..] } else { b"h2" };
                config.alpn_protocols = vec![protocol.to_vec()];
                let stream = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?;
                self.start_http(stream).await
            }
            _ => self.start_http(stream).await,
        }
    }

    async fn start_http(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
    ) -> Result<CollectorConnection, Box<dyn Error + Send + Sync>> {
        let stream = TokioIo::new(stream);
        Ok(match self.collector.path {
            Some(_) => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                CollectorConnection::Http(sender)
            }
            None => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let (sender, connection) = builder.timer(TokioTimer::new()).handshake(stream).await?;
                tokio::spawn(connection);
                CollectorConnection::Grpc(sender)
            }
        })
    }
}

impl CollectorConnection {
    async fn is_ready(&mut self) -> bool {
        poll_fn(|context| match self {
            Self::Grpc(sender) => sender.poll_ready(context),
            Self::Http(sender) => sender.poll_ready(context),
        })
        .await
        .is_ok()
    }
}

/// Converts an HTTP error status. After 429, 502, 503 and 504 the batch may be sent again, after all others not (OTLP
/// specification, "OTLP/HTTP Response").
fn http_error(status: StatusCode) -> ExportError {
    match status.as_u16() {
        429 | 502 | 503 | 504 => ExportError::Unavailable(format!("it answers {status}").into()),
        _ => ExportError::Refused(format!("it answers {status}")),
    }
}

/// Checks `grpc-status` (OTLP specification, "OTLP/gRPC Response").
fn check_grpc_status(headers: &HeaderMap) -> Result<(), ExportError> {
    match headers.get("grpc-status").map(HeaderValue::as_bytes) {
        Some(b"0") => Ok(()),
        // Cancelled, deadline exceeded, aborted, out of range, unavailable, data loss.
        Some(b"1" | b"4" | b"10" | b"11" | b"14" | b"15") | None => {
            Err(ExportError::Unavailable("it is not available".into()))
        }
        Some(code) => Err(ExportError::Refused(format!("grpc-status {}", String::from_utf8_lossy(code)))),
    }
}
