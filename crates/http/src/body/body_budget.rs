//! The budget of bytes that bodies may hold in memory.
//!
//! A request's body is held whole before its key is reserved, so clients that send large bodies slowly could fill the
//! memory. An out-of-memory kill would make every running attempt unknown. So a body that finds no room is refused. A
//! response is never refused, because its request has been executed: a large one is not read from its service until
//! there is room.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use scopeguard::defer;
use tokio::sync::{Mutex, Notify};
use tokio::time::{Instant, timeout};

/// A body up to this size may use all of the budget, a larger one seven eighths of it. So large bodies that arrive
/// slowly leave room for payments, which are small. A response up to this size waits for nothing.
pub const SMALL_BODY: u64 = 64 * 1024;

/// The share of the budget for large bodies, in eighths.
const LARGE_SHARE: u64 = 7;

/// The share for large bodies of which less than a quarter has arrived, in eighths. Without it, bodies that arrive
/// together grow together until none finds room. The rest of [`LARGE_SHARE`] is for those that will soon be complete.
// See docs/decisions/0025-bound-bodies-in-memory.md.
const BEGUN_SHARE: u64 = 4;

/// The bytes that bodies may hold, and those that they hold.
#[derive(Debug)]
pub struct BodyBudget {
    bytes_max: u64,
    held: AtomicU64,
    /// The part of `held` by large bodies of which less than a quarter has arrived.
    begun: AtomicU64,
    /// The room that responses have been promised, besides `held`.
    promised: AtomicU64,
    /// The number of responses that wait for room.
    waiting: AtomicUsize,
    /// The time of the last refusal of a stored response.
    refused_at: parking_lot::Mutex<Option<Instant>>,
    /// Held by the one of them that gets the next room.
    turn: Mutex<()>,
    /// Tells it that there is more room. A permit stays for one that is about to wait, so no room is missed.
    freed: Notify,
}

/// The time for which a refusal counts as pressure: long enough for every connection to look at it.
const PRESS_AFTER_REFUSAL: Duration = Duration::from_secs(3);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived {
    /// Less than a quarter of its announced or greatest length.
    Little,
    /// A quarter or more.
    Much,
}

impl Arrived {
    /// The part that `length` is of `length_max` bytes.
    pub fn of(length: usize, length_max: usize) -> Self {
        if length < length_max / 4 { Self::Little } else { Self::Much }
    }
}

/// No room is left for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExhausted;

/// The bytes of one request's bodies, which count until this is dropped.
#[derive(Debug)]
pub struct BudgetShare {
    budget: Arc<BodyBudget>,
    bytes: u64,
    /// The bytes of these that count as begun.
    begun: u64,
    /// The room that is promised for more.
    promised: u64,
}

