//! The actors in the audit log: a claimed name or a person whom the issuer has signed in, and the client's place.

use std::net::IpAddr;

use sha2::{Digest, Sha256};

use oncegate_settings::OidcConfig;

/// The name that the client claims, and the client's place.
fn actor(claimed: Option<&[u8]>, place: &str) -> String {
    match claimed.map(clean_name).filter(|name| !name.is_empty()) {
        Some(name) => format!("{name} (claimed) {place}"),
        None => format!("operator {place}"),
    }
}

pub fn remote_actor(peer: IpAddr, claimed: Option<&[u8]>) -> String {
    actor(claimed, &format!("at {}", peer.to_canonical()))
}

/// Returns the actor of a request from the command line, with the user's name.
pub fn terminal_actor(user: &[u8]) -> String {
    actor(Some(user), "on the command line")
}

/// Returns the actor of a request by a person whom the issuer has signed in: their name, and the issuer's own one,
/// which nobody else has there. A claimed name has no parentheses, and cannot look like it.
pub fn person_actor(name: &str, subject: &str, issuer: &str, peer: IpAddr) -> String {
    let (name, subject) = (clean_name(name.as_bytes()), clean_text(subject.as_bytes(), SUBJECT_LENGTH_MAX));
    format!("{name} (signed in as {subject} by {issuer}) at {}", peer.to_canonical())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignedInPerson<'a> {
    /// The issuer's own name of them.
    pub subject: &'a str,
    pub issuer: &'a str,
}

/// The person in such an actor; `None` for an actor whose name is claimed.
pub fn person_of(actor: &str) -> Option<SignedInPerson<'_>> {
    let (_, rest) = actor.split_once(" (signed in as ")?;
    let (subject, issuer) = rest.split_once(") at ")?.0.rsplit_once(" by ")?;
    Some(SignedInPerson { subject, issuer })
}

/// A short text for an issuer and its client. Some issuers name a person differently for each client (OpenID Connect
/// Core section 8).
pub fn issuer_digest(oidc: &OidcConfig) -> String {
    let digest = Sha256::digest(format!("{}\n{}", oidc.issuer, oidc.client_id));
    digest.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}

/// The longest name that an issuer gives a person (OpenID Connect Core section 2).
const SUBJECT_LENGTH_MAX: usize = 255;

const NAME_LENGTH_MAX: usize = 64;

fn clean_name(claimed: &[u8]) -> String {
    clean_text(claimed, NAME_LENGTH_MAX)
}

/// Cuts a text, and leaves out characters that a terminal or a log would interpret.
fn clean_text(text: &[u8], length_max: usize) -> String {
    let text = String::from_utf8_lossy(text);
    let safe = text
        .chars()
        .filter(|c| !c.is_control() && !matches!(c, '(' | ')' | '\u{200e}'..='\u{202e}' | '\u{2066}'..='\u{2069}'));
    safe.take(length_max).collect::<String>().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_actor_is_named_and_cannot_claim_to_be_somebody_elses_entry() {
        let peer = "::ffff:10.0.0.7".parse().unwrap();
        assert_eq!(remote_actor(peer, None), "operator at 10.0.0.7");
        assert_eq!(remote_actor(peer, Some(b"  alice ")), "alice (claimed) at 10.0.0.7");
        assert_eq!(remote_actor(peer, Some(b"\r\n\x1b[31mx")), "[31mx (claimed) at 10.0.0.7");
        assert_eq!(
            remote_actor(peer, Some(b"bob (claimed) at 1.2.3.4")),
            "bob claimed at 1.2.3.4 (claimed) at 10.0.0.7"
        );
        assert_eq!(remote_actor(peer, Some(&[b'a'; 1000])).len(), 64 + " (claimed) at 10.0.0.7".len());
        assert_eq!(remote_actor(peer, Some(b"\xff")), "\u{fffd} (claimed) at 10.0.0.7");
        let ann = person_actor("ann (x)", "7f (y) by z", "1a2b3c4d", peer);
        assert_eq!(ann, "ann x (signed in as 7f y by z by 1a2b3c4d) at 10.0.0.7");
        assert_eq!(person_of(&ann), Some(SignedInPerson { subject: "7f y by z", issuer: "1a2b3c4d" }));
        for claimed in [&b"ann"[..], b"ann (signed in as 7f by 1a2b3c4d) at 1.2.3.4", b""] {
            assert_eq!(person_of(&remote_actor(peer, Some(claimed))), None);
        }
        assert_eq!(terminal_actor(b""), "operator on the command line");
    }
}
