//! Reads and checks a route's `challenge`: the value of `WWW-Authenticate` for a caller without credentials.

use std::sync::Arc;

use http::HeaderValue;

use super::reader::Section;
use oncegate_domain::auth_scheme::{CredentialLife, find_row, is_betraying, is_token};
use oncegate_settings::{ParseResult, ScopeRule, ScopeSource};

const EXAMPLE: &str = "write it like `Basic realm=\"payments\"`";

/// One challenge of the list (RFC 9110 section 11.3).
#[derive(Debug, Default, PartialEq, Eq)]
struct AuthChallenge<'a> {
    scheme: &'a str,
    /// The parameters with their values, as they are written.
    parameters: Vec<(&'a str, &'a str)>,
}

/// Reads `challenge`. `None` where the route has none, or where its scope has a problem.
pub(super) fn read(section: &Section<'_>, scope: Option<&ScopeRule>) -> Option<Arc<HeaderValue>> {
    let check = |text: &str| scope.map(|scope| check(text, scope)).transpose();
    section.optional("challenge", check).flatten().map(Arc::new)
}

/// Checks that a client which answers the challenge is served.
fn check(text: &str, scope: &ScopeRule) -> ParseResult<HeaderValue> {
    let value = HeaderValue::from_str(text).ok().filter(|_| text.is_ascii());
    let (value, challenges) =
        value.zip(parse(text)).ok_or_else(|| format!("is no challenge (RFC 9110 section 11.6.1): {EXAMPLE}"))?;
    let reads_token = |part: &ScopeSource| matches!(part, ScopeSource::Jwt { .. });
    if !scope.reads_authorization() && !scope.parts.iter().any(|part| reads_token(&part.source)) {
        return Err(
            "needs a scope with `authorization` or `jwt:CLAIM`: a client answers it with `Authorization`".into()
        );
    }
    for AuthChallenge { scheme, parameters } in challenges {
        let life = find_row(scheme).map_or(CredentialLife::Same, |row| row.life);
        if life != CredentialLife::Same || parameters.iter().any(|(name, _)| is_betraying(name)) {
            return Err(format!(
                "names `{scheme}`, whose credentials differ with each try: a request with them is refused"
            ));
        }
        if scheme.eq_ignore_ascii_case("basic")
            && !parameters.iter().any(|(name, _)| name.eq_ignore_ascii_case("realm"))
        {
            return Err(format!("lacks the `realm` that `Basic` requires (RFC 7617 section 2): {EXAMPLE}"));
        }
        if !scope.reads_authorization() && !scheme.eq_ignore_ascii_case("bearer") {
            return Err(format!("names `{scheme}`, and `jwt:CLAIM` reads the tokens of `Bearer` alone"));
        }
    }
    Ok(value)
}

/// Parses a list of challenges (RFC 9110 section 11.6.1). `None` if it is none.
fn parse(text: &str) -> Option<Vec<AuthChallenge<'_>>> {
    let mut challenges: Vec<AuthChallenge<'_>> = Vec::new();
    for item in split_unquoted(text)? {
        // A parameter belongs to the last scheme; anything else begins a challenge.
        if let Some(parameter) = parse_parameter(item) {
            challenges.last_mut()?.parameters.push(parameter);
            continue;
        }
        let (scheme, rest) = item.split_once(' ').unwrap_or((item, ""));
        let mut challenge = AuthChallenge { scheme, ..AuthChallenge::default() };
        let rest = rest.trim_matches([' ', '\t']);
        match parse_parameter(rest) {
            Some(parameter) => challenge.parameters.push(parameter),
            None if rest.is_empty() || is_token68(rest) => {}
            None => return None,
        }
        is_token(scheme).then(|| challenges.push(challenge))?;
    }
    (!challenges.is_empty()).then_some(challenges)
}

/// Splits at commas that are not in quotes, and leaves out empty parts. `None` where a quote has no end.
fn split_unquoted(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start) = (Vec::new(), 0);
    let (mut quoted, mut escaped) = (false, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if quoted => escaped = true,
            b'"' => quoted = !quoted,
            b',' if !quoted => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[start..]);
    let parts = parts.into_iter().map(|part| part.trim_matches([' ', '\t'])).filter(|part| !part.is_empty());
    (!quoted).then(|| parts.collect())
}

