//! Reads and checks `scope`: the parts of a request that tell callers apart.

use std::sync::Arc;

use http::HeaderName;

use super::reader::{Located, Section};
use oncegate_domain::acting_for;
use oncegate_domain::auth_scheme::is_betraying;
use oncegate_domain::place::Place;
use oncegate_settings::{ScopePart, ScopeRule, ScopeSource};

/// The proofs of a caller's identity that the configuration sets up.
pub(super) struct ProofSources {
    /// The issuer of tokens.
    pub issuer: Option<Arc<str>>,
    /// Whether each token must name an account.
    pub requires_email: bool,
    /// Whether clients have certificates.
    pub has_client_certificates: bool,
}

/// An entry of the list; `None` for the word `none`.
type ScopeEntry = Option<ScopePart>;

/// Reads `scope`; `None` where it has a problem. `proofs` is `None` for messages, which have no connection and no
/// credentials.
pub(super) fn read(section: &Section<'_>, proofs: Option<&ProofSources>) -> Option<ScopeRule> {
    let entries = section.list("scope", |text| parse(text, proofs));
    let is_none = entries.iter().any(|entry| entry.value.is_none());
    if !section.is_right(&["scope"]) {
        return None;
    } else if entries.is_empty() {
        section.problem("scope", "is empty: write [\"none\"] if all callers are to share their keys");
        return None;
    } else if is_none && entries.len() > 1 {
        section.problem("scope", "has `none` beside others: `none` means that nothing tells callers apart");
        return None;
    }
    for (index, entry) in entries.iter().enumerate() {
        let source = |entry: &Located<ScopeEntry>| entry.value.as_ref().map(|part| part.source.clone());
        if entries[..index].iter().any(|before| source(before) == source(entry)) {
            section.reader().problem(&entry.position, "is listed a second time");
            return None;
        }
    }
    let parts: Vec<_> = entries.into_iter().filter_map(|entry| entry.value).collect();
    // A field that names an account beside the caller does not replace the caller.
    let is_caller = |part: &&ScopePart| match &part.source {
        ScopeSource::Place(Place::Header(name, None)) => !acting_for::is_acting_for(name),
        _ => true,
    };
    let is_default = parts.iter().filter(is_caller).eq(&default_parts());
    Some(ScopeRule { parts, is_default })
}

/// The parts that are no place; `jwt:` takes the name of a claim.
pub(super) const WORDS: [&str; 4] = ["authorization", "client-cert", "jwt:", "none"];

const CHANGES: &str = "names a value that differs with each try or each token: a retry would be another caller, and would be \
                       executed again";

/// Fields whose value differs with each try, besides those whose names say so.
const CHANGING_FIELDS: [&str; 5] = ["dpop", "signature-input", "traceparent", "x-request-id", "x-wsse"];

/// Claims whose value differs with each token (RFC 7519 section 4.1, OpenID Connect Core sections 2 and 3.3.2.11).
const CHANGING_CLAIMS: [&str; 7] = ["at_hash", "c_hash", "exp", "iat", "jti", "nbf", "nonce"];

const NOT_IN_MESSAGES: &str =
    "has a part that a message does not have: write `header:NAME`, a place of the body or `none`";

/// The parts of the default that `route_options` declares, to recognize them where they are written.
fn default_parts() -> Vec<ScopePart> {
    let part = |source, name: &str| ScopePart { source, optional: true, name: name.into() };
    let api_key = ScopeSource::Place(Place::Header(HeaderName::from_static("x-api-key"), None));
    vec![part(ScopeSource::Authorization, "authorization"), part(api_key, "header:x-api-key")]
}

/// Parses a part as a rule about scopes has it: its name as a scope has it, whatever is set up.
pub(super) fn parse_name_of_part(text: &str) -> Result<String, String> {
    let all = ProofSources { issuer: Some(Arc::default()), requires_email: false, has_client_certificates: true };
    Ok(parse(text, Some(&all))?.map_or("none".into(), |part| part.name.to_string()))
}

