//! Reads a request's body whole.

use std::time::Duration;

use bytes::{Bytes, BytesMut};
use futures_util::FutureExt;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;
use tokio::time::{Instant, timeout};

use crate::body::request_body::RequestBody;
use crate::protocol::refusal::Refusal;

/// A body without a byte for this long has stalled. A lost packet costs far less time, and an attacker would like to hold
/// the connection for longer.
const BODY_SILENCE_MAX: Duration = Duration::from_secs(10);
/// From this age on, a body's average rate must reach [`BODY_RATE_MIN`].
const BODY_GRACE: Duration = Duration::from_secs(5);
/// Bytes a second. A slower sender has no slow network: it holds the connection.
const BODY_RATE_MIN: u64 = 1024;

/// The refusal of a request whose body broke off.
pub(in crate::gate) const BODY_BROKE_OFF: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The request's body is not framed as it says, or broke off.");

/// Reads a whole body. Drops its trailers, because nothing after the body may change its meaning.
pub(super) async fn read_body(mut body: RequestBody, headers: &HeaderMap, bytes_max: usize) -> Result<Bytes, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Checked before the body is read: a client that waits for `100 Continue` then sends no body in vain.
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Refusal::RequestTooLarge(bytes_max));
    }
    let begun = Instant::now();
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut length = 0;
    loop {
        if http_body::Body::is_end_stream(&body) {
            break;
        }
        // Most bodies come with their heads and need no timer.
        let arrived = body.frame().now_or_never();
        let has_waited = arrived.is_none();
        let frame = match arrived {
            Some(frame) => Ok(frame),
            None => timeout(BODY_SILENCE_MAX, body.frame()).await,
        };
        let frame = match frame {
            Err(_) => return Err(Refusal::RequestTimeout),
            Ok(None) => break,
            Ok(Some(Err(_))) => {
                return Err(BODY_BROKE_OFF);
            }
            Ok(Some(Ok(frame))) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > bytes_max {
            return Err(Refusal::RequestTooLarge(bytes_max));
        }
        let late = if has_waited { begun.elapsed().saturating_sub(BODY_GRACE) } else { Duration::ZERO };
        if (length as u64) < late.as_secs() * BODY_RATE_MIN {
            return Err(Refusal::RequestTimeout);
        }
        // A body in one piece, as most are, is never copied.
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