/// A parameter (RFC 9110 section 11.2): a token, `=`, and a token or a quoted string.
fn parse_parameter(text: &str) -> Option<(&str, &str)> {
    let (name, value) = text.split_once('=')?;
    let (name, value) = (name.trim_end_matches([' ', '\t']), value.trim_start_matches([' ', '\t']));
    (is_token(name) && (is_token(value) || is_quoted(value))).then_some((name, value))
}

fn is_quoted(text: &str) -> bool {
    let Some(inner) = text.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')) else { return false };
    let mut bytes = inner.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'"' || byte == b'\\' && bytes.next().is_none() {
            return false;
        }
    }
    true
}

/// RFC 9110 section 11.2.
fn is_token68(text: &str) -> bool {
    let value = text.trim_end_matches('=');
    !value.is_empty() && value.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-._~+/".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::place::Place;
    use oncegate_settings::ScopePart;

    fn scope(sources: Vec<ScopeSource>) -> ScopeRule {
        let part = |source| ScopePart { source, optional: false, name: "".into() };
        ScopeRule { parts: sources.into_iter().map(part).collect(), is_default: false }
    }

    fn by_authorization() -> ScopeRule {
        scope(vec![ScopeSource::Authorization])
    }

    #[test]
    fn a_challenge_that_clients_can_answer_is_taken() {
        for text in [
            "Basic realm=\"payments\"",
            "basic realm=payments",
            "Basic realm=\"a, b\", charset=\"UTF-8\"",
            "Basic realm=\"a \\\"b\\\"\"",
            "Basic charset=\"UTF-8\" , realm = \"a\"",
            "Bearer",
            "Bearer realm=\"a\", Basic realm=\"b\"",
            "Basic realm=\"b\", Bearer",
            "Token realm=\"Application\"",
            "Acme YWJj==",
            "Acme",
        ] {
            assert_eq!(check(text, &by_authorization()).expect(text), text);
        }
        let by_token = scope(vec![ScopeSource::Jwt { claim: "sub".into(), issuer: Arc::default() }]);
        assert!(check("Bearer realm=\"a\"", &by_token).is_ok());
    }

    #[test]
    fn a_challenge_that_nobody_can_answer_is_refused_with_the_reason() {
        for (text, reason) in [
            (" ", "is no challenge"),
            ("realm=\"a\"", "is no challenge"),
            ("Basic realm=\"a", "is no challenge"),
            ("Basic realm=\"a\"\r\nX: y", "is no challenge"),
            ("Basic realm=\"ä\"", "is no challenge"),
            ("Basic realm=a b", "is no challenge"),
            ("Ba(sic realm=\"a\"", "is no challenge"),
            ("Basic", "lacks the `realm`"),
            ("Basic charset=\"UTF-8\"", "lacks the `realm`"),
            ("Digest realm=\"a\", nonce=\"b\"", "names `Digest`"),
            ("Negotiate", "names `Negotiate`"),
            ("DPoP algs=\"ES256\"", "names `DPoP`"),
            ("OAuth realm=\"a\"", "names `OAuth`"),
            ("Basic realm=\"a\", NTLM", "names `NTLM`"),
            ("Acme realm=\"a\", nonce=\"b\"", "names `Acme`"),
            ("SCRAM-SHA-256 realm=\"a\"", "names `SCRAM-SHA-256`"),
        ] {
            let problem = check(text, &by_authorization()).expect_err(text);
            assert!(problem.starts_with(reason), "{text}: {problem}");
        }
        let by_cookie = scope(vec![ScopeSource::Place(Place::Cookie("sid".into()))]);
        assert!(check("Basic realm=\"a\"", &by_cookie).unwrap_err().starts_with("needs a scope"));
        let by_token = scope(vec![ScopeSource::Jwt { claim: "sub".into(), issuer: Arc::default() }]);
        assert!(check("Basic realm=\"a\"", &by_token).unwrap_err().contains("`Bearer` alone"));
    }
}
