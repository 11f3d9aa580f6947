//! Identifies a request's caller by the parts of the scope, and hashes them.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue, Uri, request};

use super::single_field::{AMBIGUOUS, single};
use super::token::CallerToken;
use crate::config::{Route, ScopeRule, ScopeSource};
use crate::domain::auth_scheme::{ChangingCredentials, find_changing, is_lone_scheme};
use crate::domain::fingerprint::form;
use crate::domain::scope::{Salt, Scope};
use crate::protocol::fields::RequestOrigin;
use crate::protocol::refusal::Refusal;
use crate::tls::CertificateName;

/// The parts of a scope: each part's configured name, and its value if the request has it. A value is never empty.
pub(super) type ScopeParts<'a> = Vec<(&'a str, Option<Vec<u8>>)>;

/// The proofs of a caller's identity that do not stand in the request.
#[derive(Clone, Copy)]
pub(in crate::gate) struct CallerProofs<'a> {
    /// The address of a peer that is not a trusted proxy.
    pub(super) untrusted_peer: Option<IpAddr>,
    /// The caller's token.
    pub(super) token: &'a CallerToken,
    /// The name in the client's verified certificate.
    pub(super) certificate: Option<&'a CertificateName>,
}

impl<'a> CallerProofs<'a> {
    pub(in crate::gate) fn new(origin: &'a RequestOrigin, token: &'a CallerToken) -> Self {
        Self { untrusted_peer: origin.untrusted_peer(), token, certificate: origin.certificate.as_deref() }
    }
}

/// The scope of a keyed request.
///
/// # Errors
/// As for [`identify_caller`].
pub(in crate::gate) fn compute_scope(
    salt: &Salt,
    rule: &ScopeRule,
    head: &request::Parts,
    proofs: CallerProofs<'_>,
) -> Result<Scope, Refusal> {
    identify_caller(rule, head, proofs).map(|caller| hash(salt, &caller))
}

/// Lets a refusal ask for credentials, where the request has none in `Authorization` and its route has a challenge. Oncegate asks
/// itself and does not pass the request on for the service's own 401: a service that does not ask would execute it unguarded.
pub(super) fn with_challenge(refusal: Refusal, route: &Route, headers: &HeaderMap) -> Refusal {
    let has_credentials = headers.get_all(AUTHORIZATION).iter().any(|value| {
        let value = value.as_bytes().trim_ascii();
        !value.is_empty() && !is_lone_scheme(value)
    });
    match refusal {
        Refusal::ScopeMissing(detail, None) if !has_credentials => {
            Refusal::ScopeMissing(detail, route.challenge.clone())
        }
        other => other,
    }
}

/// Identifies the caller of a keyed request.
///
/// # Errors
/// The refusal of a request whose caller cannot be identified.
pub(super) fn identify_caller<'a>(
    rule: &'a ScopeRule,
    head: &request::Parts,
    proofs: CallerProofs<'_>,
) -> Result<ScopeParts<'a>, Refusal> {
    let parts = read_parts(rule, head, proofs)?;
    let untrusted_peer = proofs.untrusted_peer;
    if !rule.parts.is_empty() && parts.iter().all(|(_, value)| value.is_none()) {
        return Err(missing(rule, "the request has none of them with a value", untrusted_peer));
    }
    // A key of the application beside a user's cookie does not name the user.
    let names_user = parts.iter().any(|(name, value)| *name == "authorization" && value.is_some());
    if rule.is_default && !names_user && head.headers.get_all(COOKIE).iter().any(|cookie| !cookie.is_empty()) {
        let cause = "the request has a Cookie and no Authorization: the cookie may be what identifies its caller, and this \
                     route does not read it";
        return Err(missing(rule, cause, untrusted_peer));
    }
    Ok(parts)
}

/// Reads the parts of the scope. All of them may be absent, if all are optional.
///
/// # Errors
/// The refusal of a request that lacks a required part, has a part twice, or has one that its peer may not set.
pub(super) fn read_parts<'a>(
    rule: &'a ScopeRule,
    head: &request::Parts,
    proofs: CallerProofs<'_>,
) -> Result<ScopeParts<'a>, Refusal> {
    let untrusted_peer = proofs.untrusted_peer;
    let mut parts = Vec::with_capacity(rule.parts.len());
    for part in &rule.parts {
        let value = match &part.source {
            ScopeSource::Authorization => match single(&head.headers, &AUTHORIZATION)? {
                Some(value) => credentials(rule, value)?,
                None => None,
            },
            ScopeSource::ClientCertificate => proofs.certificate.map(|name| name.as_bytes().to_vec()),
            // HTTP/2 keeps blanks around a value, and the service gets it over HTTP/1.1, which does not (RFC 9112 section 5.1).
            ScopeSource::Header(name) => {
                let value = single(&head.headers, name)?.map(|value| value.as_bytes().trim_ascii());
                if let Some(value) = value
                    && carries_credentials(name)
                {
                    refuse_changing(rule, value)?;
                }
                value.map(<[u8]>::to_vec)
            }
            ScopeSource::Cookie(name) => cookie(&head.headers, name)?,
            ScopeSource::Jwt { claim, issuer } => proofs.token.identify(issuer, claim)?,
            ScopeSource::Query(name) => query(&head.uri, name)?,
        };
        let value = value.filter(|value| !value.is_empty());
        if let (Some(_), ScopeSource::Header(name), Some(_)) = (&value, &part.source, untrusted_peer) {
            let cause = format!("the request has the field `{name}`");
            return Err(missing(rule, &cause, untrusted_peer));
        }
        if value.is_none() && !part.optional {
            return Err(missing(rule, &format!("the request lacks `{}`", part.name), untrusted_peer));
        }
        parts.push((&*part.name, value));
    }
    Ok(parts)
}

