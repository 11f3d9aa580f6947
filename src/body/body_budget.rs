//! The budget of bytes that bodies may hold in memory.
//!
//! A request's body is held whole before its key is reserved, so clients that send large bodies slowly could fill the memory.
//! An out-of-memory kill would make every running attempt unknown. So a body that finds no room is refused. A response is
//! never refused, because its request has been executed: a large one is not read from its service until there is room.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{Mutex, Notify};
use tokio::time::timeout;

/// A body up to this size may use all of the budget, a larger one [`LARGE_SHARE`] of it. So large bodies that arrive slowly leave
/// room for payments, which are small. A response up to this size waits for nothing.
pub const SMALL_BODY: u64 = 64 * 1024;

/// The share of the budget for large bodies, in eighths.
const LARGE_SHARE: u64 = 7;

/// The share for large bodies of which less than a quarter has arrived, in eighths. Without it, bodies that arrive together grow
/// together until none finds room. The rest of [`LARGE_SHARE`] is for those that will soon be complete.
const BEGUN_SHARE: u64 = 4;

/// The bytes that bodies may hold, and those that they hold.
#[derive(Debug)]
pub struct BodyBudget {
    bytes_max: u64,
    held: AtomicU64,
    /// The part of `held` by large bodies of which less than a quarter has arrived.
    begun: AtomicU64,
    /// The number of responses that wait for room.
    waiting: AtomicUsize,
    /// Held by the one of them that gets the next room.
    turn: Mutex<()>,
    /// Tells it that a share has been dropped. A permit stays if nobody waits, so no room is missed.
    freed: Notify,
}

/// How much of a body has arrived.
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
}

impl BodyBudget {
    /// A budget of which nothing is used.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self {
            bytes_max,
            held: AtomicU64::new(0),
            begun: AtomicU64::new(0),
            waiting: AtomicUsize::new(0),
            turn: Mutex::new(()),
            freed: Notify::new(),
        })
    }

    /// A share without any bytes.
    pub fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0, begun: 0 }
    }

    /// A share of this many bytes, which are in memory whether there is room for them or not.
    pub fn share_of(self: &Arc<Self>, bytes: usize) -> BudgetShare {
        let mut share = self.share();
        share.add(bytes);
        share
    }

    /// A share of this many bytes, unless they need the eighth that is for others. Where nothing is held, they have room.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if there is no room.
    pub fn try_share_of(self: &Arc<Self>, bytes: usize) -> Result<BudgetShare, BudgetExhausted> {
        let (more, limit) = (bytes as u64, self.bytes_max / 8 * LARGE_SHARE);
        add_within(&self.held, more, limit.max(more))?;
        let mut share = self.share();
        share.bytes = more;
        Ok(share)
    }

    /// Whether nothing more has room.
    pub fn is_full(&self) -> bool {
        self.held() >= self.bytes_max
    }

    /// Whether somebody needs the room of those who hold it.
    pub fn is_pressed(&self) -> bool {
        self.is_full() || self.waiting.load(Ordering::Relaxed) > 0
    }

    fn give_back(&self, bytes: u64) {
        if bytes > 0 {
            self.held.fetch_sub(bytes, Ordering::Relaxed);
            self.freed.notify_one();
        }
    }

    /// The bytes held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl BudgetShare {
    /// Adds bytes of a request's body.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if there is no room; the share must be dropped then.
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

    /// Lets the share have this many bytes as soon as there is room for them, in the order of the calls. After `patience` it has them
    /// without room: they are a response's, whose request has been executed.
    pub async fn grow_in_turn(&mut self, bytes: u64, patience: Duration) {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return;
        }
        let budget = Arc::clone(&self.budget);
        let fits = || add_within(&budget.held, more, (budget.bytes_max / 8 * LARGE_SHARE).max(bytes)).is_ok();
        let is_next = budget.turn.try_lock().is_ok();
        if !is_next || !fits() {
            let _waiting = Waiting::in_line_of(&budget);
            let in_turn = async {
                let _turn = budget.turn.lock().await;
                while !fits() {
                    budget.freed.notified().await;
                }
            };
            if timeout(patience, in_turn).await.is_err() {
                budget.held.fetch_add(more, Ordering::Relaxed);
            }
        }
        self.bytes = bytes;
    }

    /// Adds the bytes of a response, or of a request that was accepted before.
    pub fn add(&mut self, bytes: usize) {
        self.budget.held.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }

    /// Gives back all but this many bytes, or adds what they are more.
    pub fn set(&mut self, bytes: usize) {
        match self.bytes.checked_sub(bytes as u64) {
            Some(less) => {
                self.bytes = bytes as u64;
                self.budget.give_back(less);
            }
            None => self.add(bytes - self.bytes as usize),
        }
    }

    /// The number of bytes.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Counts a response that waits for room until this is dropped.
