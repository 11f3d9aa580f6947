//! Sends spans to a collector: OTLP over gRPC, or over HTTP where the collector's URL has a path.
//!
//! One connection and one batch at a time. A collector that is away is tried again with the same batch, while the queue
//! behind it fills and then drops; one that refuses a batch has lost it.

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

use super::{Span, Waiting, protobuf};
use crate::config::{Collector, Upstream};
use crate::tls::Trust;

/// A batch goes when it has so many spans, or so long after its first: what OpenTelemetry's own exporters use for the one,
/// and what somebody who watches does not mind for the other.
const SPANS_MAX: usize = 512;
const LINGER: Duration = Duration::from_secs(1);

/// For one batch: connecting, sending and the collector's answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// Between two tries while the collector is away.
const PAUSE_FIRST: Duration = Duration::from_millis(200);
const PAUSE_CAP: Duration = Duration::from_secs(5);

/// For what is still waiting when the proxy stops.
const GOODBYE_MAX: Duration = Duration::from_secs(2);

/// An answer says little; more is not read.
const ANSWER_BYTES_MAX: usize = 64 * 1024;

const GRPC: &str = "/opentelemetry.proto.collector.trace.v1.TraceService/Export";

type BoxError = Box<dyn Error + Send + Sync>;

/// Who has made the spans, and where they go.
pub struct Exporter {
    /// The collector.
    pub collector: Collector,
    /// Who vouches for it.
    pub trust: Trust,
    /// The service that this proxy stands before.
    pub service: Arc<str>,
    /// This process.
    pub instance: String,
}

/// Why a batch is not with the collector.
enum Failure {
    /// It may take it later.
    Away(BoxError),
    /// It will never take this one.
    Refused(String),
}

/// Sends what comes until `stop`, and then what still waits, for two seconds at most.
pub async fn run(exporter: Exporter, mut waiting: Waiting, stop: CancellationToken) {
    let (mut line, mut spans) = (None, Vec::new());
    loop {
        tokio::select! {
            () = batch(&mut waiting, &mut spans) => {}
            () = stop.cancelled() => break,
        }
        tokio::select! {
            () = persist(&exporter, &mut line, &spans, &waiting) => spans.clear(),
            () = stop.cancelled() => break,
        }
    }
    goodbye(&exporter, &mut line, spans, waiting).await;
}

/// What comes within a second of the first. Dropped in between, it has lost nothing.
async fn batch(waiting: &mut Waiting, spans: &mut Vec<Span>) {
    // The queue's other end lives as long as the proxy: `None` comes at its end alone, and `stop` with it.
    spans.extend(waiting.queue.recv().await.unwrap_or_default());
    let until = Instant::now() + LINGER;
    while spans.len() < SPANS_MAX {
        match timeout_at(until, waiting.queue.recv()).await {
            Ok(Some(more)) => spans.extend(more),
            Ok(None) | Err(_) => break,
        }
    }
}

/// Tries until the collector has the batch, or will never have it. Says so once when it goes away, and once when it is back.
async fn persist(exporter: &Exporter, line: &mut Option<Line>, spans: &[Span], waiting: &Waiting) {
    let mut pause = PAUSE_FIRST;
    let mut told = false;
    loop {
        match exporter.send(line, spans).await {
            Ok(()) => {
                waiting.tally.exported.fetch_add(spans.len() as u64, Ordering::Relaxed);
                if told {
                    tracing::info!("the collector of traces takes spans again");
                }
                return;
            }
            Err(Failure::Refused(why)) => {
                waiting.tally.lost(spans.len());
                tracing::warn!(why, spans = spans.len(), "the collector of traces refuses spans; they are dropped");
                return;
            }
            Err(Failure::Away(error)) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!(%error, "the collector of traces cannot be reached; spans wait, and are dropped when they are too many");
                }
                sleep(pause).await;
                pause = (pause * 2).min(PAUSE_CAP);
            }
        }
    }
}

async fn goodbye(exporter: &Exporter, line: &mut Option<Line>, mut spans: Vec<Span>, mut waiting: Waiting) {
    waiting.queue.close();
    while let Ok(more) = waiting.queue.try_recv() {
        spans.extend(more);
    }
    let mut left = spans.as_slice();
    let _ = timeout(GOODBYE_MAX, async {
        while !left.is_empty() {
            let (now, later) = left.split_at(left.len().min(SPANS_MAX));
            if exporter.send(line, now).await.is_err() {
                return;
            }
            waiting.tally.exported.fetch_add(now.len() as u64, Ordering::Relaxed);
            left = later;
        }
    })
    .await;
    if !left.is_empty() {
        waiting.tally.lost(left.len());
        tracing::warn!(spans = left.len(), "the collector of traces did not take the last spans; they are dropped");
    }
}

/// An open connection.
enum Line {
    Grpc(http2::SendRequest<Full<Bytes>>),
    Http(http1::SendRequest<Full<Bytes>>),
}

impl Exporter {
    /// Sends a batch and waits for the collector's word.
    async fn send(&self, line: &mut Option<Line>, spans: &[Span]) -> Result<(), Failure> {
        let body = protobuf::export(&self.service, &self.instance, spans);
        let sent = timeout(PATIENCE, self.send_now(line, body)).await;
        let sent = sent.unwrap_or_else(|_| Err(Failure::Away("no answer in time".into())));
        if matches!(sent, Err(Failure::Away(_))) {
            *line = None;
        }
        sent
    }

