//! Sessions of the operators' page, and the secrets that its forms must bring back.
//!
//! All of it is in this process's memory: a restart signs everybody out, which costs an operator one more use of the
//! token and leaves nothing to be stolen from a disk.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine;
use base64::prelude::BASE64_URL_SAFE_NO_PAD;
use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;
use tokio::time::Instant;

use crate::auth::{Grant, Role};
use crate::oidc::Person;

/// The time after which a session ends: a night's shift.
// See docs/decisions/0029-guard-the-admin-listener.md.
pub const LIFETIME: Duration = Duration::from_secs(8 * 60 * 60);
/// The time after which an unused session ends, in a browser that somebody has left open.
const IDLE_MAX: Duration = Duration::from_secs(60 * 60);
/// The maximum number of sessions, more than one instance has operators. The one that was used longest ago ends first.
const SESSIONS_MAX: usize = 64;
/// The maximum number of sessions of one person: a desk, a laptop, a phone and one more. Their own one that was used
/// longest ago ends first, so that nobody ends those of others.
const SESSIONS_OF_PERSON_MAX: usize = 4;
/// A text that nobody can guess. It is never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionSecret(String);

impl SessionSecret {
    pub fn new() -> Self {
        let mut random = [0; 32];
        getrandom::fill(&mut random).expect("the operating system gives random bytes, as it did at the start");
        Self(BASE64_URL_SAFE_NO_PAD.encode(random))
    }

    /// The secret of the forms of a page about this service: a form counts for the service that it was shown for.
    pub fn of_service(&self, service: &str) -> Self {
        Self(BASE64_URL_SAFE_NO_PAD.encode(digest(format!("{} {service}", self.0).as_bytes())))
    }

    /// Returns the text, for its browser alone.
    pub fn reveal(&self) -> &str {
        &self.0
    }

    /// Whether this is the text. The digests are compared in constant time, so that the time reveals nothing.
    pub fn is(&self, shown: &[u8]) -> bool {
        is_same(&digest(self.0.as_bytes()), &digest(shown))
    }
}

#[derive(Clone)]
pub struct Visitor {
    /// The secret that each of their forms must bring back: another site's page cannot read it (CSRF).
    pub form: SessionSecret,
    /// The claimed name, or that of the person.
    pub name: String,
    /// The person, where the issuer has signed them in. The audit log has them and not a claimed name.
    pub person: Option<Person>,
    pub is_signed_in: bool,
    pub role: Role,
    /// The only service that they see; `None` for all.
    pub service: Option<Arc<str>>,
}

impl Visitor {
    pub fn may_see(&self, service: &Arc<str>) -> bool {
        self.service.as_ref().is_none_or(|only| only == service)
    }
}

pub struct Sessions {
    /// The secret of visitors without a session, and of the form for signing in.
    form: SessionSecret,
    open: Mutex<Vec<Session>>,
}

/// A session. The cookie's value is kept as a digest, so that the time of a lookup reveals nothing.
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
    pub fn new() -> Self {
        Self { form: SessionSecret::new(), open: Mutex::default() }
    }

    /// Returns a visitor without a session: on an open listener, or with a token in each request.
    pub fn anonymous_visitor(&self, Grant { role, service }: Grant) -> Visitor {
        Visitor { form: self.form.clone(), name: String::new(), person: None, is_signed_in: false, role, service }
    }

    pub fn sign_in_form(&self) -> &SessionSecret {
        &self.form
    }

    /// Returns the visitor with this cookie; `None` where it is not valid, or comes from another address than it was
    /// given to. A refresh, which nobody asked for, does not count as use.
    pub fn find_visitor(&self, cookie: &[u8], peer: IpAddr, is_refresh: bool) -> Option<Visitor> {
        let id = digest(cookie);
        let mut open = self.open.lock();
        open.retain(|session| !session.is_over());
        let session = open.iter_mut().find(|session| is_same(&session.id, &id) && session.peer == peer)?;
        if !is_refresh {
            session.used = Instant::now();
        }
        Some(session.visitor.clone())
    }

    /// Opens a session for a visitor who shows the token and claims a name. Returns the cookie's value.
    pub fn sign_in(&self, name: String, grant: Grant, peer: IpAddr) -> SessionSecret {
        self.open(name, None, grant, peer)
    }

    /// Opens a session for a person whom the issuer has signed in. Returns the cookie's value.
    pub fn sign_person_in(&self, person: Person, role: Role, peer: IpAddr) -> SessionSecret {
        self.open(person.name.clone(), Some(person), role.into(), peer)
    }

    fn open(&self, name: String, person: Option<Person>, grant: Grant, peer: IpAddr) -> SessionSecret {
        let cookie = SessionSecret::new();
        let now = Instant::now();
        let Grant { role, service } = grant;
        let visitor = Visitor { form: SessionSecret::new(), name, person, is_signed_in: true, role, service };
        let session = Session { id: digest(cookie.0.as_bytes()), peer, visitor, begun: now, used: now };
        let mut open = self.open.lock();
        open.retain(|session| !session.is_over());
        let is_own = |other: &Session| {
            let persons = other.visitor.person.as_ref().zip(session.visitor.person.as_ref());
            persons.is_some_and(|(other, own)| other.is_same(own))
        };
        let own: Vec<_> = (0..open.len()).filter(|at| is_own(&open[*at])).collect();
        let ending = match own.len() >= SESSIONS_OF_PERSON_MAX {
            true => own,
            false if open.len() >= SESSIONS_MAX => (0..open.len()).collect(),
            false => Vec::new(),
        };
        if let Some(oldest) = ending.into_iter().min_by_key(|at| open[*at].used) {
            open.swap_remove(oldest);
        }
        open.push(session);
        cookie
    }

    pub fn sign_out_all(&self) {
        self.open.lock().clear();
    }

    pub fn sign_out(&self, cookie: &[u8]) {
        let id = digest(cookie);
        self.open.lock().retain(|session| !is_same(&session.id, &id));
    }
}

