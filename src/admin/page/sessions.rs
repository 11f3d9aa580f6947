//! Who is signed in at the operators' page, and what its forms must bring back.
//!
//! All of it is in this process's memory: a restart signs everybody out, which costs an operator one more look at the
//! token and leaves nothing to be stolen from a disk.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use sha2::{Digest, Sha256};
use tokio::time::Instant;

/// A night's shift.
pub const LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);
/// A browser that somebody has left open.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// More operators than look at one instance; the one that was used longest ago goes first.
const SESSIONS_MAX: usize = 64;
/// Wrong tokens from one address within [`WRONG_WINDOW`], before it is not listened to for a while.
const WRONG_MAX: usize = 5;
const WRONG_WINDOW: Duration = Duration::from_secs(60);
/// Wrong tokens that are remembered, from all addresses together.
const WRONG_REMEMBERED: usize = 1_000;

/// Text that nobody guesses. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// 256 bits.
    fn new() -> Self {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the operating system gives random bytes, as it did at the start");
        Self(BASE64_URL_SAFE_NO_PAD.encode(random))
    }

    /// For whom it is meant.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is it. The digests are compared to their ends, so that the time tells nothing of it.
    pub fn is(&self, shown: &[u8]) -> bool {
        is_same(&digest(self.0.as_bytes()), &digest(shown))
    }
}

/// Who looks at the page.
#[derive(Clone)]
pub struct Visitor {
    /// What each form of theirs must bring back: another site's page cannot read it (CSRF).
    pub form: Secret,
    /// The name that they claim, for the audit log.
    pub name: String,
    /// Whether there is something to sign out of.
    pub is_signed_in: bool,
}

/// The open sessions.
pub struct Sessions {
    /// Of those who need no session, and of the form for signing in.
    form: Secret,
    open: Mutex<Vec<Session>>,
    wrong: Mutex<VecDeque<(IpAddr, Instant)>>,
}

/// The cookie's value is kept as a digest: what is looked up by it is not found by how long that takes.
struct Session {
    id: [u8; 32],
    peer: IpAddr,
    visitor: Visitor,
    begun: Instant,
    used: Instant,
}

impl Session {
    fn is_over(&self) -> bool {
        self.begun.elapsed() >= LIFETIME || self.used.elapsed() >= IDLE_MAX
    }
}

impl Sessions {
    /// None yet.
    pub fn new() -> Self {
        Self { form: Secret::new(), open: Mutex::default(), wrong: Mutex::default() }
    }

    /// Whoever needs no session: on a listener without a token, or who shows it with each request.
    pub fn anybody(&self) -> Visitor {
        Visitor { form: self.form.clone(), name: String::new(), is_signed_in: false }
    }

    /// Whose cookie this is, from the address that it was given to.
    pub fn visitor(&self, cookie: &[u8], peer: IpAddr) -> Option<Visitor> {
        let id = digest(cookie);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session| !session.is_over());
        let session = open.iter_mut().find(|session| is_same(&session.id, &id) && session.peer == peer)?;
        session.used = Instant::now();
        Some(session.visitor.clone())
    }

    /// A new session; its cookie's value.
    pub fn sign_in(&self, name: String, peer: IpAddr) -> Secret {
        let cookie = Secret::new();
        let now = Instant::now();
        let visitor = Visitor { form: Secret::new(), name, is_signed_in: true };
        let session = Session { id: digest(cookie.0.as_bytes()), peer, visitor, begun: now, used: now };
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|session| !session.is_over());
        if open.len() >= SESSIONS_MAX
            && let Some(oldest) = (0..open.len()).min_by_key(|at| open[*at].used)
        {
            open.swap_remove(oldest);
        }
        open.push(session);
        cookie
    }

    /// Ends the session of that cookie.
    pub fn sign_out(&self, cookie: &[u8]) {
        let id = digest(cookie);
        self.open.lock().unwrap_or_else(PoisonError::into_inner).retain(|session| !is_same(&session.id, &id));
    }

    /// How long an address must wait before another token of its is looked at.
    pub fn must_wait(&self, peer: IpAddr) -> Option<Duration> {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        wrong.retain(|(_, at)| at.elapsed() < WRONG_WINDOW);
        let mut of_peer = wrong.iter().rev().filter(|(of, _)| *of == peer);
        let (_, earliest) = of_peer.nth(WRONG_MAX - 1)?;
        Some(WRONG_WINDOW.saturating_sub(earliest.elapsed()))
    }

    /// That a token was wrong.
    pub fn was_wrong(&self, peer: IpAddr) {
        let mut wrong = self.wrong.lock().unwrap_or_else(PoisonError::into_inner);
        if wrong.len() >= WRONG_REMEMBERED {
            wrong.pop_front();
        }
        wrong.push_back((peer, Instant::now()));
    }
}

fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.iter().zip(other).fold(0, |differ, (one, other)| differ | (one ^ other)) == 0
}

#[cfg(test)]
mod tests {
    use tokio::time::advance;

    use super::*;

    const HERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 0, 0, 7));

    #[tokio::test(start_paused = true)]
    async fn a_session_ends_by_its_age_by_idleness_and_by_signing_out() {
        let sessions = Sessions::new();
        let cookie = sessions.sign_in("alice".into(), HERE);
        assert_eq!(sessions.visitor(cookie.reveal().as_bytes(), HERE).unwrap().name, "alice");
        assert!(sessions.visitor(cookie.reveal().as_bytes(), THERE).is_none(), "it is of another address");
        assert!(sessions.visitor(b"", HERE).is_none());
        for _ in 0..15 {
            advance(Duration::from_secs(30 * 60)).await;
            assert!(sessions.visitor(cookie.reveal().as_bytes(), HERE).is_some(), "it is in use");
        }
        advance(Duration::from_secs(30 * 60)).await;
        assert!(sessions.visitor(cookie.reveal().as_bytes(), HERE).is_none(), "its time is over");
        let cookie = sessions.sign_in("alice".into(), HERE);
        advance(IDLE_MAX).await;
        assert!(sessions.visitor(cookie.reveal().as_bytes(), HERE).is_none(), "nobody has used it");
        let (one, other) = (sessions.sign_in("alice".into(), HERE), sessions.sign_in("bob".into(), HERE));
        sessions.sign_out(one.reveal().as_bytes());
        assert!(sessions.visitor(one.reveal().as_bytes(), HERE).is_none());
        assert_eq!(sessions.visitor(other.reveal().as_bytes(), HERE).unwrap().name, "bob");
    }

    #[tokio::test(start_paused = true)]
    async fn there_are_so_many_sessions_and_the_one_used_longest_ago_goes() {
        let sessions = Sessions::new();
        let mut cookies = Vec::new();
        for _ in 0..SESSIONS_MAX {
            cookies.push(sessions.sign_in(String::new(), HERE));
            advance(Duration::from_secs(1)).await;
        }
        assert!(sessions.visitor(cookies[0].reveal().as_bytes(), HERE).is_some());
        sessions.sign_in(String::new(), HERE);
        let open: Vec<_> =
            cookies.iter().map(|cookie| sessions.visitor(cookie.reveal().as_bytes(), HERE).is_some()).collect();
        assert_eq!(open.iter().filter(|open| **open).count(), SESSIONS_MAX - 1);
        assert!(open[0] && !open[1]);
    }

    #[tokio::test(start_paused = true)]
    async fn who_shows_wrong_tokens_waits_and_nobody_else_does() {
        let sessions = Sessions::new();
        for _ in 0..WRONG_MAX {
            assert_eq!(sessions.must_wait(HERE), None);
            sessions.was_wrong(HERE);
            advance(Duration::from_secs(1)).await;
        }
        assert_eq!(sessions.must_wait(HERE), Some(WRONG_WINDOW - Duration::from_secs(5)));
        assert_eq!(sessions.must_wait(THERE), None);
        advance(WRONG_WINDOW).await;
        assert_eq!(sessions.must_wait(HERE), None);
    }

    #[test]
    fn a_secret_is_itself_alone() {
        let (one, other) = (Secret::new(), Secret::new());
        assert_eq!(one.reveal().len(), 43);
        assert!(one.is(one.reveal().as_bytes()));
        for wrong in [other.reveal(), "", &one.reveal()[1..]] {
            assert!(!one.is(wrong.as_bytes()), "{wrong}");
        }
    }
}
