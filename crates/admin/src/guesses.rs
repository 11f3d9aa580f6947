//! Wrong tokens, by address: after several from one address, no token from there is looked at for a while.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use oncegate_domain::peer_network::peer_network;

/// The number of wrong tokens from one address within [`WRONG_WINDOW`] after which its tokens are not looked at.
const WRONG_MAX: usize = 5;
const WRONG_WINDOW: Duration = Duration::from_secs(60);
/// The number of wrong tokens that are remembered, from all addresses together.
const WRONG_REMEMBERED: usize = 1_000;

#[derive(Default)]
pub struct TokenGuesses(Mutex<VecDeque<(IpAddr, Instant)>>);

impl TokenGuesses {
    /// Returns the time until a token from this address is looked at again; `None` where it is looked at now.
    pub fn wait_before_token(&self, peer: IpAddr) -> Option<Duration> {
        let peer = peer_network(peer);
        let mut wrong = self.0.lock();
        wrong.retain(|(_, at)| at.elapsed() < WRONG_WINDOW);
        let mut of_peer = wrong.iter().rev().filter(|(of, _)| *of == peer);
        let (_, earliest) = of_peer.nth(WRONG_MAX - 1)?;
        Some(WRONG_WINDOW.saturating_sub(earliest.elapsed()))
    }

    pub fn count_wrong_token(&self, peer: IpAddr) {
        let mut wrong = self.0.lock();
        if wrong.len() >= WRONG_REMEMBERED {
            wrong.pop_front();
        }
        wrong.push_back((peer_network(peer), Instant::now()));
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    #[tokio::test(start_paused = true)]
    async fn an_address_with_wrong_tokens_waits_and_no_other_does() {
        let guesses = TokenGuesses::default();
        for _ in 0..WRONG_MAX {
            assert_eq!(guesses.wait_before_token(HERE), None);
            guesses.count_wrong_token(HERE);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(guesses.wait_before_token(HERE), Some(WRONG_WINDOW - Duration::from_secs(5)));
        assert_eq!(guesses.wait_before_token(THERE), None);
        advance(WRONG_WINDOW).await;
        assert_eq!(guesses.wait_before_token(HERE), None);
    }
}
