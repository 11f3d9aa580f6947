//! One table for each part of the identity: a request, and what it is identified by or refused with.

use std::net::Ipv4Addr;

use futures_util::FutureExt;
use http::{Request, Version};

use super::super::incoming::Realm;
use super::*;
use oncegate_config::{self as config, Overrides, ProcessEnvironment};
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::scope::Salt;
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_settings::Config;

/// A caller that every route with the default scope identifies.
const CALLER: (&str, &str) = ("authorization", "Bearer t");
const KEY: (&str, &str) = ("idempotency-key", "k-1");

/// A configuration with one route with these lines.
fn config(lines: &str) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    let path = if lines.contains("path =") { "" } else { "path = '/v1/pay'\n" };
    std::fs::write(&file, format!("upstream = 'http://a'\n[[routes]]\nname = 'r'\n{path}{lines}")).unwrap();
    config::load(Some(&file), &Overrides::default(), &ProcessEnvironment).expect(lines).live
}

/// A request, with what a test varies.
#[derive(Clone)]
struct Sample<'a> {
    target: &'a str,
    fields: Vec<(&'a str, &'a str)>,
    body: &'a [u8],
    untrusted_peer: bool,
}

fn with<'a>(fields: &[(&'a str, &'a str)]) -> Sample<'a> {
    Sample { target: "/v1/pay", fields: fields.to_vec(), body: b"", untrusted_peer: false }
}

fn search(config: &Config, sample: &Sample<'_>) -> Result<KeySearch<RequestIdentity>, Refusal> {
    let mut request = Request::post(sample.target);
    for (name, value) in &sample.fields {
        request = request.header(*name, *value);
    }
    let (head, ()) = request.body(()).unwrap().into_parts();
    let origin = RequestOrigin {
        peer: Ipv4Addr::new(10, 1, 2, 3).into(),
        trusted: !sample.untrusted_peer,
        host: None,
        version: Version::HTTP_11,
        secure: false,
        certificate: None,
    };
    let path = RequestPath::new(head.uri.path());
    let realm = Realm { service: &"default".into(), salt: &Salt::new([7; 32]) };
    let incoming = Incoming::new((&head, &path), &origin, &config.routes[0], realm);
    incoming.identify(Some(&Bytes::copy_from_slice(sample.body)), None).now_or_never().expect("no token is verified")
}

fn found(config: &Config, sample: &Sample<'_>) -> RequestIdentity {
    match search(config, sample) {
        Ok(KeySearch::Found(identity)) => identity,
        other => panic!("{:?} {:?}: {other:?}", sample.target, sample.fields),
    }
}

