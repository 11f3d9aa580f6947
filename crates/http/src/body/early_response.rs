//! Responses that are ready before their request's body has been read.
//!
//! The next request of a connection begins where the body ends. So the rest of the body is read and discarded, if it is
//! short, or the response says that the connection closes. A client of a connection that closes without a word may
//! already have sent its next request on it.
//!
//! A stream of HTTP/2 has no next request. But the reset of its body, which ends it, must not come with the response:
//! clients that get both at once (curl 7.88) report the reset and drop the response.

use std::pin::pin;
use std::time::Duration;

use http::header::EXPECT;
use http::{Request, Version};
use http_body_util::BodyExt;
use hyper::body::{Body as _, Incoming};
use tokio::sync::oneshot;
use tokio::sync::oneshot::error::TryRecvError;
use tokio::time::{Instant, timeout_at};

use super::checked_body::CheckedBody;
use super::request_body::{RequestBody, UnreadBody};

/// The bytes that are read and discarded to keep a connection: a new one costs about as much, with its handshakes.
// See docs/decisions/0022-watch-the-client-below-hyper.md.
const DISCARD_BYTES_MAX: u64 = 64 * 1024;
/// The longest wait of a response for the rest of its request's body, and of a stream's reset for its client.
const DISCARD_TIME_MAX: Duration = Duration::from_secs(1);

/// The request, and the way back for the rest of its body. A request without a body has none.
pub fn split_unread(request: Request<Incoming>) -> (Request<RequestBody>, Option<oneshot::Receiver<UnreadBody>>) {
    let request = match request.version() {
        Version::HTTP_2 => request.map(CheckedBody::of_stream),
        _ => request.map(CheckedBody::of_message),
    };
    if request.body().is_end_stream() {
        return (request.map(RequestBody::new), None);
    }
    let expected = request.headers().get(EXPECT).filter(|_| request.version() == Version::HTTP_11);
    let awaits_continue = expected.is_some_and(|expected| expected.as_bytes().eq_ignore_ascii_case(b"100-continue"));
    let (head, incoming) = request.into_parts();
    let (body, unread) = RequestBody::with_way_back(incoming, awaits_continue);
    (Request::from_parts(head, body), Some(unread))
}

/// Whether the connection can be kept after a response. Waits up to one second for the rest of the request's body.
///
/// `unread` is the way back of the body, from [`split_unread`]; `service_closes` says whether the
/// response is of a service that closes its connection after it.
pub async fn can_keep_connection(mut unread: oneshot::Receiver<UnreadBody>, service_closes: bool) -> bool {
    match unread.try_recv() {
        Err(TryRecvError::Closed) => true,
        // The service is still reading the body, and its response has begun.
        Err(TryRecvError::Empty) if service_closes => false,
        Err(TryRecvError::Empty) => {
            // The service may stop reading after the response's head has been sent, which is too late to announce a
            // close. The client sends the rest in any case, so it is read to its end.
            tokio::spawn(async move {
                if let Ok(UnreadBody::Rest(rest)) = unread.await {
                    let mut rest = pin!(rest);
                    while let Some(Ok(_)) = rest.frame().await {}
                }
            });
            true
        }
        Ok(UnreadBody::AwaitsContinue | UnreadBody::Failed | UnreadBody::Late(_)) => false,
        Ok(UnreadBody::Rest(rest)) => discard(rest).await,
    }
}

/// Keeps the stream of a request whose response is ready for up to one second, so that its client takes the response
/// before the reset. Its body is discarded meanwhile: unread bytes would use up the window of all streams of the
/// connection.
pub fn delay_reset(mut unread: oneshot::Receiver<UnreadBody>) {
    let unread_now = unread.try_recv();
    if matches!(unread_now, Err(TryRecvError::Closed)) {
        return;
    }
    tokio::spawn(async move {
        // The service may still be reading the body of the request that it has answered.
        let unread = match unread_now {
            Ok(unread) => Ok(unread),
            Err(_) => unread.await,
        };
        let Ok(UnreadBody::Rest(rest) | UnreadBody::Late(rest)) = unread else { return };
        let deadline = Instant::now() + DISCARD_TIME_MAX;
        let mut rest = pin!(rest);
        while let Ok(Some(Ok(_))) = timeout_at(deadline, rest.frame()).await {}
    });
}

/// Reads and discards a short rest of a body. Returns whether that was all of it.
async fn discard(rest: CheckedBody) -> bool {
    let mut left = DISCARD_BYTES_MAX;
    let deadline = Instant::now() + DISCARD_TIME_MAX;
    let mut rest = pin!(rest);
    while rest.size_hint().lower() <= left {
        match timeout_at(deadline, rest.frame()).await {
            Ok(None) => return true,
            Ok(Some(Ok(frame))) => {
                let length = frame.data_ref().map_or(0, |data| data.len() as u64);
                match left.checked_sub(length) {
                    Some(less) => left = less,
                    None => return false,
                }
            }
            Ok(Some(Err(_))) | Err(_) => return false,
        }
    }
    false
}
