//! The sign-ins that people have begun at the issuer and that it has not answered yet.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::time::Instant;

use super::sessions::{SessionSecret, digest, is_same};
use crate::oidc::{Issuer, SignIn, SignInFault};
use oncegate_settings::OidcConfig;

/// The time for which a sign-in waits for the issuer: a password, a second factor, and a reset of either.
pub const SIGN_IN_MAX: Duration = Duration::from_secs(600);

/// The number of sign-ins that wait. Anybody who reaches the page can begin one: seven a second through ten minutes
/// fit, in 4 MiB. Beyond that the oldest one ends, so that a flood keeps nobody out who takes less time than it needs
/// to fill the table.
const PENDING_MAX: usize = 4_096;

/// The longest address of a page to which a sign-in leads back.
const NEXT_BYTES_MAX: usize = 512;

#[derive(Default)]
pub struct PendingSignIns(Mutex<Vec<PendingSignIn>>);

/// A sign-in that waits for the issuer. The state and the cookie are kept as digests, as that of a session is.
struct PendingSignIn {
    state: [u8; 32],
    /// The cookie of the browser that has begun it.
    browser: [u8; 32],
    sign_in: Arc<SignIn>,
    /// Whether the issuer has answered it. It stays for the rest of its time, so that a second answer is recognized.
    is_used: bool,
}

/// A sign-in that begins, with the two secrets by which its answer is recognized.
pub struct BegunSignIn {
    pub state: SessionSecret,
    pub browser: SessionSecret,
    pub sign_in: Arc<SignIn>,
}

impl PendingSignIns {
    /// Begins a sign-in with an issuer. It leads to a page, or to the overview if that address is too long.
    pub fn begin(&self, config: Arc<OidcConfig>, issuer: Arc<Issuer>, next: &str) -> BegunSignIn {
        let [state, browser, nonce, verifier] = [(); 4].map(|()| SessionSecret::new());
        let next = if next.len() <= NEXT_BYTES_MAX { next } else { "/" }.to_owned();
        let (nonce, verifier) = (nonce.reveal().to_owned(), verifier.reveal().to_owned());
        let sign_in = Arc::new(SignIn { issuer, config, nonce, verifier, next, begun: Instant::now() });
        let pending = PendingSignIn {
            state: digest(state.reveal().as_bytes()),
            browser: digest(browser.reveal().as_bytes()),
            sign_in: Arc::clone(&sign_in),
            is_used: false,
        };
        let mut all = self.0.lock();
        all.retain(|pending| pending.sign_in.begun.elapsed() < SIGN_IN_MAX);
        if all.len() >= PENDING_MAX {
            // They are in the order in which they have begun.
            all.remove(0);
        }
        all.push(pending);
        BegunSignIn { state, browser, sign_in }
    }

    /// Takes the sign-in of this state, which the browser with this cookie has begun. It can be taken once.
    pub fn take(&self, state: &[u8], browser: &[u8]) -> Result<Arc<SignIn>, SignInFault> {
        let (state, browser) = (digest(state), digest(browser));
        let mut all = self.0.lock();
        all.retain(|pending| pending.sign_in.begun.elapsed() < SIGN_IN_MAX);
        let pending = all.iter_mut().find(|pending| is_same(&pending.state, &state)).ok_or(SignInFault::Unknown)?;
        // Before its use is noted: somebody who knows the state alone cannot use it up.
        if !is_same(&pending.browser, &browser) {
            return Err(SignInFault::OtherBrowser);
        }
        if std::mem::replace(&mut pending.is_used, true) {
            return Err(SignInFault::Used);
        }
        Ok(Arc::clone(&pending.sign_in))
    }

    pub fn end_all(&self) {
        self.0.lock().clear();
    }
}

#[cfg(test)]
mod tests {
    use http::uri::Authority;
    use serde_json::json;
    use tokio::time::advance;

    use super::*;
    use oncegate_settings::PageUrl;

    fn begin(pending: &PendingSignIns, next: &str) -> BegunSignIn {
        let config = OidcConfig {
            issuer: "https://issuer.example".into(),
            client_id: "page".into(),
            client_secret: None,
            url: PageUrl { is_https: true, authority: Authority::from_static("page.example") },
            roles_claim: "groups".into(),
            read: Vec::new(),
            operate: vec!["ops".into()],
        };
        let url = "https://issuer.example/x";
        let description = json!({
            "issuer": config.issuer, "authorization_endpoint": url, "token_endpoint": url, "jwks_uri": url
        });
        let issuer = Issuer::new(serde_json::from_value(description).unwrap(), &config).unwrap();
        pending.begin(Arc::new(config), Arc::new(issuer), next)
    }

    fn take(pending: &PendingSignIns, begun: &BegunSignIn) -> Result<String, SignInFault> {
        let taken = pending.take(begun.state.reveal().as_bytes(), begun.browser.reveal().as_bytes());
        taken.map(|answered| answered.next.clone())
    }

    #[tokio::test(start_paused = true)]
    async fn a_sign_in_is_taken_once_by_its_browser_within_ten_minutes() {
        let pending = PendingSignIns::default();
        let (one, other) = (begin(&pending, "/keys"), begin(&pending, &"/".repeat(NEXT_BYTES_MAX + 1)));
        let mixed = pending.take(one.state.reveal().as_bytes(), other.browser.reveal().as_bytes());
        assert_eq!(mixed.err(), Some(SignInFault::OtherBrowser));
        assert_eq!(pending.take(b"", one.browser.reveal().as_bytes()).err(), Some(SignInFault::Unknown));
        advance(SIGN_IN_MAX - Duration::from_secs(1)).await;
        assert_eq!(take(&pending, &one), Ok("/keys".into()));
        assert_eq!(take(&pending, &one), Err(SignInFault::Used));
        advance(Duration::from_secs(1)).await;
        assert_eq!(take(&pending, &other), Err(SignInFault::Unknown), "its time is over");
        let last = begin(&pending, &"/".repeat(NEXT_BYTES_MAX + 1));
        assert_eq!(take(&pending, &last), Ok("/".into()), "a long address is not kept");
    }

    #[test]
    fn a_flood_of_sign_ins_ends_the_oldest_ones() {
        let pending = PendingSignIns::default();
        let all: Vec<_> = (0..=PENDING_MAX).map(|_| begin(&pending, "/")).collect();
        assert_eq!(take(&pending, &all[0]), Err(SignInFault::Unknown));
        assert_eq!(take(&pending, &all[1]), Ok("/".into()));
        assert_eq!(pending.0.lock().len(), PENDING_MAX);
    }
}
