//! The budget of bytes that bodies may hold in memory.
//!
//! A request's body is held whole before its key is reserved, so clients that send large bodies slowly could fill the memory.
//! An out-of-memory kill would make every running attempt unknown. So a body that finds no room is refused. A response is
//! never refused: its request has been executed. It only counts, so that fewer new requests find room.

use std::mem;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// A body up to this size may use all of the budget, a larger one [`LARGE_SHARE`] of it. So large bodies that arrive slowly leave
/// room for payments, which are small.
const SMALL_BODY: u64 = 64 * 1024;

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
        Arc::new(Self { bytes_max, held: AtomicU64::new(0), begun: AtomicU64::new(0) })
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

    /// Whether nothing more has room in the budget.
    pub fn is_budget_full(&self) -> bool {
        self.budget.is_full()
    }

    /// Adds the bytes of a response, or of a request that was accepted before.
    pub fn add(&mut self, bytes: usize) {
        self.budget.held.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
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
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.end_begun();
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
}
