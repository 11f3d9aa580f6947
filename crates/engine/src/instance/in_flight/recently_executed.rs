//! The tokens of attempts that ended lately and may have executed.

use std::collections::{HashMap, HashSet, VecDeque};
use std::time::Duration;

use crate::instance::boot_time::BootInstant;
use oncegate_domain::ids::Token;

/// At most this many tokens are kept: 8 MiB. At 2,000 attempts a second that is five minutes, at 10,000 more than one.
// See docs/decisions/0002-repair-lost-rows.md.
const TOKENS_MAX: usize = 700_000;

/// Half a token in two pieces, and the second in which the attempt ended: 12 bytes, because there are many. If another
/// token has the same half, its row is called unknown where it could have been released.
#[derive(Clone, Copy, Debug)]
struct ExecutedToken([u32; 3]);

impl ExecutedToken {
    fn new(token: Token, ended_at: BootInstant) -> Self {
        let [high, low] = Self::half(token);
        Self([high, low, Self::second(ended_at)])
    }

    fn half(token: Token) -> [u32; 2] {
        let half = token.as_bytes().first_chunk().map_or(0, |half| u64::from_le_bytes(*half));
        [(half >> 32) as u32, half as u32]
    }

    fn second(time: BootInstant) -> u32 {
        // The number overflows 130 years after the machine started.
        u32::try_from(time.millis() / 1_000).unwrap_or(u32::MAX)
    }

    fn age(self, time: BootInstant) -> Duration {
        Duration::from_secs(Self::second(time).saturating_sub(self.0[2]).into())
    }
}

/// A queue of tokens, the oldest first.
#[derive(Debug, Default)]
pub struct RecentlyExecuted(VecDeque<ExecutedToken>);

impl RecentlyExecuted {
    /// Adds a token. If the queue is full, the oldest one leaves.
    pub fn push(&mut self, token: Token, ended_at: BootInstant) {
        self.push_within(token, ended_at, TOKENS_MAX);
    }

    fn push_within(&mut self, token: Token, ended_at: BootInstant, tokens_max: usize) {
        if self.0.len() >= tokens_max {
            self.0.pop_front();
        }
        self.0.push_back(ExecutedToken::new(token, ended_at));
    }

    /// The subset of `tokens` that is in the queue.
    pub fn find(&self, tokens: Vec<Token>) -> HashSet<Token> {
        let wanted: HashMap<[u32; 2], Token> =
            tokens.into_iter().map(|token| (ExecutedToken::half(token), token)).collect();
        self.0.iter().filter_map(|executed| wanted.get(&[executed.0[0], executed.0[1]]).copied()).collect()
    }

    /// Removes the tokens that are older than `age` at `time`.
    pub fn forget(&mut self, time: BootInstant, age: Duration) {
        while self.0.pop_front_if(|executed| executed.age(time) > age).is_some() {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_loses_its_oldest_tokens() {
        let mut executed = RecentlyExecuted::default();
        let tokens = [1, 2, 3, 4].map(|byte| Token::from_random([byte; 16]));
        tokens.into_iter().for_each(|token| executed.push_within(token, BootInstant::now(), 2));
        assert_eq!(executed.find(tokens.to_vec()), HashSet::from([tokens[2], tokens[3]]));
    }
}
