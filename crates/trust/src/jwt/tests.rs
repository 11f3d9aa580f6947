//! One token for each rule, and the fault of a token that breaks it.

use jsonwebtoken::{EncodingKey, Header, encode, get_current_timestamp};
use serde_json::{Value, json};

use super::*;

const SECRET: &[u8] = b"a secret that is as long as a SHA-256 hash";

fn rules() -> TokenRules {
    TokenRules {
        issuer: "https://issuer".into(),
        audience: vec!["pay".into(), "refund".into()],
        algorithms: vec![Algorithm::HS256],
        leeway: Duration::from_secs(30),
        claims: ["sub", "tenant"].into_iter().map(Into::into).collect(),
        required: Vec::new(),
    }
}

fn secret_set(id: &str) -> Value {
    let secret = base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, SECRET);
    json!({ "keys": [{ "kty": "oct", "kid": id, "k": secret }] })
}

fn keys(set: &Value) -> KeySet {
    KeySet::parse(set.to_string().as_bytes(), &[Algorithm::HS256]).unwrap()
}

fn claims() -> Value {
    let now = get_current_timestamp();
    json!({ "iss": "https://issuer", "aud": "pay", "exp": now + 60, "nbf": now - 60, "sub": "alice" })
}

fn with(name: &str, value: Value) -> Value {
    let mut claims = claims();
    claims[name] = value;
    claims
}

fn without(name: &str) -> Value {
    let mut claims = claims();
    claims.as_object_mut().unwrap().remove(name);
    claims
}

fn header(id: Option<&str>) -> Header {
    Header { kid: id.map(str::to_owned), ..Header::new(Algorithm::HS256) }
}

fn sign(header: &Header, claims: &Value) -> String {
    encode(header, claims, &EncodingKey::from_secret(SECRET)).unwrap()
}

/// The fault of a token with these claims, whose signature is right.
fn fault(claims: &Value) -> Option<TokenFault> {
    verify(&sign(&header(Some("a")), claims), &keys(&secret_set("a")), &rules()).err()
}

fn tenant(value: Value) -> ClaimReading {
    let token = sign(&header(Some("a")), &with("tenant", value));
    verify(&token, &keys(&secret_set("a")), &rules()).unwrap().claim("tenant").clone()
}

#[test]
fn each_claim_of_the_rules_is_required_and_checked() {
    let now = get_current_timestamp();
    for (claims, expected) in [
        (claims(), None),
        (with("exp", json!(now - 20)), None),
        (with("exp", json!(now as f64 + 0.5)), None),
        (with("nbf", json!(now + 20)), None),
        (without("nbf"), None),
        (with("aud", json!(["other", "refund"])), None),
        (with("exp", json!(now - 40)), Some(TokenFault::Expired)),
        (with("exp", json!("never")), Some(TokenFault::Expired)),
        (without("exp"), Some(TokenFault::Expired)),
        (with("nbf", json!(now + 60)), Some(TokenFault::NotYetValid)),
        (with("nbf", json!("never")), Some(TokenFault::Malformed)),
        (with("aud", json!("other")), Some(TokenFault::Audience)),
        (with("aud", json!(["other"])), Some(TokenFault::Audience)),
        (with("aud", json!([])), Some(TokenFault::Audience)),
        (with("aud", json!({ "pay": 1 })), Some(TokenFault::Audience)),
        (without("aud"), Some(TokenFault::Audience)),
        (with("iss", json!("https://issuer/")), Some(TokenFault::Issuer)),
        (with("iss", json!(["https://issuer", "https://other"])), Some(TokenFault::Issuer)),
        (with("iss", json!(7)), Some(TokenFault::Issuer)),
        (without("iss"), Some(TokenFault::Issuer)),
        (json!(["iss"]), Some(TokenFault::Malformed)),
    ] {
        assert_eq!(fault(&claims), expected, "{claims}");
    }
}

#[test]
fn a_claim_identifies_by_its_type_and_its_text() {
    let value = |text: &str| ClaimReading::Value(text.as_bytes().into());
    for (claim, expected) in [
        (json!("alice"), value("salice")),
        (json!("1"), value("s1")),
        (json!(1), value("n1")),
        (json!(-1), value("n-1")),
        (json!(u64::MAX), value("n18446744073709551615")),
        (json!("true"), value("strue")),
        (json!(true), value("btrue")),
        (json!(null), ClaimReading::Absent),
        (json!(""), ClaimReading::Absent),
        (json!(1.5), ClaimReading::Unusable),
        (json!(1e30), ClaimReading::Unusable),
        (json!(["alice"]), ClaimReading::Unusable),
        (json!({ "id": "alice" }), ClaimReading::Unusable),
    ] {
        assert_eq!(tenant(claim.clone()), expected, "{claim}");
    }
    let token = sign(&header(Some("a")), &claims());
    let verified = verify(&token, &keys(&secret_set("a")), &rules()).unwrap();
    assert_eq!((verified.claim("tenant"), verified.claim("iss")), (&ClaimReading::Absent, &ClaimReading::Absent));
}

