//! Reads a request's body whole.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use hyper::body::Incoming;
use tokio::time::{Instant, timeout};

use crate::gate::refuse::Refusal;

/// A body that brings nothing for so long has stalled: far more than a lost packet costs, far less than an attacker
/// would like to hold a connection.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);
/// From this long after its beginning on a body must have come at [`BODY_RATE_MIN`] on the whole.
const BODY_GRACE: Duration = Duration::from_secs(5);
/// Bytes in a second. Less is no client's network, it is somebody holding a connection.
const BODY_RATE_MIN: u64 = 1024;

/// The client has not sent what it said it would.
pub(in crate::gate) const BROKE_OFF: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The request's body is not framed as it says, or broke off.");

/// Reads a body whole. Its trailers are dropped: nothing after the body may change what it means.
pub(super) async fn read(mut body: Incoming, headers: &HeaderMap, bytes_max: usize) -> Result<Bytes, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Before the body is asked for: who waits for `100 Continue` has then not sent it in vain.
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Refusal::RequestTooLarge);
    }
    let begun = Instant::now();
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut length = 0;
    loop {
        if http_body::Body::is_end_stream(&body) {
            break;
        }
        // Most bodies have come with their heads, and need no timer.
        let come = body.frame().now_or_never();
        let has_waited = come.is_none();
        let frame = match come {
            Some(frame) => Ok(frame),
            None => timeout(BODY_SILENCE_MAX, body.frame()).await,
        };
        let frame = match frame {
            Err(_) => return Err(Refusal::RequestTimeout),
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(BROKE_OFF);
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > bytes_max {
            return Err(Refusal::RequestTooLarge);
        }
        let late = if has_waited { begun.elapsed().saturating_sub(BODY_GRACE) } else { Duration::ZERO };
        if (length as u64) < late.as_secs() * BODY_RATE_MIN {
            return Err(Refusal::RequestTimeout);
        }
        // A body that comes in one piece, as most do, is never copied.
        match first.take() {
            None if all.is_empty() => first = Some(data),
            None => all.extend_from_slice(&data),
            Some(piece) => {
                all.reserve(announced.map_or(piece.len() + data.len(), |length| length as usize));
                all.extend_from_slice(&piece);
                all.extend_from_slice(&data);
            }
        }
    }
    Ok(first.unwrap_or_else(|| all.freeze()))
}
