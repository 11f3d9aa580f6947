//! Tokens and the keys of their issuer.

use std::time::Duration;

use oncegate_trust::jwt::{Algorithm, KeySet, TokenRules, verify};

/// Two public keys. Their private keys were deleted when they were made, so nobody can sign a token for them.
const KEYS: &str = r#"{"keys": [
    {"kty": "OKP", "crv": "Ed25519", "kid": "one", "x": "2qSuAmKQoclnq_VvCp68KtXXlp_um06uaoDxygEp_RY"},
    {"kty": "EC", "crv": "P-256", "kid": "two",
     "x": "0PgJNAeU3ekfonCxCf5wMk8aFkRaa_k9_-kiSNZa7FY",
     "y": "xkHyABgs9sxln8zWNkfhUUq09-43IZzcDsE1K9T0h5g"}]}"#;

/// Checks an input as a key set and, from its first line feed on, as a token:
///
/// - no token is verified by keys that nobody can sign for;
/// - nothing panics, whatever the key set and the token are, and a key set of more than 1 MiB is refused.
pub fn check(input: &[u8]) {
    let end = input.iter().position(|byte| *byte == b'\n').unwrap_or(0);
    let (key_set, token) = (&input[..end], String::from_utf8_lossy(input.get(end + 1..).unwrap_or_default()));
    let algorithms = vec![Algorithm::EdDSA, Algorithm::ES256, Algorithm::RS256];
    let rules = TokenRules {
        issuer: "https://issuer.example".into(),
        audience: vec!["payments".into()],
        algorithms: algorithms.clone(),
        leeway: Duration::from_secs(30),
        claims: ["sub".into()].into(),
        required: Vec::new(),
    };
    let ours = KeySet::parse(KEYS.as_bytes(), &algorithms).expect("the keys of this file are a key set");
    for text in [&*token, &String::from_utf8_lossy(input)] {
        assert!(verify(text, &ours, &rules).is_err(), "a token that nobody has signed");
    }
    if let Ok(theirs) = KeySet::parse(key_set, &algorithms) {
        // Whoever writes the keys can sign: only that it ends.
        let _ = verify(&token, &theirs, &rules);
    }
    assert!(KeySet::parse(&vec![b' '; (1 << 20) + 1], &algorithms).is_err());
}