    async fn send_now(&self, line: &mut Option<Line>, body: Vec<u8>) -> Result<(), Failure> {
        let mut open = line.take();
        if let Some(idle) = &mut open
            && !idle.is_ready().await
        {
            open = None;
        }
        let open = match open {
            Some(open) => open,
            None => self.connect().await.map_err(Failure::Away)?,
        };
        match line.insert(open) {
            Line::Grpc(sender) => {
                let response = sender.send_request(self.grpc(&body)).await.map_err(away)?;
                let (head, body) = response.into_parts();
                let whole = Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Failure::Away)?;
                if head.status != StatusCode::OK {
                    return Err(judge_http(head.status));
                }
                // With an answer it stands behind it, without one before.
                judge_grpc(whole.trailers().unwrap_or(&head.headers))
            }
            Line::Http(sender) => {
                let response = sender.send_request(self.http(body)).await.map_err(away)?;
                let (head, body) = response.into_parts();
                Limited::new(body, ANSWER_BYTES_MAX).collect().await.map_err(Failure::Away)?;
                if head.status.is_success() { Ok(()) } else { Err(judge_http(head.status)) }
            }
        }
    }

    fn authority(&self) -> &http::uri::Authority {
        match &self.collector.upstream {
            Upstream::Http(authority) | Upstream::Https(authority, _) | Upstream::H2c(authority) => authority,
            Upstream::Unix(_) => unreachable!("the configuration takes http and https alone"),
        }
    }

    /// A message behind its length (gRPC over HTTP2, "Length-Prefixed-Message"), not compressed.
    fn grpc(&self, body: &[u8]) -> Request<Full<Bytes>> {
        let mut framed = BytesMut::with_capacity(5 + body.len());
        framed.put_u8(0);
        framed.put_u32(u32::try_from(body.len()).unwrap_or(u32::MAX));
        framed.put_slice(body);
        let scheme = if matches!(self.collector.upstream, Upstream::Https(..)) { "https" } else { "http" };
        let uri = Uri::builder().scheme(scheme).authority(self.authority().clone()).path_and_query(GRPC).build();
        let mut request = post(uri.expect("scheme, authority and path are all there"), framed.freeze());
        *request.version_mut() = Version::HTTP_2;
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        request.headers_mut().insert(TE, HeaderValue::from_static("trailers"));
        request
    }

    fn http(&self, body: Vec<u8>) -> Request<Full<Bytes>> {
        let path = self.collector.path.clone().unwrap_or_else(|| http::uri::PathAndQuery::from_static("/"));
        let mut request = post(path.into(), body.into());
        let host = HeaderValue::from_str(self.authority().as_str()).expect("an authority is plain ASCII");
        request.headers_mut().insert(HOST, host);
        request.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/x-protobuf"));
        request
    }

    async fn connect(&self) -> Result<Line, BoxError> {
        let authority = self.authority();
        let usual = if self.collector.path.is_some() { 4318 } else { 4317 };
        let host = authority.host().trim_start_matches('[').trim_end_matches(']');
        let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(usual))).await?;
        stream.set_nodelay(true)?;
        match &self.collector.upstream {
            Upstream::Https(_, name) => {
                let mut config = ClientConfig::clone(&self.trust.config());
                let spoken = if self.collector.path.is_some() { &b"http/1.1"[..] } else { b"h2" };
                config.alpn_protocols = vec![spoken.to_vec()];
                let stream = TlsConnector::from(Arc::new(config)).connect(name.clone(), stream).await?;
                self.shake(stream).await
            }
            _ => self.shake(stream).await,
        }
    }

    async fn shake(&self, stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static) -> Result<Line, BoxError> {
        let stream = TokioIo::new(stream);
        Ok(match self.collector.path {
            Some(_) => {
                let (sender, connection) = http1::handshake(stream).await?;
                tokio::spawn(connection);
                Line::Http(sender)
            }
            None => {
                let mut builder = http2::Builder::new(TokioExecutor::new());
                let (sender, connection) = builder.timer(TokioTimer::new()).handshake(stream).await?;
                tokio::spawn(connection);
                Line::Grpc(sender)
            }
        })
    }
}

impl Line {
    async fn is_ready(&mut self) -> bool {
        poll_fn(|context| match self {
            Self::Grpc(sender) => sender.poll_ready(context),
            Self::Http(sender) => sender.poll_ready(context),
        })
        .await
        .is_ok()
    }
}

fn post(uri: Uri, body: Bytes) -> Request<Full<Bytes>> {
    let mut request = Request::new(Full::new(body));
    *request.method_mut() = Method::POST;
    *request.uri_mut() = uri;
    let agent = HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION")));
    request.headers_mut().insert(USER_AGENT, agent);
    request
}

fn away(error: hyper::Error) -> Failure {
    Failure::Away(error.into())
}

/// OTLP specification, "OTLP/HTTP Response": these may be sent again, all others not.
fn judge_http(status: StatusCode) -> Failure {
    match status.as_u16() {
        429 | 502 | 503 | 504 => Failure::Away(format!("it answers {status}").into()),
        _ => Failure::Refused(format!("it answers {status}")),
    }
}

/// The same, "OTLP/gRPC Response".
fn judge_grpc(headers: &HeaderMap) -> Result<(), Failure> {
    match headers.get("grpc-status").map(HeaderValue::as_bytes) {
        Some(b"0") => Ok(()),
        // Cancelled, deadline exceeded, aborted, out of range, unavailable, data loss.
        Some(b"1" | b"4" | b"10" | b"11" | b"14" | b"15") | None => Err(Failure::Away("it is not available".into())),
        Some(code) => Err(Failure::Refused(format!("grpc-status {}", String::from_utf8_lossy(code)))),
    }
}
