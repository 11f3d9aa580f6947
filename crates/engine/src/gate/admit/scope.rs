//! Identifies a request's caller by the parts of the scope, and hashes them.

use std::net::IpAddr;

use http::header::{AUTHORIZATION, COOKIE};
use http::{HeaderMap, HeaderName, HeaderValue};

use super::caller_token::{CallerToken, SENT_TWICE, claim_of_issuer, only};
use super::incoming::Incoming;
use oncegate_domain::auth_scheme::{ChangingCredentials, find_changing, is_lone_scheme, is_payment};
use oncegate_domain::place::{Place, PlaceError, PlaceValue};
use oncegate_domain::scope::{Salt, Scope};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_settings::{Route, ScopePart, ScopeRule, ScopeSource};
use oncegate_trust::jwt::ClaimReading;
use oncegate_trust::tls::CertificateName;

/// The scope of a caller that an operator knows by the values of these parts, each once; `None` where the rule does not
/// identify a caller by them alone. A part whose name ends with `:` has a JSON value: a claim that is a number or a
/// boolean.
pub fn scope_of(rule: &ScopeRule, salt: &Salt, known: &[(&str, &str)]) -> Option<Scope> {
    let names = |part: &ScopePart, name: &str| *part.name == *name.strip_suffix(':').unwrap_or(name);
    let is_of_rule = |name: &str| rule.parts.iter().any(|part| names(part, name));
    if !known.iter().all(|(name, _)| is_of_rule(name)) || known.is_empty() != rule.parts.is_empty() {
        return None;
    }
    let stored = |part: &ScopePart| {
        let Some((name, value)) = known.iter().find(|(name, _)| names(part, name)) else {
            return part.optional.then_some(None);
        };
        Some(Some(match &part.source {
            ScopeSource::Authorization => one_spelling(value.trim().as_bytes()),
            ScopeSource::Jwt { issuer, .. } => {
                let claim = if name.ends_with(':') { value.parse().ok()? } else { (*value).into() };
                match ClaimReading::new(&claim) {
                    ClaimReading::Value(value) => claim_of_issuer(issuer, &value),
                    ClaimReading::Absent | ClaimReading::Unusable => return None,
                }
            }
            ScopeSource::ClientCertificate => CertificateName::of_alternative_name(value).as_bytes().to_vec(),
            ScopeSource::Place(Place::Header(_, None)) => value.trim().as_bytes().to_vec(),
            ScopeSource::Place(_) => value.as_bytes().to_vec(),
        }))
    };
    let values: Vec<_> = rule.parts.iter().map(stored).collect::<Option<_>>()?;
    let parts = rule.parts.iter().map(|part| &*part.name);
    Some(Scope::from_parts(salt, parts.zip(values.iter().map(Option::as_deref))))
}

/// The parts of a scope: each part's configured name, and its value if the request has it. A value is never empty.
pub(super) type ScopeParts<'a> = Vec<(&'a str, Option<Vec<u8>>)>;

impl<'a> Incoming<'a> {
    /// The scope of a keyed request with this token.
    ///
    /// # Errors
    /// As for [`Self::identify_caller`].
    pub(in crate::gate) fn compute_scope(
        &self,
        token: &CallerToken,
        places: Vec<PlaceValue>,
    ) -> Result<Scope, Refusal> {
        let parts = self.identify_caller(token, places)?;
        Ok(Scope::from_parts(self.realm.salt, parts.iter().map(|(name, value)| (*name, value.as_deref()))))
    }

