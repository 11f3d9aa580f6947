//! One client's connection.

use std::convert::Infallible;
use std::future::poll_fn;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use http::header::{CONNECTION, HeaderValue};
use http::{Request, Response, StatusCode, Version};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use hyper_util::server::conn::auto::Builder;

use super::Door;
use super::framing::{Guarded, Limits, Malformed, Verdicts, http2};
use super::line::{Line, Socket};
use crate::body::Body;
use crate::gate::Gate;
use crate::gate::client::Client;
use crate::gate::refuse::Refusal;

/// Streams of one HTTP/2 connection at a time: as many as browsers and gRPC clients use, and a bound for one client.
const STREAMS_MAX: u32 = 100;
/// The same as for HTTP/1: 64 KiB of fields.
const FIELDS_BYTES_MAX: u32 = 64 * 1024;
/// An HTTP/2 client that does not answer a ping for so long is gone.
const PING_EVERY: Duration = Duration::from_secs(30);
const PING_TIMEOUT: Duration = Duration::from_secs(20);

/// Serves a connection to its end, or once the door is closing to the end of its running requests.
pub async fn serve(socket: Socket, peer: IpAddr, gate: Arc<Gate>, limits: Limits, door: Door) {
    let client = Arc::new(Client::new(peer, socket.is_secure()));
    let line = Line::new(socket);
    let (stream, verdicts) = Guarded::new(line.clone(), limits);
    let service = service_fn(|request| {
        let (gate, client, verdicts) = (Arc::clone(&gate), Arc::clone(&client), verdicts.clone());
        let leaving = door.leaving.clone();
        async move {
            let keeps_connection = request.version() == Version::HTTP_11;
            let mut response = answer(request, &client, &gate, &verdicts).await;
            // Said with an answer, it loses nothing: a connection that is cut while it is idle may be cut under the
            // client's next request. HTTP/2 has a word of its own for that, which is said when the door closes.
            if keeps_connection && leaving.is_cancelled() && response.status() != StatusCode::SWITCHING_PROTOCOLS {
                response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
            }
            Ok::<_, Infallible>(response)
        }
    });
    let mut builder = Builder::new(TokioExecutor::new());
    // A client that has said all it has to say may still want its answer. The framing guard needs it too, as it needs
    // hyper to keep its own time limit for heads out of the way.
    builder.http1().half_close(true).header_read_timeout(None);
    builder
        .http2()
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_header_list_size(FIELDS_BYTES_MAX)
        .keep_alive_interval(PING_EVERY)
        .keep_alive_timeout(PING_TIMEOUT);
    let mut connection = pin!(builder.serve_connection_with_upgrades(TokioIo::new(stream), service));
    // hyper looks away from the socket while it answers. HTTP/2 has a word of its own for a client that is gone.
    let mut gone = pin!(poll_fn(|context| match client.ties.any() && verdicts.is_whole() && !verdicts.is_http2() {
        true => line.poll_left(context),
        false => Poll::Pending,
    }));
    let mut open = true;
    let ended = loop {
        // In this order: whether there is anything to watch over is known once hyper has had its turn.
        tokio::select! {
            biased;
            ended = &mut connection => break ended,
            () = door.closing.cancelled(), if open => {
                connection.as_mut().graceful_shutdown();
                open = false;
            }
            () = &mut gone => {
                tracing::debug!("a client is gone, and what it had asked for ends with it");
                return;
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(error, "a client's connection broke");
    }
}

async fn answer(request: Request<Incoming>, client: &Client, gate: &Arc<Gate>, verdicts: &Verdicts) -> Response<Body> {
    let judged = match request.version() {
        Version::HTTP_2 => http2::judge(&request),
        _ => verdicts.next(),
    };
    let response = match judged {
        Ok(()) => {
            let mut handled = pin!(gate.handle(request, client));
            // Who reads the body whole tells by itself what became of it. For one that streams on, the service could
            // only say that something broke: it goes away here, and what the upstream has got of it stays a part.
            poll_fn(|context| match (handled.as_mut().poll(context), verdicts.broken()) {
                (Poll::Pending, Some(malformed)) => Poll::Ready(gate.refuse(refusal(malformed))),
                (handled, _) => handled,
            })
            .await
        }
        Err(malformed) => gate.refuse(refusal(malformed)),
    };
    if response.status() == StatusCode::SWITCHING_PROTOCOLS {
        verdicts.upgraded();
    }
    response
}

fn refusal(malformed: Malformed) -> Refusal {
    match StatusCode::from_u16(malformed.status()).unwrap_or(StatusCode::BAD_REQUEST) {
        StatusCode::REQUEST_TIMEOUT => Refusal::RequestTimeout,
        status => Refusal::BadRequest(status, malformed.detail()),
    }
}