/// The scope of a caller.
pub(super) fn hash(salt: &Salt, parts: &ScopeParts<'_>) -> Scope {
    Scope::from_parts(salt, parts.iter().map(|(name, value)| (*name, value.as_deref())))
}

/// The refusal of a request whose caller is not identified. It says where the caller was looked for.
fn missing(rule: &ScopeRule, cause: &str, untrusted_peer: Option<IpAddr>) -> Refusal {
    let mut detail = format!("This route identifies callers by {}, and {cause}.", places(rule));
    let reads_header = rule.parts.iter().any(|part| matches!(part.source, ScopeSource::Header(_)));
    if let (true, Some(peer)) = (reads_header, untrusted_peer) {
        detail.push_str(&format!(
            " A `header:` part counts only from a peer in `trusted_proxies`, and this one, {peer}, is not in it."
        ));
    }
    Refusal::ScopeMissing(detail.into(), None)
}

/// The credentials of an `Authorization` field in one spelling: the scheme in lower case, and one space behind it (RFC
/// 9110, sections 11.1 and 11.4). A value without a space is a token that some services take without a scheme. The name of
/// a scheme alone is none: all clients whose token is empty would be one caller.
///
/// # Errors
/// The refusal of credentials that differ with each try.
fn credentials(rule: &ScopeRule, value: &HeaderValue) -> Result<Option<Vec<u8>>, Refusal> {
    let value = value.as_bytes().trim_ascii();
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    if is_lone_scheme(value) {
        return Ok(None);
    }
    refuse_changing(rule, value)?;
    let Some(end) = value.iter().position(is_blank) else { return Ok(Some(value.to_vec())) };
    let (scheme, rest) = value.split_at(end);
    Ok(Some([&*scheme.to_ascii_lowercase(), b" ", rest.trim_ascii_start()].concat()))
}

/// Whether a field has credentials as `Authorization` has them: some gateways pass the client's on in such a field.
fn carries_credentials(name: &HeaderName) -> bool {
    name.as_str().ends_with("authorization")
}

/// Refuses credentials that differ with each try, also where another part of the scope has a value: that part alone may be
/// many callers.
fn refuse_changing(rule: &ScopeRule, value: &[u8]) -> Result<(), Refusal> {
    let Some(changing) = find_changing(value) else { return Ok(()) };
    let credentials = match changing {
        ChangingCredentials::Scheme(scheme) => format!("credentials of the scheme `{scheme}`"),
        ChangingCredentials::Parameter(Some(scheme), name) => {
            format!("credentials of the scheme `{scheme}` with the parameter `{name}`")
        }
        ChangingCredentials::Parameter(None, name) => format!("credentials with the parameter `{name}`"),
        ChangingCredentials::WithoutScheme => "a signature as credentials".to_owned(),
    };
    let detail = format!(
        "This route identifies callers by {}, and the request has {credentials}. They differ with each try, so that a \
         retry would be another caller and would be executed again. This request was not executed. Send credentials that stay \
         the same, or let the operator name another part of the request in `scope`: `jwt:CLAIM`, `client-cert`, or \
         `header:NAME` from a gateway that has verified the caller.",
        places(rule)
    );
    Err(Refusal::ScopeMissing(detail.into(), None))
}

/// The parts of a scope, as people read them.
fn places(rule: &ScopeRule) -> String {
    rule.parts.iter().map(|part| format!("`{}`", part.name)).collect::<Vec<_>>().join(" and ")
}

fn cookie(headers: &HeaderMap, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = headers.get_all(COOKIE).iter().flat_map(|line| line.as_bytes().split(|byte| *byte == b';'));
    let mut values = pairs.filter_map(|pair| {
        let at = memchr::memchr(b'=', pair)?;
        (pair[..at].trim_ascii() == name.as_bytes()).then(|| pair[at + 1..].trim_ascii().to_vec())
    });
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}

fn query(uri: &Uri, name: &str) -> Result<Option<Vec<u8>>, Refusal> {
    let pairs = form::pairs(uri.query().unwrap_or_default().as_bytes());
    let mut values = pairs.filter(|(key, _)| key == name.as_bytes()).map(|(_, value)| value);
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(AMBIGUOUS),
    }
}