fn parse(text: &str, proofs: Option<&ProofSources>) -> Result<ScopeEntry, String> {
    let (text, optional) = text.strip_suffix('?').map_or((text, false), |text| (text, true));
    let right = "write `authorization`, `jwt:CLAIM`, `client-cert`, `none` or a place such as `header:NAME`";
    let (kind, name) = text.split_once(':').unwrap_or((text, ""));
    let source = match (kind, name) {
        ("none", "") if text == "none" => {
            return if optional { Err("is `none` already: it takes no `?`".into()) } else { Ok(None) };
        }
        ("authorization", "") if text == kind => ScopeSource::Authorization,
        ("client-cert", "") if text == kind => match proofs {
            None => return Err(NOT_IN_MESSAGES.into()),
            Some(ProofSources { has_client_certificates: true, .. }) => ScopeSource::ClientCertificate,
            Some(ProofSources { has_client_certificates: false, .. }) => {
                return Err("needs the authorities of clients' certificates: write `client_ca` in `[tls]`".into());
            }
        },
        ("jwt", "") => return Err(format!("lacks the name: {right}")),
        ("jwt", claim) if CHANGING_CLAIMS.contains(&claim) => return Err(CHANGES.into()),
        ("jwt", claim) => match proofs {
            None => return Err(NOT_IN_MESSAGES.into()),
            Some(ProofSources { issuer: Some(issuer), .. }) => {
                ScopeSource::Jwt { claim: claim.into(), issuer: Arc::clone(issuer) }
            }
            Some(ProofSources { issuer: None, .. }) => {
                return Err("needs the issuer of the tokens: add `[jwt]` with `issuer` and `audience`".into());
            }
        },
        _ if Place::has_kind(text) => ScopeSource::Place(check_place(Place::parse(text)?)?),
        _ => {
            return Err(format!(
                "is no part of a request that is known here: {right}; `?` at the end marks what may be missing"
            ));
        }
    };
    let name = match &source {
        ScopeSource::Place(place) => place.to_string(),
        _ => text.into(),
    };
    Ok(Some(ScopePart { source, optional, name: name.into() }))
}

fn check_place(place: Place) -> Result<Place, String> {
    match &place {
        Place::Header(name, _) if *name == http::header::AUTHORIZATION => {
            Err("must be written as `authorization`".into())
        }
        Place::Header(name, _) if is_betraying(name.as_str()) || CHANGING_FIELDS.contains(&name.as_str()) => {
            Err(CHANGES.into())
        }
        Place::Query(name) | Place::Form(name, _) if is_betraying(name) => Err(CHANGES.into()),
        place if place.is_pattern() => Err("has a `*`: a part of the scope is one value, in one place".into()),
        _ => Ok(place),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proofs() -> ProofSources {
        ProofSources { issuer: Some(Arc::default()), requires_email: false, has_client_certificates: true }
    }

    fn part(text: &str) -> ScopePart {
        parse(text, Some(&proofs())).expect(text).expect(text)
    }

    #[test]
    fn each_part_has_its_source_and_its_name() {
        assert_eq!(part("authorization").source, ScopeSource::Authorization);
        assert!(part("authorization?").optional);
        let header = part("header:X-Tenant?");
        assert_eq!(header.source, ScopeSource::Place(Place::parse("header:x-tenant").unwrap()));
        assert_eq!(&*header.name, "header:x-tenant");
        assert_eq!(part("cookie:SID").source, ScopeSource::Place(Place::Cookie("SID".into())));
        assert_eq!(&*part("cookie:SID?").name, "cookie:SID");
        assert_eq!(part("query:tenant").source, ScopeSource::Place(Place::Query("tenant".into())));
        let claim = ScopeSource::Jwt { claim: "https://a/id".into(), issuer: Arc::default() };
        assert_eq!((part("jwt:https://a/id?").source, &*part("jwt:sub?").name), (claim, "jwt:sub"));
        assert_eq!(part("client-cert?").source, ScopeSource::ClientCertificate);
        assert_eq!(parse("none", None), Ok(None));
    }

    #[test]
    fn an_unknown_part_is_refused() {
        for text in [
            "",
            "?",
            "none?",
            "none:x",
            "None",
            "authorization:x",
            "authorization:",
            "header:",
            "header",
            "header:a b",
            "header:Authorization",
            "cookie:a=b",
            "query:",
            "jwt:",
            "jwt",
            "client-cert:x",
            "ip",
        ] {
            assert!(parse(text, Some(&proofs())).is_err(), "{text:?}");
        }
        for text in [
            "header:x-timestamp",
            "header:Date",
            "header:DPoP",
            "header:x-request-id?",
            "query:signature",
            "query:X-Amz-Signature",
            "jwt:jti",
            "jwt:exp",
            "jwt:nonce",
        ] {
            assert!(parse(text, Some(&proofs())).unwrap_err().contains("each try"), "{text}");
        }
        let none = ProofSources { issuer: None, requires_email: false, has_client_certificates: false };
        assert!(parse("jwt:sub", Some(&none)).unwrap_err().contains("`[jwt]`"));
        assert!(parse("client-cert", Some(&none)).unwrap_err().contains("`client_ca`"));
        assert!(parse("jwt:sub", None).unwrap_err().contains("message"));
    }
}