struct Waiting<'a>(&'a BodyBudget);

impl<'a> Waiting<'a> {
    fn in_line_of(budget: &'a BodyBudget) -> Self {
        budget.waiting.fetch_add(1, Ordering::Relaxed);
        Self(budget)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Bytes that count until they are dropped.
struct CountedBytes {
    bytes: Bytes,
    _share: BudgetShare,
}

impl AsRef<[u8]> for CountedBytes {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.end_begun();
        self.budget.give_back(self.bytes);
    }
}

fn add_within(count: &AtomicU64, more: u64, limit: u64) -> Result<(), BudgetExhausted> {
    let sum = |count: u64| count.checked_add(more).filter(|sum| *sum <= limit);
    count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, sum).map(drop).map_err(|_| BudgetExhausted)
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
    fn nobody_is_let_in_while_responses_fill_the_budget() {
        let budget = BodyBudget::new(1 << 20);
        let mut response = budget.share();
        response.add(2 << 20);
        assert_eq!(budget.share().try_add(1, Arrived::Much), Err(BudgetExhausted));
        drop(response);
        assert_eq!(budget.share().try_add(1, Arrived::Much), Ok(()));
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_waits_until_others_have_made_room_for_it() {
        let budget = BodyBudget::new(8 << 20);
        let first = budget.share_of(6 << 20);
        let mut waiting = budget.share_of(1 << 10);
        let mut growing = Box::pin(waiting.grow_in_turn(2 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_secs(4), &mut growing).await.is_err());
        assert!(budget.is_pressed() && !budget.is_full());
        drop(first);
        assert!(timeout(Duration::from_millis(1), growing).await.is_ok());
        assert_eq!((budget.held(), budget.is_pressed()), (2 << 20, false));
        drop(waiting);
        assert_eq!(budget.held(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_comes_later_waits_for_those_before_it() {
        let budget = BodyBudget::new(8 << 20);
        let first = budget.share_of(6 << 20);
        let (mut large, mut small) = (budget.share(), budget.share());
        let mut large_growing = Box::pin(large.grow_in_turn(5 << 20, Duration::from_secs(5)));
        let mut small_growing = Box::pin(small.grow_in_turn(1 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_millis(1), &mut large_growing).await.is_err());
        assert!(timeout(Duration::from_millis(1), &mut small_growing).await.is_err(), "it would have room");
        drop(first);
        tokio::join!(large_growing, small_growing);
        assert_eq!(budget.held(), 6 << 20);
        let _others = budget.share_of(2 << 20);
        let mut next = budget.share();
        let mut next_growing = Box::pin(next.grow_in_turn(1 << 20, Duration::from_secs(5)));
        assert!(timeout(Duration::from_millis(1), &mut next_growing).await.is_err());
        small.grow_in_turn(1 << 20, Duration::ZERO).await;
        assert_eq!(budget.held(), 8 << 20, "it has its room, and waits for nobody");
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_that_finds_no_room_for_long_counts_without_it() {
        let budget = BodyBudget::new(8 << 20);
        let (_first, mut late) = (budget.share_of(7 << 20), budget.share());
        let begun = tokio::time::Instant::now();
        late.grow_in_turn(2 << 20, Duration::from_secs(5)).await;
        assert_eq!((begun.elapsed(), budget.held()), (Duration::from_secs(5), 9 << 20));
        late.set(1 << 20);
        assert_eq!(budget.held(), 8 << 20);
    }

    #[tokio::test(start_paused = true)]
    async fn a_response_larger_than_the_budget_has_room_where_nothing_is_held() {
        let budget = BodyBudget::new(1 << 20);
        let mut share = budget.share();
        let begun = tokio::time::Instant::now();
        share.grow_in_turn(4 << 20, Duration::from_secs(5)).await;
        assert_eq!((begun.elapsed(), budget.held()), (Duration::ZERO, 4 << 20));
    }
}