#[test]
fn a_claim_that_is_written_twice_is_refused() {
    let parts = |claims: &str| {
        let encode = |text: &str| base64::Engine::encode(&base64::prelude::BASE64_URL_SAFE_NO_PAD, text);
        let message = format!("{}.{}", encode(r#"{"alg":"HS256"}"#), encode(claims));
        let key = EncodingKey::from_secret(SECRET);
        let signature = jsonwebtoken::crypto::sign(message.as_bytes(), &key, Algorithm::HS256).unwrap();
        format!("{message}.{signature}")
    };
    let once = claims().to_string();
    let twice = once.replacen('{', r#"{"tenant":1,"tenant":2,"#, 1);
    let verify = |claims: &str| verify(&parts(claims), &keys(&secret_set("a")), &rules()).err();
    assert_eq!((verify(&once), verify(&twice)), (None, Some(TokenFault::Malformed)));
}

#[test]
fn the_kid_picks_the_key_and_a_token_without_one_is_tried_with_some() {
    let token = |id| sign(&header(id), &claims());
    let set = keys(&secret_set("a"));
    let fault = |token: &str, set: &KeySet| verify(token, set, &rules()).err();
    assert_eq!(fault(&token(Some("b")), &set), Some(TokenFault::UnknownKey));
    assert_eq!(fault(&token(None), &set), None);
    let other = |index: usize| json!({ "kty": "oct", "kid": format!("{index}"), "k": "A".repeat(43) });
    let behind = |count: usize| {
        let mut all: Vec<_> = (0..count).map(other).collect();
        all.push(secret_set("a")["keys"][0].clone());
        keys(&json!({ "keys": all }))
    };
    assert_eq!(fault(&token(None), &behind(KEYS_TRIED_MAX - 1)), None);
    assert_eq!(fault(&token(None), &behind(KEYS_TRIED_MAX)), Some(TokenFault::Signature));
    assert_eq!(fault(&token(Some("a")), &behind(KEYS_TRIED_MAX)), None);
    assert_eq!(fault(&token(Some("0")), &behind(1)), Some(TokenFault::Signature));
}

#[test]
fn a_header_with_an_extension_or_without_a_signature_is_refused() {
    let crit = Header { crit: Some(vec!["b64".into()]), ..header(None) };
    let set = keys(&secret_set("a"));
    assert_eq!(verify(&sign(&crit, &claims()), &set, &rules()).err(), Some(TokenFault::Malformed));
    for token in ["", "a", "a.b", "a.b.c", "a.b.c.d", "eyJhbGciOiJub25lIn0.e30.", "eyJhbGciOiJIUzI1NiJ9.e30."] {
        let fault = verify(token, &set, &rules()).err();
        assert!(matches!(fault, Some(TokenFault::Malformed | TokenFault::Signature)), "{token}: {fault:?}");
    }
}

#[test]
fn a_key_set_has_the_keys_that_verify_by_an_allowed_algorithm() {
    let key = secret_set("a")["keys"][0].clone();
    let varied = |name: &str, value: Value| {
        let mut key = key.clone();
        key[name] = value;
        json!({ "keys": [key] })
    };
    let parse = |set: &Value, allowed| KeySet::parse(set.to_string().as_bytes(), allowed).is_ok();
    for (name, value, is_usable) in [
        ("use", json!("sig"), true),
        ("alg", json!("HS256"), true),
        ("key_ops", json!(["sign", "verify"]), true),
        ("use", json!("enc"), false),
        ("alg", json!("HS512"), false),
        ("alg", json!("RS256"), false),
        ("key_ops", json!(["encrypt"]), false),
        ("k", json!("c2hvcnQ"), false),
        ("kty", json!("unknown"), false),
    ] {
        assert_eq!(parse(&varied(name, value.clone()), &[Algorithm::HS256]), is_usable, "{name} {value}");
    }
    assert!(!parse(&secret_set("a"), &[Algorithm::RS256]), "a secret is for no algorithm with public keys");
    for text in ["", "{}", "[]", r#"{"keys":[]}"#, r#"{"keys":{}}"#, r#"{"keys":[{"kty":"RSA"}]}"#] {
        assert!(KeySet::parse(text.as_bytes(), &[Algorithm::HS256]).is_err(), "{text}");
    }
    let many = |count: usize| json!({ "keys": vec![key.clone(); count] });
    assert!(parse(&many(KEYS_MAX), &[Algorithm::HS256]) && !parse(&many(KEYS_MAX + 1), &[Algorithm::HS256]));
}

/// As in `key_set`.
const KEYS_MAX: usize = 100;

#[test]
fn a_verified_token_counts_until_its_expiry_and_the_leeway() {
    let verified = VerifiedToken { claims: Vec::new(), valid_until: 1_000 };
    let at = |seconds| verified.is_current(SystemTime::UNIX_EPOCH + Duration::from_secs(seconds));
    assert_eq!((at(0), at(1_000), at(1_001)), (true, true, false));
}

#[test]
fn an_id_token_is_for_this_client_and_of_this_sign_in() {
    let now = get_current_timestamp();
    let own = IdTokenRules { client_id: "pay", nonce: "n", begun_ago: Duration::from_secs(60) };
    let mut good = claims();
    (good["nonce"], good["iat"]) = (json!("n"), json!(now));
    let verify = |changes: &[(&str, Value)]| {
        let mut claims = good.clone();
        for (name, value) in changes {
            claims[*name] = value.clone();
        }
        IdToken::verify(&sign(&header(Some("a")), &claims), &keys(&secret_set("a")), &rules(), own).err()
    };
    let several = ("aud", json!(["pay", "other"]));
    for (changes, expected) in [
        (&[][..], None),
        (&[("azp", json!("pay"))], None),
        (&[several.clone(), ("azp", json!("pay"))], None),
        (&[("iat", json!(now - 80))], None),
        (&[several], Some(IdTokenFault::AuthorizedParty)),
        (&[("azp", json!("other"))], Some(IdTokenFault::AuthorizedParty)),
        (&[("azp", json!(null))], Some(IdTokenFault::AuthorizedParty)),
        (&[("nonce", json!("m"))], Some(IdTokenFault::Nonce)),
        (&[("nonce", json!(null))], Some(IdTokenFault::Nonce)),
        (&[("iat", json!(now - 120))], Some(IdTokenFault::IssuedAt)),
        (&[("iat", json!(now + 60))], Some(IdTokenFault::IssuedAt)),
        (&[("iat", json!(null))], Some(IdTokenFault::IssuedAt)),
        (&[("sub", json!(""))], Some(IdTokenFault::Subject)),
        (&[("sub", json!(7))], Some(IdTokenFault::Subject)),
        (&[("exp", json!(now - 60))], Some(IdTokenFault::Token(TokenFault::Expired))),
        (&[("aud", json!("other"))], Some(IdTokenFault::Token(TokenFault::Audience))),
        (&[("iss", json!("https://other"))], Some(IdTokenFault::Token(TokenFault::Issuer))),
    ] {
        assert_eq!(verify(changes), expected, "{changes:?}");
    }
}

#[test]
fn an_id_token_has_a_name_for_people_and_values_of_nested_claims() {
    let now = get_current_timestamp();
    let own = IdTokenRules { client_id: "pay", nonce: "n", begun_ago: Duration::ZERO };
    let read = |more: Value| {
        let mut claims = claims();
        (claims["nonce"], claims["iat"]) = (json!("n"), json!(now));
        claims.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        IdToken::verify(&sign(&header(Some("a")), &claims), &keys(&secret_set("a")), &rules(), own).unwrap()
    };
    for (claims, name) in [
        (json!({}), "alice"),
        (json!({ "email": "a@x.example" }), "a@x.example"),
        (json!({ "email": "a@x.example", "email_verified": false }), "alice"),
        (json!({ "email": "a@x.example", "preferred_username": "al" }), "al"),
        (json!({ "preferred_username": " " }), "alice"),
    ] {
        assert_eq!(read(claims.clone()).name(), name, "{claims}");
    }
    for (claims, path, values) in [
        (json!({ "groups": ["a", "b", 7] }), "groups", Some(vec!["a", "b"])),
        (json!({ "groups": "a" }), "groups", Some(vec!["a"])),
        (json!({ "groups": { "a": 1 } }), "groups", Some(vec![])),
        (json!({ "realm_access": { "roles": ["a"] } }), "realm_access.roles", Some(vec!["a"])),
        (json!({ "https://x.example/roles": ["a"] }), "https://x.example/roles", Some(vec!["a"])),
        (json!({ "realm_access": ["roles"] }), "realm_access.roles", None),
        (json!({}), "groups", None),
    ] {
        assert_eq!(read(claims.clone()).values(path), values, "{claims} {path}");
    }
}