impl BodyBudget {
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            held: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            promised: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            refused_at: parking_lot::Mutex::default(),
            turn: Mutex::new(()),
            freed: Notify::new(),
        })
    }

    /// A share without any bytes.
    pub fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0, begun: 0, promised: 0 }
    }

    /// A share of this many bytes, which are in memory whether there is room for them or not.
    pub fn share_of(self: &Arc<Self>, bytes: usize) -> BudgetShare {
        let mut share = self.share();
        share.add(bytes);
        share
    }

    /// A share of this many bytes of a stored response, unless they need the eighth that is for others. Where nothing
    /// is held, they have room.
    pub fn try_share_of(self: &Arc<Self>, bytes: usize) -> Result<BudgetShare, BudgetExhausted> {
        let more = bytes as u64;
        let room = self.room_for_large(more).saturating_sub(self.promised.load(Ordering::Relaxed));
        add_within(&self.held, more, room).inspect_err(|_| *self.refused_at.lock() = Some(Instant::now()))?;
        let mut share = self.share();
        share.bytes = more;
        Ok(share)
    }

    /// The room for large bodies; all of it for one that is larger, where nothing else is held.
    fn room_for_large(&self, bytes: u64) -> u64 {
        (self.bytes_max / 8 * LARGE_SHARE).max(bytes)
    }

    pub fn is_full(&self) -> bool {
        self.held() >= self.bytes_max
    }

    /// Whether somebody needs the room that others hold: a response waits for it, or a stored one was refused lately.
    pub fn is_pressed(&self) -> bool {
        self.is_full()
            || self.waiting.load(Ordering::Relaxed) > 0
            || self.refused_at.lock().is_some_and(|at| at.elapsed() <= PRESS_AFTER_REFUSAL)
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.held.fetch_sub(bytes, Ordering::SeqCst);
            self.wake_the_first();
        }
    }

    /// Wakes the response that gets the next room. A response first counts as waiting and then looks for room, and
    /// whoever makes room looks for one that waits afterwards: one of the two sees the other.
    fn wake_the_first(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            self.freed.notify_one();
        }
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl BudgetShare {
    /// Adds bytes of a request's body. Without room for them, the share must be dropped.
    pub fn try_add(&mut self, bytes: usize, arrived: Arrived) -> Result<(), BudgetExhausted> {
        let (more, eighth) = (bytes as u64, self.budget.bytes_max / 8);
        if self.bytes + more <= SMALL_BODY {
            add_within(&self.budget.held, more, self.budget.bytes_max)?;
        } else {
            match arrived {
                Arrived::Little => self.count_as_begun(self.bytes + more, eighth * BEGUN_SHARE)?,
                Arrived::Much => self.end_begun(),
            }
            add_within(&self.budget.held, more, eighth * LARGE_SHARE)?;
        }
        self.bytes += more;
        Ok(())
    }

    fn count_as_begun(&mut self, bytes: u64, limit: u64) -> Result<(), BudgetExhausted> {
        let more = bytes - self.begun;
        add_within(&self.budget.begun, more, limit)?;
        self.begun = bytes;
        Ok(())
    }

    fn end_begun(&mut self) {
        self.budget.begun.fetch_sub(mem::take(&mut self.begun), Ordering::Relaxed);
    }

    /// Lets the share live as long as these bytes.
    pub fn attach_to(self, bytes: Bytes) -> Bytes {
        Bytes::from_owner(CountedBytes { bytes, _share: self })
    }

    /// Gets room for this many bytes in all, as soon as there is some, in the order of the calls. After `patience`
    /// there is none: the bytes are a response's, whose request has been executed, and count as they come.
    // See docs/decisions/0025-bound-bodies-in-memory.md.
    pub async fn reserve_in_turn(&mut self, bytes: u64, patience: Duration) {
        let more = bytes.saturating_sub(self.bytes + self.promised);
        if more == 0 {
            return;
        }
        let budget = Arc::clone(&self.budget);
        let fits = || {
            let room = budget.room_for_large(bytes).saturating_sub(budget.held.load(Ordering::SeqCst));
            add_within(&budget.promised, more, room).is_ok()
        };
        if budget.waiting.load(Ordering::Relaxed) > 0 || !fits() {
            budget.waiting.fetch_add(1, Ordering::SeqCst);
            defer! { budget.waiting.fetch_sub(1, Ordering::Relaxed); }
            let in_turn = async {
                let _turn = budget.turn.lock().await;
                while !fits() {
                    budget.freed.notified().await;
                }
            };
            if timeout(patience, in_turn).await.is_err() {
                return;
            }
        }
        self.promised += more;
    }

    /// Adds the bytes of a response, or of a request that was accepted before. They use the room that is promised.
    pub fn add(&mut self, bytes: usize) {
        let more = bytes as u64;
        // In this order: a response that saw the bytes twice would wait for room that is there, and not be woken.
        self.lower_promise(more.min(self.promised));
        self.budget.held.fetch_add(more, Ordering::SeqCst);
        self.bytes += more;
    }

    /// Takes bytes out that are not held any more.
    pub fn remove(&mut self, bytes: usize) {
        self.bytes -= bytes as u64;
        self.budget.give_back(bytes as u64);
    }

    /// Gives the room back that was promised for more bytes.
    pub fn end_promise(&mut self) {
        if self.promised > 0 {
            self.lower_promise(self.promised);
            self.budget.wake_the_first();
        }
    }

    fn lower_promise(&mut self, bytes: u64) {
        if bytes > 0 {
            self.promised -= bytes;
            self.budget.promised.fetch_sub(bytes, Ordering::SeqCst);
        }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

#[derive(derive_more::AsRef)]
struct CountedBytes {
    #[as_ref([u8])]
    bytes: Bytes,
    _share: BudgetShare,
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.end_begun();
        self.end_promise();
        self.budget.give_back(self.bytes);
    }
}

fn add_within(count: &AtomicU64, more: u64, limit: u64) -> Result<(), BudgetExhausted> {
    let sum = |count: u64| count.checked_add(more).filter(|sum| *sum <= limit);
    count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, sum).map(drop).map_err(|_| BudgetExhausted)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_body_leaves_room_for_small_ones() {
        let budget = BodyBudget::new(8 << 20);
        let (mut large, mut small) = (budget.share(), budget.share());
        assert_eq!(large.try_add(7 << 20, Arrived::Much), Ok(()));
        assert_eq!(budget.share().try_add(1 << 20, Arrived::Much), Err(BudgetExhausted));
        assert_eq!(small.try_add(SMALL_BODY as usize, Arrived::Much), Ok(()));
        assert_eq!(small.try_add(1, Arrived::Much), Err(BudgetExhausted), "it is no small body any more");
        assert_eq!(budget.held(), (7 << 20) + SMALL_BODY);
    }

    #[test]
    fn large_bodies_that_have_begun_leave_room_for_those_that_are_nearly_complete() {
        let budget = BodyBudget::new(8 << 20);
        let (mut begun, mut nearly_complete) = (budget.share(), budget.share());
        assert_eq!(nearly_complete.try_add(1 << 20, Arrived::Little), Ok(()));
        assert_eq!(begun.try_add(3 << 20, Arrived::Little), Ok(()));
        assert_eq!(budget.share().try_add(1 << 20, Arrived::Little), Err(BudgetExhausted));
        assert_eq!(nearly_complete.try_add(3 << 20, Arrived::Much), Ok(()));
        assert_eq!(
            budget.share().try_add(1 << 20, Arrived::Little),
            Err(BudgetExhausted),
            "of all there is no room either"
        );
        drop((begun, nearly_complete));
        assert_eq!(budget.share().try_add(4 << 20, Arrived::Little), Ok(()), "nothing is counted any more");
    }

    #[test]
    fn a_body_that_has_begun_counts_each_of_its_bytes_once() {
        let budget = BodyBudget::new(8 << 20);
        let (mut one, mut other) = (budget.share(), budget.share());
        for _ in 0..2 {
            assert_eq!(one.try_add(1 << 20, Arrived::Little), Ok(()));
        }
        assert_eq!(other.try_add(2 << 20, Arrived::Little), Ok(()));
        assert_eq!(other.try_add(1, Arrived::Little), Err(BudgetExhausted));
    }

    #[test]
    fn a_quarter_of_a_body_is_much() {
        assert_eq!(
            [24, 25, 26].map(|length| Arrived::of(length, 100)),
            [Arrived::Little, Arrived::Much, Arrived::Much]
        );
    }

    #[test]
    fn nobody_is_let_in_while_responses_fill_the_budget() {
        let budget = BodyBudget::new(1 << 20);
        let mut response = budget.share();
        response.add(2 << 20);
        assert_eq!(budget.share().try_add(1, Arrived::Much), Err(BudgetExhausted));
        drop(response);
        assert_eq!(budget.share().try_add(1, Arrived::Much), Ok(()));
        assert_eq!(budget.held(), 0);
    }

    fn promised(budget: &BodyBudget) -> u64 {
        budget.promised.load(Ordering::Relaxed)
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_waits_until_others_have_made_room_for_it() {
        let budget = BodyBudget::new(8 << 20);
        let first = budget.share_of(6 << 20);
        let mut waiting = budget.share_of(1 << 10);
        let mut growing = Box::pin(waiting.reserve_in_turn(2 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_secs(4), &mut growing).await.is_err());
        assert!(budget.is_pressed() && !budget.is_full());
        drop(first);
        assert!(timeout(Duration::from_millis(1), growing).await.is_ok());
        assert_eq!((budget.held(), budget.is_pressed()), (1 << 10, false), "a promise is not held");
        waiting.add(1 << 20);
        assert_eq!((budget.held(), promised(&budget)), ((1 << 20) + (1 << 10), (1 << 20) - (1 << 10)));
        drop(waiting);
        assert_eq!((budget.held(), promised(&budget)), (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_comes_later_waits_for_those_before_it() {
        let budget = BodyBudget::new(8 << 20);
        let first = budget.share_of(6 << 20);
        let (mut large, mut small) = (budget.share(), budget.share());
        let mut large_growing = Box::pin(large.reserve_in_turn(5 << 20, Duration::from_secs(5)));
        let mut small_growing = Box::pin(small.reserve_in_turn(1 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_millis(1), &mut large_growing).await.is_err());
        assert!(timeout(Duration::from_millis(1), &mut small_growing).await.is_err(), "it would have room");
        drop(first);
        tokio::join!(large_growing, small_growing);
        assert_eq!(promised(&budget), 6 << 20);
        let _others = budget.share_of(2 << 20);
        let mut next = budget.share();
        let mut next_growing = Box::pin(next.reserve_in_turn(1 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_millis(1), &mut next_growing).await.is_err());
        small.reserve_in_turn(1 << 20, Duration::ZERO).await;
        assert_eq!(promised(&budget), 6 << 20, "it has its room, and waits for nobody");
        large.end_promise();
        assert!(timeout(Duration::from_millis(1), next_growing).await.is_ok(), "room that is not used is for others");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_finds_no_room_for_long_counts_without_it() {
        let budget = BodyBudget::new(8 << 20);
        let (_first, mut late) = (budget.share_of(7 << 20), budget.share());
        let begun = Instant::now();
        late.reserve_in_turn(2 << 20, Duration::from_secs(5)).await;
        assert_eq!((begun.elapsed(), promised(&budget)), (Duration::from_secs(5), 0));
        late.add(2 << 20);
        assert_eq!(budget.held(), 9 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_larger_than_the_budget_has_room_where_nothing_is_held() {
        let budget = BodyBudget::new(1 << 20);
        let mut share = budget.share();
        let begun = Instant::now();
        share.reserve_in_turn(4 << 20, Duration::from_secs(5)).await;
        assert_eq!((begun.elapsed(), promised(&budget)), (Duration::ZERO, 4 << 20));
    }

    #[tokio::test(start_paused = true)]
    async fn a_refused_replay_presses_for_some_seconds() {
        let budget = BodyBudget::new(8 << 20);
        let _unread = budget.share_of(7 << 20);
        assert!(!budget.is_pressed());
        assert!(budget.try_share_of(1).is_err());
        assert!(budget.is_pressed());
        tokio::time::advance(PRESS_AFTER_REFUSAL + Duration::from_millis(2)).await;
        assert!(!budget.is_pressed());
    }

    #[test]
    fn a_replay_has_no_room_that_is_promised() {
        let budget = BodyBudget::new(8 << 20);
        budget.promised.store(6 << 20, Ordering::Relaxed);
        assert!(budget.try_share_of(2 << 20).is_err());
        assert!(budget.try_share_of(1 << 20).is_ok());
    }
}
