//! The number and the size of outcomes that the store does not have yet.

/// The outcomes that wait for the store in memory, of all keys and attempts. During an outage a route with
/// `store_down = "bypass"` adds one with each request.
#[derive(Debug, Default)]
pub struct WaitingOutcomes {
    count: usize,
    bytes: usize,
}

/// With its task, record and fields an outcome takes about 4 KiB: 64 MiB of them, and as much of responses, leave room
/// for the rest in 384 MiB. At 50 bypassed requests a second the number lasts for five minutes.
// See docs/decisions/0006-bypass-as-an-attempt.md.
const OUTCOMES_MAX: usize = 16 * 1024;
const BYTES_MAX: usize = 64 * 1024 * 1024;

impl WaitingOutcomes {
    pub fn add(&mut self, bytes: usize) {
        self.count += 1;
        self.bytes += bytes;
    }

    pub fn remove(&mut self, bytes: usize) {
        self.count -= 1;
        self.bytes -= bytes;
    }

    /// Whether a limit is reached. The attempts that run then may still exceed it.
    pub fn is_full(&self) -> bool {
        self.count >= OUTCOMES_MAX || self.bytes >= BYTES_MAX
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outcomes_that_wait_are_limited_in_number_and_bytes() {
        let mut waiting = WaitingOutcomes::default();
        (1..OUTCOMES_MAX).for_each(|_| waiting.add(0));
        assert!(!waiting.is_full());
        waiting.add(0);
        assert!(waiting.is_full(), "the number");
        waiting.remove(0);
        assert!(!waiting.is_full());
        waiting.remove(0);
        waiting.add(BYTES_MAX);
        assert!(waiting.is_full(), "the bytes");
    }
}
