//! One client's connection.

use std::convert::Infallible;
use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;

use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

use super::framing::{Guarded, Limits, Malformed, Verdicts};
use crate::body::Body;
use crate::gate::refuse::Refusal;
use crate::gate::{Gate, Stamp};

/// Serves a connection to its end, or after `closing` to the end of its running request.
pub async fn serve(stream: TcpStream, peer: IpAddr, gate: Arc<Gate>, closing: CancellationToken) {
    let (stream, verdicts) = Guarded::new(stream, Limits::default());
    let service = service_fn(|request| {
        let (gate, verdicts) = (Arc::clone(&gate), verdicts.clone());
        async move { Ok::<_, Infallible>(answer(request, peer, &gate, &verdicts).await) }
    });
    let connection = http1::Builder::new()
        // A client that has said all it has to say may still want its answer.
        .half_close(true)
        .timer(TokioTimer::new())
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    let ended = tokio::select! {
        ended = &mut connection => ended,
        () = closing.cancelled() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "a client's connection broke");
    }
}

async fn answer(request: Request<Incoming>, peer: IpAddr, gate: &Arc<Gate>, verdicts: &Verdicts) -> Response<Body> {
    match verdicts.next() {
        Ok(_) => gate.handle(request, peer).await,
        Err(malformed) => gate.refuse(refusal(malformed), &Stamp::default()),
    }
}

fn refusal(malformed: Malformed) -> Refusal {
    let status = StatusCode::from_u16(malformed.status()).unwrap_or(StatusCode::BAD_REQUEST);
    match status {
        StatusCode::REQUEST_TIMEOUT => Refusal::RequestTimeout,
        status => Refusal::BadRequest(status, malformed.detail()),
    }
}
