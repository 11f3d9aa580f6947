//! Streams a response that is too large to store to the first client, and stores that it was executed.

use std::sync::Arc;
use std::time::Duration;

use bytes::BytesMut;
use http::{HeaderMap, HeaderValue, response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::deliver;
use super::outcome::StreamedResponse;
use super::settle::{RunningAttempt, SettleOutcome, persist};
use crate::body::BodyPiece;
use crate::body::pooled::PooledBody;
use crate::config::Route;
use crate::domain::response::StoredResponse;
use crate::domain::response_policy::ResponseVerdict;
use crate::instance::Instance;
use crate::protocol::directives::ServiceDirectives;
use crate::protocol::stored_response;

/// The number of frames between the service's pace and the client's: neither waits for each single frame.
const FRAMES_AHEAD: usize = 8;
/// The time after which a client that takes no frame counts as gone.
const STALL_MAX: Duration = Duration::from_secs(30);

/// The beginning of a response that is too large to store.
pub(super) struct OversizeResponse {
    pub(super) head: response::Parts,
    pub(super) directives: ServiceDirectives,
    /// The service's `Trailer` field.
    pub(super) announced_trailers: Option<HeaderValue>,
    pub(super) beginning: BytesMut,
    pub(super) rest: PooledBody,
    pub(super) length: Option<u64>,
}

/// Hands the response on as it comes in. Holds its last frame back until the attempt is settled: a client that has the whole
/// response can rely on its key.
pub(super) fn stream(
    instance: Arc<Instance>,
    oversize: OversizeResponse,
    attempt: RunningAttempt,
    route: &Arc<Route>,
    deadline: Instant,
) -> StreamedResponse {
    let OversizeResponse { head, directives, announced_trailers, length, .. } = &oversize;
    let (verdict, ttl) = directives.apply(route, head.status, &head.headers);
    let (frames, body) = mpsc::channel(FRAMES_AHEAD);
    let (announced_trailers, length) = (announced_trailers.clone(), *length);
    let response = StreamedResponse { head: head.clone(), announced_trailers, length, verdict, body };
    let route = Arc::clone(route);
    let tracker = instance.tracker.clone();
    tracker.spawn(async move { hand_on(&instance, oversize, attempt, (verdict, ttl), &route, deadline, frames).await });
    response
}

async fn hand_on(
    instance: &Arc<Instance>,
    oversize: OversizeResponse,
    attempt: RunningAttempt,
    (verdict, ttl): (ResponseVerdict, Duration),
    route: &Route,
    mut deadline: Instant,
    client: mpsc::Sender<BodyPiece>,
) {
    let OversizeResponse { head, beginning, mut rest, .. } = oversize;
    let mut client = Some(client);
    let mut held = Frame::data(beginning.freeze());
    let is_whole = loop {
        match timeout_at(deadline, rest.frame()).await {
            Ok(Some(Ok(next))) => {
                let ready = std::mem::replace(&mut held, next);
                // The client's time is not the service's: a slow reader must not make the outcome unknown.
                let sending_since = Instant::now();
                client = send(client, BodyPiece::Frame(ready)).await;
                deadline += sending_since.elapsed();
            }
            Ok(None) => break true,
            Ok(Some(Err(_))) | Err(_) => break false,
        }
    };
    let response =
        StoredResponse { status: head.status, headers: head.headers, body: None, trailers: HeaderMap::new() };
    let storable = stored_response::to_storable(&response, route);
    let (lease, entry) = attempt.into_parts();
    if !is_whole {
        tracing::warn!(route = %route.name, "the service broke off within a large response; the outcome is unknown");
        // The channel closes without an end, so the client's connection is cut.
        persist(instance, deliver::unknown(lease, route), entry).await;
        return;
    }
    let settlement = match verdict {
        ResponseVerdict::Release => deliver::release(lease, route, ttl, Some((response.status, &response.headers))),
        ResponseVerdict::Store => lease.complete(storable, ttl).with_remember(route.remember),
        ResponseVerdict::Unknown => deliver::unknown(lease, route),
    };
    if let SettleOutcome::Unstored = persist(instance, settlement, entry).await {
        // The response's head says that it is stored. A cut response is not taken for a whole one, and a retry gets the
        // state of that time.
        tracing::warn!(route = %route.name, "a large response is cut because its outcome could not be stored before its end");
        return;
    }
    let client = send(client, BodyPiece::Frame(held)).await;
    send(client, BodyPiece::End).await;
}

/// Sends a piece to the client. `None` if the client is gone or has stalled: the attempt reads the rest of the response all
/// the same, to learn how it ends.
async fn send(client: Option<mpsc::Sender<BodyPiece>>, piece: BodyPiece) -> Option<mpsc::Sender<BodyPiece>> {
    let client = client?;
    match timeout(STALL_MAX, client.send(piece)).await {
        Ok(Ok(())) => Some(client),
        Ok(Err(_)) | Err(_) => None,
    }
}
