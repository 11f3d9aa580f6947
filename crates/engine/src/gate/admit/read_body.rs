//! Reads a request's body whole.

use bytes::Bytes;
use http::HeaderMap;
use http::header::CONTENT_LENGTH;
use http_body_util::BodyExt;

use crate::gate::pass::BODY_BROKE_OFF;
use oncegate_http::body::body_budget::{Arrived, BudgetExhausted, BudgetShare};
use oncegate_http::body::request_body::{RequestBody, RequestBodyError};
use oncegate_http::protocol::refusal::{ReachedLimit, Refusal};

/// Reads a body whole, up to a limit; a larger one can be read on with another limit.
pub(super) struct BodyReader {
    body: RequestBody,
    announced: Option<u64>,
    /// The only piece so far. A body in one piece, as most are, is never copied.
    first: Option<Bytes>,
    all: Vec<u8>,
    /// The piece that was over the limit.
    next: Option<Bytes>,
}

impl BodyReader {
    pub(super) fn new(body: RequestBody, headers: &HeaderMap) -> Self {
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse().ok());
        Self { body, announced, first: None, all: Vec::new(), next: None }
    }

    /// Reads on. `None` if the body is over `bytes_max`: nothing that was read is lost. The body counts in `share`. Its
    /// trailers are dropped, because nothing after the body may change its meaning.
    pub(super) async fn read(&mut self, bytes_max: usize, share: &mut BudgetShare) -> Result<Option<Bytes>, Refusal> {
        // Checked before the body is read: a client that waits for `100 Continue` then sends no body in vain.
        if self.announced.is_some_and(|length| length > bytes_max as u64) {
            return Ok(None);
        }
        while let Some(data) = self.next_piece().await? {
            let length = self.length() + data.len();
            if length > bytes_max {
                self.next = Some(data);
                return Ok(None);
            }
            self.add(data, length, bytes_max, share)?;
        }
        let all = std::mem::take(&mut self.all);
        Ok(Some(self.first.take().unwrap_or_else(|| all.into())))
    }

    fn has_begun(&self) -> bool {
        self.first.is_some() || self.next.is_some() || !self.all.is_empty()
    }

    /// The body, of which nothing was read.
    pub(super) fn into_unread(self) -> RequestBody {
        debug_assert!(!self.has_begun(), "the beginning would be lost");
        self.body
    }

    fn length(&self) -> usize {
        self.first.as_ref().map_or(self.all.len(), Bytes::len)
    }

    /// The next piece of data; `None` at the end.
    async fn next_piece(&mut self) -> Result<Option<Bytes>, Refusal> {
        if self.next.is_some() {
            return Ok(self.next.take());
        }
        loop {
            if http_body::Body::is_end_stream(&self.body) {
                return Ok(None);
            }
            match self.body.frame().await {
                None => return Ok(None),
                Some(Err(RequestBodyError::TooSlow)) => return Err(Refusal::RequestTimeout),
                Some(Err(RequestBodyError::Broken(_))) => return Err(BODY_BROKE_OFF),
                Some(Ok(frame)) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    fn add(&mut self, data: Bytes, length: usize, bytes_max: usize, share: &mut BudgetShare) -> Result<(), Refusal> {
        let announced = self.announced.and_then(|length| usize::try_from(length).ok());
        let arrived = Arrived::of(length, announced.unwrap_or(bytes_max));
        if length == data.len() {
            count(share, data.len(), arrived)?;
            self.first = Some(data);
            return Ok(());
        }
        let all = &mut self.all;
        if length > all.capacity() {
            let capacity = grown_capacity(length, arrived, announced, bytes_max);
            let counted = self.first.as_ref().map_or(all.capacity(), Bytes::len);
            count(share, capacity - counted, arrived)?;
            all.reserve_exact(capacity - all.len());
        }
        all.extend_from_slice(&self.first.take().unwrap_or_default());
        all.extend_from_slice(&data);
        Ok(())
    }
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
