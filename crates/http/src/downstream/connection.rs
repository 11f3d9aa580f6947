//! Serves one client's connection: the framing guard around the socket, hyper on top, the handler of requests behind.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;

use super::DrainSignals;
use super::client::{ClientConnection, RequestHandler, ServiceCloses};
use super::shared_socket::{SharedSocket, certificate_name};
use crate::body::Body;
use crate::body::client_body::{ClientBody, ResponseWatch};
use crate::body::early_response::{can_keep_connection, delay_reset, split_unread};
use crate::body::request_body::RequestBody;
use crate::protocol::refusal::Refusal;
use crate::transport::Transport;
use framing_guard::{FramingError, FramingTimeouts, GuardedStream, Verdicts, http2};

/// The concurrent streams of one HTTP/2 connection: as many as browsers and gRPC clients use.
const STREAMS_MAX: u32 = 100;
/// The bytes of bodies that a client may send on one HTTP/2 connection, and on one of its streams, before Oncegate
/// reads them. The worker reads that much in one turn, and serves nobody else meanwhile: with hyper's own bound of 1
/// MiB, other clients' p99 was twice as long. A stream has less, so that an upload to a slow service does not block the
/// others of its connection.
// See docs/decisions/0026-keep-loads-apart.md.
const CONNECTION_WINDOW: u32 = 256 * 1024;
const STREAM_WINDOW: u32 = 64 * 1024;
/// The header fields of one HTTP/2 request: 64 KiB, as in HTTP/1.
const FIELDS_BYTES_MAX: u32 = 64 * 1024;
/// The read buffer of an HTTP/1 connection, which grows while a body comes in fast and is in no budget. hyper's own
/// bound, some 400 KiB, is 160 MB with 400 such clients. A head of 64 KiB must fit.
const READ_BUFFER_MAX: usize = 72 * 1024;
/// The interval of HTTP/2 pings, and the time to answer one. A client that does not is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves a connection to its end, or, once a drain is `closing`, to the end of its running requests.
pub async fn serve(
    socket: Transport,
    peer: IpAddr,
    handler: Arc<impl RequestHandler>,
    timeouts: FramingTimeouts,
    drain: DrainSignals,
) {
    let certificate = certificate_name(&socket).map(Arc::new);
    let is_secure = matches!(socket, Transport::Tls(_));
    let client = ClientConnection { certificate, ..ClientConnection::new(peer, is_secure) };
    let socket = SharedSocket::new(socket);
    let (stream, verdicts) = GuardedStream::new(socket.clone(), timeouts);
    let (responses, ends_connection) = (handler.response_watch(), AtomicBool::new(false));
    let served = Arc::new(ServedConnection { handler, client, verdicts, socket, responses, ends_connection, drain });
    let ServedConnection { client, verdicts, socket, responses, drain, .. } = &*served;
    // In a box: hyper keeps the place of the future as long as an HTTP/1 connection, which is mostly idle.
    let service = service_fn(|request| Box::pin(Arc::clone(&served).respond(request)));
    let builder = server_builder();
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // hyper does not read from the socket while it answers, so it would not see that the client has left. HTTP/2 needs
    // no watch: its clients reset their streams.
    let mut gone = pin!(poll_fn(|context| {
        match client.ties.is_any_attached() && verdicts.is_request_complete() && !verdicts.is_http2() {
            true => socket.poll_client_closed(context),
            false => Poll::Pending,
        }
    }));
    let mut stalled = pin!(responses.stalled());
    let mut open = true;
    let ended = loop {
        // In this order: once hyper was polled, it is known what depends on the client, and what it has taken.
        tokio::select! {
            biased;
            ended = &mut connection => break ended,
            () = drain.closing.cancelled(), if open => {
                connection.as_mut().graceful_shutdown();
                open = false;
            }
            () = &mut gone => {
                tracing::debug!("a client disconnected; its forwarded request is cancelled");
                return served.end_in_the_middle();
            }
            () = &mut stalled => {
                tracing::debug!("a client has taken nothing of its responses for too long; its connection is closed");
                return served.end_in_the_middle();
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a client's connection failed");
        served.end_in_the_middle();
    }
}

fn server_builder() -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // A client that has closed its sending side may still wait for its answer. The framing guard needs half-close too,
    // and it needs hyper's own time limit for heads to be off.
    builder.http1().half_close(true).header_read_timeout(None).max_buf_size(READ_BUFFER_MAX);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(FIELDS_BYTES_MAX)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .initial_stream_window_size(STREAM_WINDOW)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    builder
}

/// A connection, as its requests see it.
struct ServedConnection<H> {
    handler: Arc<H>,
    client: ClientConnection,
    verdicts: Verdicts,
    socket: SharedSocket,
    responses: ResponseWatch,
    /// Whether the current response ends with its connection: one over HTTP/1.0 without a length.
    ends_connection: AtomicBool,
    drain: DrainSignals,
}

impl<H: RequestHandler> ServedConnection<H> {
    fn end_in_the_middle(&self) {
        if self.ends_connection.load(Ordering::Relaxed) {
            self.socket.reset_at_end();
        }
    }

    async fn respond(self: Arc<Self>, request: Request<Incoming>) -> Result<Response<ClientBody>, Infallible> {
        let response = match request.version() {
            Version::HTTP_2 => self.respond_http2(request).await,
            _ => self.respond_http1(request).await,
        };
        Ok(response.map(|body| self.responses.watch(body)))
    }

    async fn respond_http2(&self, mut request: Request<Incoming>) -> Response<Body> {
        http2::join_cookies(request.headers_mut());
        let (request, unread) = split_unread(request);
        let response = self.answer(Box::new(request)).await;
        if let Some(unread) = unread {
            delay_reset(unread);
        }
        response
    }

    async fn respond_http1(&self, request: Request<Incoming>) -> Response<Body> {
        let is_http10 = request.version() == Version::HTTP_10;
        self.socket.begin_request();
        let (request, unread) = split_unread(request);
        let mut response = self.answer(Box::new(request)).await;
        let is_last = response.headers().get(CONNECTION).is_some_and(|option| option == "close");
        let can_keep = match unread.filter(|_| !is_last) {
            Some(unread) => {
                let service_closes = response.extensions().get::<ServiceCloses>().is_some();
                can_keep_connection(unread, service_closes).await
            }
            None => !is_last,
        };
        // `close` beside an answer loses nothing; a connection that is cut while it is idle may be cut under the
        // client's next request. HTTP/2 has GOAWAY for this, which is sent when the drain is `closing`.
        let closes = !can_keep || self.drain.leaving.is_cancelled();
        if closes && response.status() != StatusCode::SWITCHING_PROTOCOLS {
            response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
        }
        let has_length = http_body::Body::size_hint(response.body()).exact().is_some();
        self.ends_connection.store(is_http10 && !has_length, Ordering::Relaxed);
        response
    }

    async fn answer(&self, request: Box<Request<RequestBody>>) -> Response<Body> {
        let Self { handler, client, verdicts, socket, .. } = self;
        let verdict = match request.version() {
            Version::HTTP_2 => http2::check_request(&request),
            _ => verdicts.next(),
        };
        let response = match verdict {
            Ok(()) => {
                let mut handled = pin!(handler.handle(request, client));
                // Code that buffers the body reports its framing errors itself. A body that streams through would only
                // end as some broken request at the service: the guard's verdict answers it here, and the upstream is
                // left with an incomplete request.
                poll_fn(|context| {
                    let handled = handled.as_mut().poll(context);
                    if client.early_hints.any() && (handled.is_ready() || socket.is_between_messages()) {
                        socket.write_between_messages(&client.early_hints.take());
                    }
                    match (handled, verdicts.body_error()) {
                        (Poll::Pending, Some(error)) => Poll::Ready(refuse(&**handler, error)),
                        (handled, _) => handled,
                    }
                })
                .await
            }
            Err(error) => refuse(&**handler, error),
        };
        if response.status() == StatusCode::SWITCHING_PROTOCOLS {
            verdicts.mark_upgraded();
        }
        response
    }
}

/// Refuses a request whose end is unknown or wrong: no byte after it can be read as a request.
fn refuse(handler: &impl RequestHandler, error: FramingError) -> Response<Body> {
    let mut response = handler.refuse(match error.status() {
        StatusCode::REQUEST_TIMEOUT => Refusal::RequestTimeout,
        status => Refusal::BadRequest(status, error.detail()),
    });
    response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    response
}
