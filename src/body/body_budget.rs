//! The budget of bytes that bodies may hold in memory.
//!
//! A request's body is held whole before its key is reserved, so clients that send large bodies slowly could fill the memory.
//! An out-of-memory kill would make every running attempt unknown. So a body that finds no room is refused. A response is
//! never refused: its request has been executed. It only counts, so that fewer new requests find room.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A body up to this size may use all of the budget, a larger one [`LARGE_SHARE`] of it. So large bodies that arrive slowly leave
/// room for payments, which are small.
const SMALL_BODY: u64 = 64 * 1024;

/// The share of the budget for large bodies, in eighths.
const LARGE_SHARE: u64 = 7;

/// The bytes that bodies may hold, and those that they hold.
#[derive(Debug)]
pub struct BodyBudget {
    bytes_max: u64,
    held: AtomicU64,
}

/// No room is left for a request's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BudgetExhausted;

/// The bytes of one request's bodies, which count until this is dropped.
#[derive(Debug)]
pub struct BudgetShare {
    budget: Arc<BodyBudget>,
    bytes: u64,
}

impl BodyBudget {
    /// A budget of which nothing is used.
    pub fn new(bytes_max: u64) -> Arc<Self> {
        Arc::new(Self { bytes_max, held: AtomicU64::new(0) })
    }

    /// A share without any bytes.
    pub fn share(self: &Arc<Self>) -> BudgetShare {
        BudgetShare { budget: Arc::clone(self), bytes: 0 }
    }

    /// The bytes held now.
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }
}

impl BudgetShare {
    /// Adds the bytes of a request's body.
    ///
    /// # Errors
    /// [`BudgetExhausted`] if there is no room; nothing was added then.
    pub fn try_add(&mut self, bytes: usize) -> Result<(), BudgetExhausted> {
        let more = bytes as u64;
        let limit = match self.bytes + more {
            0..=SMALL_BODY => self.budget.bytes_max,
            _ => self.budget.bytes_max / 8 * LARGE_SHARE,
        };
        let added = self.budget.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| {
            held.checked_add(more).filter(|held| *held <= limit)
        });
        added.map_err(|_| BudgetExhausted)?;
        self.bytes += more;
        Ok(())
    }

    /// Adds the bytes of a response, or of a request that was accepted before.
    pub fn add(&mut self, bytes: usize) {
        self.budget.held.fetch_add(bytes as u64, Ordering::Relaxed);
        self.bytes += bytes as u64;
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_body_leaves_room_for_small_ones() {
        let budget = BodyBudget::new(8 << 20);
        let (mut large, mut small) = (budget.share(), budget.share());
        assert_eq!(large.try_add(7 << 20), Ok(()));
        assert_eq!(budget.share().try_add(1 << 20), Err(BudgetExhausted));
        assert_eq!(small.try_add(SMALL_BODY as usize), Ok(()));
        assert_eq!(small.try_add(1), Err(BudgetExhausted), "it is no small body any more");
        assert_eq!(budget.held(), (7 << 20) + SMALL_BODY);
    }

    #[test]
    fn nobody_is_let_in_while_responses_fill_the_budget() {
        let budget = BodyBudget::new(1 << 20);
        let mut response = budget.share();
        response.add(2 << 20);
        assert_eq!(budget.share().try_add(1), Err(BudgetExhausted));
        drop(response);
        assert_eq!(budget.share().try_add(1), Ok(()));
        assert_eq!(budget.held(), 0);
    }
}