pub fn digest(bytes: &[u8]) -> [u8; 32] {
    Sha256::digest(bytes).into()
}

pub fn is_same(one: &[u8; 32], other: &[u8; 32]) -> bool {
    one.ct_eq(other).into()
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
        let cookie = sessions.sign_in("alice".into(), Role::Operator.into(), HERE);
        assert_eq!(sessions.find_visitor(cookie.reveal().as_bytes(), HERE, false).unwrap().name, "alice");
        assert!(sessions.find_visitor(cookie.reveal().as_bytes(), THERE, false).is_none(), "it is of another address");
        assert!(sessions.find_visitor(b"", HERE, false).is_none());
        for _ in 0..15 {
            advance(Duration::from_secs(30 * 60)).await;
            assert!(sessions.find_visitor(cookie.reveal().as_bytes(), HERE, false).is_some(), "it is in use");
        }
        advance(Duration::from_secs(30 * 60)).await;
        assert!(sessions.find_visitor(cookie.reveal().as_bytes(), HERE, false).is_none(), "its time is over");
        let cookie = sessions.sign_in("alice".into(), Role::Operator.into(), HERE);
        advance(IDLE_MAX / 2).await;
        assert!(sessions.find_visitor(cookie.reveal().as_bytes(), HERE, true).is_some(), "a page is refreshed");
        advance(IDLE_MAX / 2).await;
        assert!(sessions.find_visitor(cookie.reveal().as_bytes(), HERE, false).is_none(), "nobody has used it");
        let (one, other) = (
            sessions.sign_in("alice".into(), Role::Operator.into(), HERE),
            sessions.sign_in("bob".into(), Role::Operator.into(), HERE),
        );
        sessions.sign_out(one.reveal().as_bytes());
        assert!(sessions.find_visitor(one.reveal().as_bytes(), HERE, false).is_none());
        assert_eq!(sessions.find_visitor(other.reveal().as_bytes(), HERE, false).unwrap().name, "bob");
    }

    #[tokio::test(start_paused = true)]
    async fn beyond_the_limit_the_session_used_longest_ago_ends() {
        let sessions = Sessions::new();
        let mut cookies = Vec::new();
        for _ in 0..SESSIONS_MAX {
            cookies.push(sessions.sign_in(String::new(), Role::Operator.into(), HERE));
            advance(Duration::from_secs(1)).await;
        }
        assert!(sessions.find_visitor(cookies[0].reveal().as_bytes(), HERE, false).is_some());
        sessions.sign_in(String::new(), Role::Operator.into(), HERE);
        let open: Vec<_> = cookies
            .iter()
            .map(|cookie| sessions.find_visitor(cookie.reveal().as_bytes(), HERE, false).is_some())
            .collect();
        assert_eq!(open.iter().filter(|open| **open).count(), SESSIONS_MAX - 1);
        assert!(open[0] && !open[1]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_person_with_many_sessions_ends_their_own_ones() {
        let sessions = Sessions::new();
        let person =
            |subject: &str, issuer: &str| Person { subject: subject.into(), issuer: issuer.into(), name: "ann".into() };
        let is_open = |cookie: &SessionSecret| sessions.find_visitor(cookie.reveal().as_bytes(), HERE, true).is_some();
        let by_token = sessions.sign_in("ann".into(), Role::Operator.into(), HERE);
        let others = [("s-bob", "1"), ("s-ann", "2")]
            .map(|(subject, issuer)| sessions.sign_person_in(person(subject, issuer), Role::Reader, HERE));
        let mut own = Vec::new();
        for _ in 0..SESSIONS_MAX {
            advance(Duration::from_secs(1)).await;
            own.push(sessions.sign_person_in(person("s-ann", "1"), Role::Reader, HERE));
        }
        assert!(is_open(&by_token) && others.iter().all(is_open));
        let (ended, open) = own.split_at(SESSIONS_MAX - SESSIONS_OF_PERSON_MAX);
        assert!(!ended.iter().any(is_open) && open.iter().all(is_open));
    }

    #[test]
    fn a_secret_equals_only_its_own_text() {
        let (one, other) = (SessionSecret::new(), SessionSecret::new());
        assert_eq!(one.reveal().len(), 43);
        assert!(one.is(one.reveal().as_bytes()));
        for wrong in [other.reveal(), "", &one.reveal()[1..]] {
            assert!(!one.is(wrong.as_bytes()), "{wrong}");
        }
    }
}
