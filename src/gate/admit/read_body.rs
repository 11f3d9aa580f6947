//! Reads a request's body whole.

use bytes::{Bytes, BytesMut};
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;

use crate::body::body_budget::{BudgetExhausted, BudgetShare};
use crate::body::request_body::{RequestBody, RequestBodyError};
use crate::protocol::refusal::{ReachedLimit, Refusal};

/// The refusal of a request whose body broke off.
pub(in crate::gate) const BODY_BROKE_OFF: Refusal =
    Refusal::BadRequest(StatusCode::BAD_REQUEST, "The request's body is not framed as it says, or broke off.");

/// Reads a whole body, which counts in `share`. Drops its trailers, because nothing after the body may change its meaning.
pub(super) async fn read_body(
    mut body: RequestBody,
    headers: &HeaderMap,
    bytes_max: usize,
    share: &mut BudgetShare,
) -> Result<Bytes, Refusal> {
    let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
    // Checked before the body is read: a client that waits for `100 Continue` then sends no body in vain.
    if announced.is_some_and(|length| length > bytes_max as u64) {
        return Err(Refusal::RequestTooLarge(bytes_max));
    }
    let mut first: Option<Bytes> = None;
    let mut all = BytesMut::new();
    let mut length = 0;
    loop {
        if http_body::Body::is_end_stream(&body) {
            break;
        }
        let frame = match body.frame().await {
            None => break,
            Some(Err(RequestBodyError::TooSlow)) => return Err(Refusal::RequestTimeout),
            Some(Err(RequestBodyError::Broken(_))) => return Err(BODY_BROKE_OFF),
            Some(Ok(frame)) => frame,
        };
        let Ok(data) = frame.into_data() else { continue };
        length += data.len();
        if length > bytes_max {
            return Err(Refusal::RequestTooLarge(bytes_max));
        }
        share.try_add(data.len()).map_err(|BudgetExhausted| Refusal::Overloaded(ReachedLimit::HeldBodies))?;
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
