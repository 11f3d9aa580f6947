//! Reads a request's body whole.

use bytes::Bytes;
use http::header::CONTENT_LENGTH;
use http::{HeaderMap, StatusCode};
use http_body_util::BodyExt;

use crate::body::body_budget::{Arrived, BudgetExhausted, BudgetShare};
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
    let announced = announced.and_then(|length| usize::try_from(length).ok());
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
        let arrived = Arrived::of(length, announced.unwrap_or(bytes_max));
        // A body in one piece, as most are, is never copied.
        if length == data.len() {
            count(share, data.len(), arrived)?;
            first = Some(data);
            continue;
        }
        if length > all.capacity() {
            let capacity = grown_capacity(length, arrived, announced, bytes_max);
            let counted = first.as_ref().map_or(all.capacity(), Bytes::len);
            count(share, capacity - counted, arrived)?;
            all.reserve_exact(capacity - all.len());
        }
        all.extend_from_slice(&first.take().unwrap_or_default());
        all.extend_from_slice(&data);
    }
    Ok(first.unwrap_or_else(|| all.into()))
}

fn count(share: &mut BudgetShare, bytes: usize, arrived: Arrived) -> Result<(), Refusal> {
    share.try_add(bytes, arrived).map_err(|BudgetExhausted| Refusal::Overloaded(ReachedLimit::HeldBodies))
}

/// The capacity of a buffer that has to hold `length` bytes and is too small. It doubles with the bytes that arrive. An
/// announced length takes no memory before a quarter of it has arrived, because an announcement costs a client nothing.
fn grown_capacity(length: usize, arrived: Arrived, announced: Option<usize>, bytes_max: usize) -> usize {
    let capacity = match (arrived, announced) {
        (Arrived::Much, Some(announced)) => announced,
        _ => (2 * length).min(bytes_max),
    };
    capacity.max(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_buffer_doubles_and_takes_its_announced_length_when_a_quarter_has_arrived() {
        assert_eq!(grown_capacity(100, Arrived::Little, Some(1_000), 2_000), 200);
        assert_eq!(grown_capacity(250, Arrived::Much, Some(1_000), 2_000), 1_000);
        assert_eq!(grown_capacity(600, Arrived::Much, None, 2_000), 1_200);
        assert_eq!(grown_capacity(1_200, Arrived::Much, None, 2_000), 2_000);
        // More than was announced: the framing refuses it elsewhere.
        assert_eq!(grown_capacity(1_001, Arrived::Much, Some(1_000), 2_000), 1_001);
    }
}
