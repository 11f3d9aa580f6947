//! A response that is too large to keep: streamed to the first caller, remembered as executed.

use std::sync::Arc;
use std::time::Duration;

use http::header::{CONTENT_LENGTH, HeaderValue, TRAILER};
use http::{HeaderMap, Response};
use http_body::Frame;
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use tokio::time::{Instant, timeout, timeout_at};

use super::forward::Oversize;
use super::replay;
use super::settle::{Attempt, Filed, file};
use super::status::Told;
use super::{Shared, Stamp, deliver};
use crate::body::{Body, Piece};
use crate::config::Route;
use crate::domain::policy::Verdict;
use crate::domain::response::StoredResponse;

/// Frames between the upstream's pace and the client's: enough that neither waits for each single one.
const FRAMES_AHEAD: usize = 8;
/// How long a client may take to make room for the next frame before it counts as gone.
const STALL_MAX: Duration = Duration::from_secs(30);

/// Hands the response on as it comes, holding its last frame back until the attempt is settled: a client that has the
/// whole response can rely on its key.
pub(super) fn stream(
    shared: Arc<Shared>,
    oversize: Oversize,
    attempt: Attempt,
    route: &Arc<Route>,
    deadline: Instant,
    stamp: &Stamp,
) -> Response<Body> {
    let (verdict, ttl) = oversize.said.judge(route, oversize.head.status, &oversize.head.headers);
    let (frames, body) = mpsc::channel(FRAMES_AHEAD);
    let mut response = Response::new(Body::Piped(body));
    *response.status_mut() = oversize.head.status;
    *response.headers_mut() = oversize.head.headers.clone();
    if let Some(length) = oversize.length {
        response.headers_mut().insert(CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some(announced) = oversize.announced.clone().filter(|_| stamp.accepts_trailers) {
        response.headers_mut().insert(TRAILER, announced);
    }
    stamp.put(
        response.headers_mut(),
        match verdict {
            Verdict::Release => Told::Released,
            Verdict::Store => Told::Executed,
            Verdict::Unknown => Told::Unknown,
        },
    );
    let tracker = shared.tracker.clone();
    let route = Arc::clone(route);
    tracker.spawn(async move { hand_on(&shared, oversize, attempt, (verdict, ttl), &route, deadline, frames).await });
    response
}

async fn hand_on(
    shared: &Arc<Shared>,
    oversize: Oversize,
    attempt: Attempt,
    (verdict, ttl): (Verdict, Duration),
    route: &Route,
    mut deadline: Instant,
    client: mpsc::Sender<Piece>,
) {
    let Oversize { head, beginning, mut rest, .. } = oversize;
    let mut client = Some(client);
    let mut held = Frame::data(beginning.freeze());
    let whole = loop {
        match timeout_at(deadline, rest.frame()).await {
            Ok(Some(Ok(next))) => {
                let ready = std::mem::replace(&mut held, next);
                // What the client takes is not the service's time: a slow reader must not make the outcome unknown.
                let begun = Instant::now();
                client = send(client, Piece::Frame(ready)).await;
                deadline += begun.elapsed();
            }
            Ok(None) => break true,
            Ok(Some(Err(_))) | Err(_) => break false,
        }
    };
    let response =
        StoredResponse { status: head.status, headers: head.headers, body: None, trailers: HeaderMap::new() };
    let kept = replay::to_keep(&response, route);
    let (lease, entry) = attempt.end();
    if !whole {
        tracing::warn!(route = %route.name, "the service broke off within a large response; the outcome is unknown");
        // The pipe closes without its end, and the client's connection is cut.
        file(shared, deliver::unknown(lease, route), entry).await;
        return;
    }
    let settlement = match verdict {
        Verdict::Release => deliver::release(lease, route, ttl, Some((response.status, &response.headers))),
        Verdict::Store => lease.complete(kept, ttl).remembered(route.remember),
        Verdict::Unknown => deliver::unknown(lease, route),
    };
    if let Filed::Unstored = file(shared, settlement, entry).await {
        // Its head says that it is kept. Cut, it is not taken for whole, and the retry is told what is true by then.
        tracing::warn!(route = %route.name, "a large response is cut, because it could not be recorded before its end");
        return;
    }
    let client = send(client, Piece::Frame(held)).await;
    send(client, Piece::End).await;
}

/// Hands a piece to the client; `None` once it is gone, or has stalled. That changes nothing for the attempt: the rest is
/// read all the same, to know how it ends.
async fn send(client: Option<mpsc::Sender<Piece>>, piece: Piece) -> Option<mpsc::Sender<Piece>> {
    let client = client?;
    match timeout(STALL_MAX, client.send(piece)).await {
        Ok(Ok(())) => Some(client),
        Ok(Err(_)) | Err(_) => None,
    }
}
