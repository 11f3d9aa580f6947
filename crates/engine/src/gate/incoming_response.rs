//! The body of a service's response while it comes in.
//!
//! Many requests may run at once, and each response may be as large as its route stores. So a large one is not read on
//! until the memory for responses has room for all of it. The service waits meanwhile, and an honest client's short
//! response does not. Over HTTP/2 responses share a connection's window, so none waits there.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::time::Instant;

use oncegate_http::body::body_budget::{BodyBudget, BudgetShare, SMALL_BODY};

/// The longest wait for room, unless half of the attempt's time is less. Clients that do not take the responses which
/// fill the memory lose their connections within two or three seconds. After the wait the response is read without
/// room: its request has been executed.
const PATIENCE: Duration = Duration::from_secs(5);

/// A body that is put together from pieces, and its share of the memory for responses. A body in one piece, as most
/// are, is never copied.
pub(super) struct IncomingBody {
    first: Bytes,
    all: BytesMut,
    share: BudgetShare,
    /// The bytes that come, if the service has said so.
    length: Option<u64>,
    bytes_max: usize,
    /// Whether it may wait for room, and has not.
    may_wait: bool,
}

impl IncomingBody {
    /// Nothing yet of a body of `length` bytes, of which up to `bytes_max` are held. One whose connection has other
    /// responses may not wait: it would hold them up.
    pub(super) fn new(budget: &Arc<BodyBudget>, length: Option<u64>, bytes_max: usize, may_wait: bool) -> Self {
        Self { first: Bytes::new(), all: BytesMut::new(), share: budget.share(), length, bytes_max, may_wait }
    }

    /// Waits until there is room for the rest, if it is large or its length is unknown and its beginning is.
    pub(super) async fn make_room(&mut self, deadline: Instant) {
        if !self.may_wait {
            return;
        }
        let bytes_max = self.bytes_max as u64;
        let expected = match self.length {
            Some(length) => length.min(bytes_max),
            None if (self.len() as u64) < SMALL_BODY => return,
            None => bytes_max,
        };
        self.may_wait = false;
        if expected > SMALL_BODY {
            let left = deadline.saturating_duration_since(Instant::now());
            self.share.reserve_in_turn(expected, PATIENCE.min(left / 2)).await;
        }
    }

    pub(super) fn push(&mut self, data: Bytes) {
        self.share.add(data.len());
        if self.len() == 0 {
            self.first = data;
        } else {
            if self.all.is_empty() {
                // The buffer would double, and take up to twice the length as long as the response is cached.
                self.all.reserve(self.length.map_or(0, |length| length.min(self.bytes_max as u64) as usize));
                self.all.extend_from_slice(&std::mem::take(&mut self.first));
            }
            self.all.extend_from_slice(&data);
        }
    }

    pub(super) fn is_too_long(&self) -> bool {
        self.len() > self.bytes_max
    }

    fn len(&self) -> usize {
        self.first.len().max(self.all.len())
    }

    pub(super) fn into_whole(mut self) -> (Bytes, BudgetShare) {
        self.share.end_promise();
        (if self.all.is_empty() { self.first } else { self.all.freeze() }, self.share)
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    const LARGE: usize = 1 << 20;
    const BUDGET: u64 = 8 << 20;

    fn deadline() -> Instant {
        Instant::now() + Duration::from_secs(30)
    }

    async fn waits(incoming: &mut IncomingBody) -> bool {
        timeout(Duration::from_millis(1), incoming.make_room(deadline())).await.is_err()
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_has_all_its_pieces_and_counts_its_own_length_at_the_end() {
        let budget = BodyBudget::new(BUDGET);
        for pieces in [&["alone"][..], &["first ", "second ", "third"], &[]] {
            let mut incoming = IncomingBody::new(&budget, None, LARGE, true);
            for piece in pieces {
                incoming.make_room(deadline()).await;
                incoming.push(Bytes::from_static(piece.as_bytes()));
            }
            let (body, share) = incoming.into_whole();
            assert_eq!((body, share.bytes()), (Bytes::from(pieces.concat()), pieces.concat().len() as u64));
        }
        let only = Bytes::from(vec![b'x'; 100]);
        let mut incoming = IncomingBody::new(&budget, Some(100), LARGE, true);
        incoming.push(only.clone());
        assert_eq!(incoming.into_whole().0.as_ptr(), only.as_ptr(), "it is not copied");
    }

    #[tokio::test(start_paused = true)]
    async fn a_large_body_has_room_for_all_of_it_before_it_is_read() {
        let budget = BodyBudget::new(BUDGET);
        let mut first = IncomingBody::new(&budget, Some(6 << 20), 8 << 20, true);
        assert!(!waits(&mut first).await);
        assert!(waits(&mut IncomingBody::new(&budget, Some(2 << 20), 8 << 20, true)).await);
        assert!(waits(&mut IncomingBody::new(&budget, Some(2 << 30), 2 << 20, true)).await, "2 MiB of it are held");
        assert!(
            !waits(&mut IncomingBody::new(&budget, Some(SMALL_BODY), LARGE, true)).await,
            "a small one waits for nothing"
        );
        first.push(Bytes::from(vec![b'x'; LARGE]));
        assert!(!waits(&mut first).await, "it has its room");
        let mut unknown = IncomingBody::new(&budget, None, 8 << 20, true);
        assert!(!waits(&mut unknown).await, "it may be short");
        let mut shared = IncomingBody::new(&budget, Some(2 << 20), 8 << 20, false);
        assert!(!waits(&mut shared).await, "others would wait with it");
        drop(first.into_whole());
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_of_unknown_length_has_room_for_the_longest_once_it_is_large() {
        let budget = BodyBudget::new(BUDGET);
        let mut incoming = IncomingBody::new(&budget, None, LARGE, true);
        incoming.push(Bytes::from(vec![b'x'; SMALL_BODY as usize - 1]));
        assert!(!waits(&mut incoming).await);
        assert_eq!(budget.held(), SMALL_BODY - 1);
        incoming.push(Bytes::from_static(b"x"));
        assert!(!waits(&mut incoming).await);
        assert_eq!(budget.held(), SMALL_BODY, "the rest is only promised");
        let _others = budget.share_of(7 << 20);
        let mut late = IncomingBody::new(&budget, None, LARGE, true);
        late.push(Bytes::from(vec![b'x'; SMALL_BODY as usize]));
        assert!(waits(&mut late).await);
        let (body, share) = incoming.into_whole();
        assert_eq!((body.len(), share.bytes()), (SMALL_BODY as usize, SMALL_BODY));
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_takes_at_most_half_of_the_attempts_time() {
        let budget = BodyBudget::new(BUDGET);
        let _others = budget.share_of(8 << 20);
        for (seconds, wait) in [(2, 1), (30, 5)] {
            let begun = Instant::now();
            let mut incoming = IncomingBody::new(&budget, Some(LARGE as u64), LARGE, true);
            incoming.make_room(begun + Duration::from_secs(seconds)).await;
            assert_eq!(begun.elapsed(), Duration::from_secs(wait));
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_body_is_too_long_from_the_first_byte_beyond() {
        let mut incoming = IncomingBody::new(&BodyBudget::new(BUDGET), None, 10, true);
        incoming.push(Bytes::from(vec![b'x'; 10]));
        assert!(!incoming.is_too_long());
        incoming.push(Bytes::from_static(b"x"));
        assert!(incoming.is_too_long());
    }
}