fn refused(config: &Config, sample: &Sample<'_>) -> &'static str {
    search(config, sample).expect_err("it is refused").slug()
}

#[test]
fn callers_that_differ_have_scopes_that_differ() {
    let key = |fields: &[(&'static str, &'static str)]| with(&[&[KEY], fields].concat());
    for (lines, callers) in [
        (
            "",
            vec![
                key(&[("authorization", "Bearer a")]),
                key(&[("authorization", "Bearer b")]),
                key(&[("authorization", "Bearer A")]),
                key(&[("authorization", "Basic a")]),
                key(&[("authorization", "a")]),
                key(&[("authorization", "A")]),
                key(&[("x-api-key", "a")]),
                key(&[("x-api-key", "b")]),
                key(&[("authorization", "Bearer a"), ("x-api-key", "a")]),
            ],
        ),
        ("scope = ['cookie:sid']", vec![key(&[("cookie", "sid=a")]), key(&[("cookie", "sid=b")])]),
        ("scope = ['header:x-auth-token']", vec![key(&[("x-auth-token", "A")]), key(&[("x-auth-token", "B")])]),
    ] {
        let config = config(lines);
        let scopes: Vec<_> = callers.iter().map(|caller| found(&config, caller).scope).collect();
        for (index, scope) in scopes.iter().enumerate() {
            assert!(!scopes[..index].contains(scope), "{lines} {:?}", callers[index].fields);
        }
    }
}

#[test]
fn spellings_of_one_caller_have_one_scope() {
    for (lines, spellings) in [
        ("", [("authorization", "Bearer t"), ("authorization", "bearer   t"), ("authorization", "BEARER\tt")]),
        ("scope = ['cookie:sid']", [("cookie", "sid=a"), ("cookie", "x=y; sid=a"), ("cookie", "sid= a ;x=y")]),
        // HTTP/2 keeps the blanks, and the service does not see them.
        ("scope = ['header:x-user']", [("x-user", "a"), ("x-user", " a"), ("x-user", "a\t")]),
    ] {
        let config = config(lines);
        let first = found(&config, &with(&[KEY, spellings[0]])).scope;
        for spelling in spellings {
            assert_eq!(found(&config, &with(&[KEY, spelling])).scope, first, "{spelling:?}");
        }
    }
}

#[test]
fn a_caller_who_is_not_identified_is_refused() {
    for (lines, fields) in [
        ("", &[][..]),
        ("", &[("x-auth-token", "A")]),
        ("", &[("authorization", "")]),
        ("", &[("authorization", "bearer")]),
        ("", &[("authorization", "Bearer  ")]),
        ("", &[("x-api-key", "")]),
        ("", &[("cookie", "sid=a")]),
        ("", &[("x-api-key", "pk_live"), ("cookie", "sid=a")]),
        ("", &[("authorization", ""), ("cookie", "sid=a")]),
        ("", &[("authorization", "Bearer a"), ("authorization", "Bearer a")]),
        ("", &[("authorization", "Bearer a"), ("authorization", "")]),
        ("", &[("x-api-key", "a"), ("x-api-key", "b")]),
        ("scope = ['cookie:sid', 'authorization?']", &[CALLER]),
        ("scope = ['cookie:sid?', 'authorization?']", &[]),
        ("scope = ['cookie:sid']", &[("cookie", "sid=")]),
        ("scope = ['cookie:sid']", &[("cookie", "sid=a; sid=b")]),
        ("scope = ['query:tenant']", &[CALLER]),
    ] {
        let sample = with(&[&[KEY], fields].concat());
        assert_eq!(refused(&config(lines), &sample), "scope-missing", "{lines} {fields:?}");
    }
}

#[test]
fn credentials_that_differ_with_each_try_are_refused_whatever_else_the_scope_has() {
    let digest = "Digest username=\"a\", nonce=\"n\", nc=00000001, response=\"x\"";
    let oauth = "OAuth oauth_token=\"t\", oauth_nonce=\"n\", oauth_signature=\"s\"";
    for (lines, fields, scheme) in [
        ("", &[("authorization", digest)][..], "`Digest`"),
        ("", &[("authorization", oauth)], "`oauth_nonce`"),
        ("", &[("authorization", "DPoP a.b.c")], "`DPoP`"),
        ("", &[("authorization", digest), ("x-api-key", "a")], "`Digest`"),
        ("scope = ['authorization?', 'cookie:sid?']", &[("authorization", digest), ("cookie", "sid=a")], "`Digest`"),
        ("scope = ['authorization?', 'query:tenant?']", &[("authorization", "Acme ts=1")], "`ts`"),
        ("scope = ['header:x-forwarded-authorization']", &[("x-forwarded-authorization", digest)], "`Digest`"),
    ] {
        let refusal = search(&config(lines), &with(&[&[KEY], fields].concat())).expect_err("it is refused");
        assert_eq!(refusal.slug(), "scope-missing", "{lines} {fields:?}");
        for word in [scheme, "`jwt:CLAIM`", "`client-cert`", "`header:NAME`"] {
            assert!(refusal.detail().contains(word), "{word}: {}", refusal.detail());
        }
    }
    // A scope that does not read the field does not mind it.
    found(&config("scope = ['cookie:sid']"), &with(&[KEY, ("authorization", digest), ("cookie", "sid=a")]));
    found(&config("scope = ['none']"), &with(&[KEY, ("authorization", digest)]));
}

#[test]
fn callers_share_a_scope_only_where_the_route_says_so() {
    let config = config("scope = ['none']");
    let one = found(&config, &with(&[KEY, ("authorization", "Bearer a")]));
    assert_eq!(found(&config, &with(&[KEY, ("cookie", "sid=a")])), one);
    assert_eq!(found(&config, &with(&[KEY])), one);
}

#[test]
fn a_header_part_counts_only_from_a_trusted_peer() {
    let sample = |fields: &[(&'static str, &'static str)]| Sample { untrusted_peer: true, ..with(fields) };
    let default = config("");
    let refusal = search(&default, &sample(&[KEY, ("x-api-key", "a")])).expect_err("it is refused");
    assert_eq!(refusal.slug(), "scope-missing");
    for word in ["`authorization`", "`header:x-api-key`", "`trusted_proxies`", "10.1.2.3"] {
        assert!(refusal.detail().contains(word), "{word}: {}", refusal.detail());
    }
    // Beside a proof of the caller, a forged value separates and joins nothing.
    let scope = |fields: &[(&'static str, &'static str)]| found(&default, &sample(fields)).scope;
    let scopes =
        [scope(&[KEY, CALLER]), scope(&[KEY, CALLER, ("x-api-key", "a")]), scope(&[KEY, CALLER, ("x-api-key", "b")])];
    assert!(scopes[0] != scopes[1] && scopes[1] != scopes[2] && scopes[0] != scopes[2]);
}

#[test]
fn all_spellings_of_a_path_are_one_key_space() {
    let spellings = ["/v1/pay", "/v1/p%61y", "/v1/./pay", "/x/../v1/pay", "/v1/%70ay", "//v1/pay/", "/V1/PAY;a=1"];
    for lines in ["", "path = '/{*rest}'"] {
        let config = config(lines);
        for target in spellings {
            let sample = Sample { target, ..with(&[KEY, CALLER]) };
            assert_eq!(found(&config, &sample).space, SpaceHash::from_text("POST /v1/pay"), "{lines} {target}");
        }
    }
    for (lines, space) in [("space = 'route'", "route r"), ("space = 'service'", "service")] {
        assert_eq!(found(&config(lines), &with(&[KEY, CALLER])).space, SpaceHash::from_text(space));
    }
}

#[test]
fn a_body_that_cannot_be_searched_is_refused_and_never_counts_as_one_without_a_key() {
    let json = ("content-type", "application/json");
    let form = ("content-type", "application/x-www-form-urlencoded");
    let deep = format!("{}1{}", "[".repeat(129), "]".repeat(129));
    let nested = format!("{{\"id\":\"a\",\"x\":{deep}}}");
    for (place, label, body) in [
        ("'json:/id'", json, &b"{\"id\":\"a\",\"id\":\"b\"}"[..]),
        ("'json:/id'", json, b"{\"id\":\"a\",\"x\":\"\\ud800\"}"),
        ("'json:/id'", json, b"{\"id\":\"a\",\"x\":\"\xff\"}"),
        ("'json:/id'", json, nested.as_bytes()),
        ("'json:/id'", json, b"{\"id\":\"a\""),
        ("'json:/id'", json, b"id=a"),
        ("'json:/id'", form, b"id=a"),
        ("'json:/id'", json, b"\xff\xfe{\0}\0"),
        ("'json:/id'", ("content-encoding", "gzip"), b"{\"id\":\"a\"}"),
        ("'json:/id'", json, b"{\"id\":null}"),
        ("'form:id'", json, b"{\"id\":\"a\"}"),
        ("'form:id'", ("content-type", "multipart/form-data; boundary=x"), b"id=a"),
        ("'form:id'", ("content-encoding", "br"), b"id=a"),
        ("'form:id'", form, b"id=a&id=b"),
    ] {
        for header in ["", "'header:Idempotency-Key', "] {
            let config = config(&format!("key.from = [{header}{place}]"));
            let sample = Sample { body, ..with(&[CALLER, label]) };
            assert_eq!(refused(&config, &sample), "key-invalid", "{place} {label:?} {}", body.escape_ascii());
        }
    }
}

#[test]
fn a_key_is_found_in_a_body_however_it_is_labelled() {
    for (place, label, body) in [
        ("'json:/id'", ("content-type", "application/json"), &b"{\"id\":\"a\"}"[..]),
        ("'json:/id'", ("content-type", "application/json"), b"\xef\xbb\xbf{\"id\":\"a\"}"),
        ("'json:/id'", ("content-type", "application/x-www-form-urlencoded"), b"{\"id\":\"a\"}"),
        ("'json:/id'", ("content-type", "text/plain"), b"{\"id\":\"a\"}"),
        ("'json:/id'", ("content-encoding", "identity"), b"{\"id\":\"a\"}"),
        ("'form:id'", ("content-type", "application/x-www-form-urlencoded"), b"id=a"),
        ("'form:id'", ("x-none", ""), b"id=a"),
        ("['form:id', 'json:/id']", ("content-type", "application/x-www-form-urlencoded; charset=utf-8"), b"id=a"),
        ("['form:id', 'json:/id']", ("content-type", "application/json"), b"{\"id\":\"a\"}"),
        ("['form:id', 'json:/id']", ("content-type", "application/x-www-form-urlencoded"), b"{\"id\":\"a\"}"),
    ] {
        let config = config(&format!("key.from = {place}"));
        let sample = Sample { body, ..with(&[CALLER, label]) };
        assert_eq!(found(&config, &sample).key.as_bytes(), b"a", "{place} {label:?} {}", body.escape_ascii());
    }
}

#[test]
fn a_body_without_the_keys_member_has_no_key() {
    for (place, body) in [("'json:/id'", &b"{}"[..]), ("'json:/id'", b""), ("'form:id'", b"x=1"), ("'form:id'", b"")] {
        let config = config(&format!("key.from = {place}"));
        let sample = Sample { body, ..with(&[CALLER]) };
        assert_eq!(search(&config, &sample), Ok(KeySearch::NoKey), "{place}");
    }
}
