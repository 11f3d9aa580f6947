//! Reads a request's body whole.

use bytes::Bytes;
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
    let length_max = announced.map_or(bytes_max, |length| usize::try_from(length).unwrap_or(bytes_max));
    let mut first: Option<Bytes> = None;
    let mut all = Vec::new();
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
        // A body in one piece, as most are, is never copied.
        if length == data.len() {
            count(share, data.len())?;
            first = Some(data);
            continue;
        }
        let capacity = grown_capacity(all.capacity(), length, length_max);
        let counted = first.as_ref().map_or(all.capacity(), Bytes::len);
        count(share, capacity - counted)?;
        all.reserve_exact(capacity - all.len());
        all.extend_from_slice(&first.take().unwrap_or_default());
        all.extend_from_slice(&data);
    }
    Ok(first.unwrap_or_else(|| all.into()))
}

fn count(share: &mut BudgetShare, bytes: usize) -> Result<(), Refusal> {
    share.try_add(bytes).map_err(|BudgetExhausted| Refusal::Overloaded(ReachedLimit::HeldBodies))
}

/// The capacity of a buffer that has to hold `length` bytes and at most `length_max`: doubled, so that a byte is copied twice on
/// average, and never what is only announced, which costs a client nothing.
fn grown_capacity(capacity: usize, length: usize, length_max: usize) -> usize {
    if length <= capacity { capacity } else { (2 * length).min(length_max).max(length) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_grows_with_what_has_arrived_and_not_beyond_what_is_announced() {
        assert_eq!(grown_capacity(0, 100, 1_000), 200);
        assert_eq!(grown_capacity(200, 200, 1_000), 200);
        assert_eq!(grown_capacity(200, 201, 1_000), 402);
        assert_eq!(grown_capacity(402, 600, 1_000), 1_000);
        // More than was announced: the framing refuses it elsewhere.
        assert_eq!(grown_capacity(1_000, 1_001, 1_000), 1_001);
    }
}