    /// Identifies the caller of a keyed request. A message may lack all parts of its consumer's scope, if all are
    /// optional.
    ///
    /// # Errors
    /// The refusal of a request whose caller cannot be identified.
    pub(super) fn identify_caller(
        &self,
        token: &CallerToken,
        places: Vec<PlaceValue>,
    ) -> Result<ScopeParts<'a>, Refusal> {
        let Self { head, scope: rule, .. } = *self;
        let parts = self.read_scope(token, places)?;
        if self.given_key.is_some() {
            return Ok(parts);
        }
        if !rule.parts.is_empty() && parts.iter().all(|(_, value)| value.is_none()) {
            return Err(self.scope_missing("the request has none of them with a value"));
        }
        // A key of the application beside a user's cookie does not name the user.
        let names_user = parts.iter().any(|(name, value)| *name == "authorization" && value.is_some());
        if rule.is_default && !names_user && head.headers.get_all(COOKIE).iter().any(|cookie| !cookie.is_empty()) {
            return Err(self.scope_missing(
                "the request has a Cookie and no Authorization: the cookie may be what identifies its caller, and this \
                 route does not read it",
            ));
        }
        Ok(parts)
    }

    /// Reads the parts of the scope. `places` has the values of those that are places.
    ///
    /// # Errors
    /// The refusal of a request that lacks a required part, has a part twice, or has one that its peer may not set.
    fn read_scope(&self, token: &CallerToken, places: Vec<PlaceValue>) -> Result<ScopeParts<'a>, Refusal> {
        let Self { head, origin, scope: rule, .. } = *self;
        let mut parts = Vec::with_capacity(rule.parts.len());
        let mut places = places.into_iter();
        for part in &rule.parts {
            let value = match &part.source {
                // A payment names nobody, so that the request is judged by what stands beside it.
                ScopeSource::Authorization => match only(head.headers.get_all(AUTHORIZATION).iter())? {
                    Some(value) if !is_payment(value.as_bytes()) => credentials(rule, value)?,
                    Some(_) | None => None,
                },
                ScopeSource::ClientCertificate => origin.certificate.as_deref().map(|name| name.as_bytes().to_vec()),
                ScopeSource::Jwt { claim, issuer } => token.identify(issuer, claim)?,
                ScopeSource::Place(place) => {
                    let value = places.next().expect("each place was read").map_err(|error| unusable(part, error))?;
                    caller_value(rule, place, value)?
                }
            };
            let value = value.filter(|value| !value.is_empty());
            if value.is_none() && !part.optional {
                return Err(self.scope_missing(&format!("the request lacks `{}`", part.name)));
            }
            parts.push((part, value));
        }
        self.check_fields(&parts)?;
        Ok(parts.into_iter().map(|(part, value)| (&*part.name, value)).collect())
    }

    /// Checks that a peer may set the fields that name the caller. Beside a proof of the caller, anybody may: a forged
    /// value separates callers, and joins none.
    fn check_fields(&self, parts: &[(&ScopePart, Option<Vec<u8>>)]) -> Result<(), Refusal> {
        let is_proved = || parts.iter().any(|(part, value)| value.is_some() && part.source.is_proof());
        let field = parts.iter().find_map(|(part, value)| match &part.source {
            ScopeSource::Place(Place::Header(name, _)) if value.is_some() => Some(name),
            _ => None,
        });
        match (field, self.untrusted_peer()) {
            (Some(name), Some(_)) if !is_proved() => {
                Err(self.scope_missing(&format!("the request has the field `{name}`")))
            }
            _ => Ok(()),
        }
    }

    /// The peer whose fields do not name callers. A queue that is configured here is trusted: its publishers set the
    /// scope's fields.
    fn untrusted_peer(&self) -> Option<IpAddr> {
        self.origin.untrusted_peer().filter(|_| self.given_key.is_none())
    }

    /// The refusal of a request whose caller is not identified. It says where the caller was looked for.
    // See docs/decisions/0017-name-every-caller.md.
    fn scope_missing(&self, cause: &str) -> Refusal {
        let rule = self.scope;
        let mut detail = format!("This route identifies callers by {}, and {cause}.", places(rule));
        let reads_header = rule.parts.iter().any(|part| matches!(part.source, ScopeSource::Place(Place::Header(..))));
        if let (true, Some(peer)) = (reads_header, self.untrusted_peer()) {
            detail.push_str(&format!(
                " A `header:` part counts only from a peer in `trusted_proxies`, and this one, {peer}, is not in it, or beside \
                 a proof such as `authorization`."
            ));
        }
        if self.head.headers.get_all(AUTHORIZATION).iter().any(|value| is_payment(value.as_bytes())) {
            detail.push_str(PAYMENT_NAMES_NOBODY);
        }
        Refusal::ScopeMissing(detail.into(), None)
    }
}

/// The way out for a client that pays for each try.
const PAYMENT_NAMES_NOBODY: &str = " Credentials of the scheme `Payment` pay for one try, and name no caller: a retry has others. This \
     request was not executed. Send a key of the caller in another field, or let the operator name another part of the request in \
     `scope`: `header:NAME` from a gateway that has verified the caller, `client-cert`, or `none` where the key itself is a secret of \
     its caller.";

/// Lets a refusal ask for credentials, where the request has none in `Authorization` and its route has a challenge.
/// Oncegate asks itself and does not pass the request on for the service's own 401: a service that does not ask would
/// execute it unguarded.
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

/// The credentials of an `Authorization` field in one spelling: the scheme in lower case, and one space behind it (RFC
/// 9110, sections 11.1 and 11.4). A value without a space is a token that some services take without a scheme. The name
/// of a scheme alone is none: all clients whose token is empty would be one caller.
///
/// # Errors
/// The refusal of credentials that differ with each try.
fn credentials(rule: &ScopeRule, value: &HeaderValue) -> Result<Option<Vec<u8>>, Refusal> {
    let value = value.as_bytes().trim_ascii();
    if is_lone_scheme(value) {
        return Ok(None);
    }
    refuse_changing(rule, value)?;
    Ok(Some(one_spelling(value)))
}

/// The scheme in lower case, and one space behind it.
fn one_spelling(credentials: &[u8]) -> Vec<u8> {
    let is_blank = |byte: &u8| matches!(byte, b' ' | b'\t');
    let Some(end) = credentials.iter().position(is_blank) else { return credentials.to_vec() };
    let (scheme, rest) = credentials.split_at(end);
    [&*scheme.to_ascii_lowercase(), b" ", rest.trim_ascii_start()].concat()
}

/// Whether a field has credentials as `Authorization` has them: some gateways pass the client's on in such a field.
fn carries_credentials(name: &HeaderName) -> bool {
    name.as_str().ends_with("authorization")
}

/// Refuses credentials that differ with each try, also where another part of the scope has a value: that part alone may
/// be many callers.
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

/// A value at a place as it names the caller.
fn caller_value(rule: &ScopeRule, place: &Place, value: Option<Vec<u8>>) -> Result<Option<Vec<u8>>, Refusal> {
    let (Place::Header(name, None), Some(value)) = (place, &value) else { return Ok(value) };
    // HTTP/2 keeps blanks around a value, and the service gets it over HTTP/1.1, which does not (RFC 9112, section
    // 5.1).
    let value = value.trim_ascii();
    if carries_credentials(name) {
        if is_payment(value) {
            return Ok(None);
        }
        refuse_changing(rule, value)?;
    }
    Ok(Some(value.to_vec()))
}

/// The refusal of a request in which a part of the scope cannot be read.
fn unusable(part: &ScopePart, error: PlaceError) -> Refusal {
    let reason = match error {
        PlaceError::Several => return SENT_TWICE,
        PlaceError::NotScalar => "it is neither a text nor a number.",
        PlaceError::Unreadable(reason) => reason,
    };
    let detail = format!("This route identifies callers by `{}`, which cannot be read: {reason}", part.name);
    Refusal::ScopeMissing(detail.into(), None)
}
