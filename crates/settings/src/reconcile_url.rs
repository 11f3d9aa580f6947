//! The questions to a service about unknown outcomes, and the template of their URL.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::uri::PathAndQuery;

use super::service_url::{parse_service, split};
use super::{ParseResult, UpstreamTarget, Word};
use crate::words;
use oncegate_domain::inquiry::InquirySubject;
use oncegate_domain::percent::encode_value;
use oncegate_domain::placeholders::{TemplatePiece, split_placeholders};

/// The way in which the service is asked about unknown outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReconcileConfig {
    /// The URL to ask.
    pub lookup: Arc<ReconcileUrl>,
    /// The pause between the first two questions; doubled after each.
    pub every: Duration,
    /// The number of questions without a verdict after which the key is given up; at least `confirmations`.
    pub max_attempts: u32,
    /// The number of 404 responses in a row after which "not executed" is accepted; at least one.
    pub confirmations: u32,
}

/// A URL with parameters: the host is fixed, and the path and the query have placeholders for an attempt's properties.
#[derive(Clone, PartialEq, Eq, derive_more::Debug)]
#[debug("{self}")]
pub struct ReconcileUrl {
    /// The service to ask.
    pub upstream: Arc<UpstreamTarget>,
    path: Vec<UrlPiece>,
    query: Vec<UrlPiece>,
}

/// A piece of a path or a query.
#[derive(Clone, Debug, PartialEq, Eq)]
enum UrlPiece {
    /// Text as it was written.
    Text(Box<str>),
    /// A property of the attempt.
    Parameter(UrlParameter),
}

words! {
    /// A property of an attempt that a URL may have.
    pub enum UrlParameter {
        /// The record's id.
        Id = "id",
        /// The key.
        Key = "key",
        /// The hash of the scope.
        Scope = "scope",
        /// The route's name.
        Route = "route",
        /// The path with its query, as it was sent.
        Path = "path",
    }
}

const EXAMPLE: &str = "write it like `http://payments:8080/v1/lookup?id={id}`";

impl ReconcileUrl {
    /// Reads a template.
    pub fn parse(text: &str) -> ParseResult<Self> {
        let before_path = split(text).map_or("", |(_, _, rest)| &text[..text.len() - rest.len()]);
        if before_path.contains(['{', '}']) {
            return Err("has a placeholder before its path: the host is for the file alone to name".into());
        }
        let (upstream, rest) = parse_service(text, EXAMPLE)?;
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let path = parse_pieces(if path.is_empty() { "/" } else { path })?;
        let query = query.map(parse_pieces).transpose()?.unwrap_or_default();
        let url = Self { upstream: Arc::new(upstream), path, query };
        if ![UrlParameter::Id, UrlParameter::Key, UrlParameter::Path].iter().any(|parameter| url.has(*parameter)) {
            return Err(format!(
                "names neither `{{id}}` nor `{{key}}` nor `{{path}}`: the answer would be the same for all keys; {EXAMPLE}"
            ));
        }
        // Encoded values bring in no character that this check would refuse.
        match url.fill_in(|_| Some(String::new())) {
            Some(_) => Ok(url),
            None => Err("has characters that no URL may have: percent-encode them".into()),
        }
    }

    /// Whether the URL has the request's key as a parameter.
    pub fn names_key(&self) -> bool {
        self.has(UrlParameter::Key)
    }

    /// Whether the URL has the request's path as a parameter.
    pub fn names_path(&self) -> bool {
        self.has(UrlParameter::Path)
    }

    /// Whether the URL has the key and nothing that tells callers apart. Two callers may use one key.
    pub fn confuses_callers(&self) -> bool {
        self.has(UrlParameter::Key) && ![UrlParameter::Id, UrlParameter::Scope].iter().any(|one| self.has(*one))
    }

    /// Whether the service can find the request by nothing but the record's id.
    pub fn needs_id(&self) -> bool {
        self.has(UrlParameter::Id) && ![UrlParameter::Key, UrlParameter::Path].iter().any(|one| self.has(*one))
    }

    /// The path and query to ask for; `None` where the service cannot be asked about this attempt: its path was not
    /// kept, or a value would lead out of its segment.
    pub fn target_for(&self, subject: &InquirySubject) -> Option<PathAndQuery> {
        let value = |parameter| match parameter {
            UrlParameter::Id => Some(subject.id.to_string()),
            UrlParameter::Key => Some(encode_value(&subject.key).to_string()),
            UrlParameter::Path => subject.path.as_deref().map(|path| encode_value(path).to_string()),
            UrlParameter::Route => Some(encode_value(subject.route.as_bytes()).to_string()),
            UrlParameter::Scope => Some(subject.scope.to_string()),
        };
        let climbs = |piece: &UrlPiece| match piece {
            UrlPiece::Parameter(UrlParameter::Key) => has_dot_segment(&subject.key),
            UrlPiece::Parameter(UrlParameter::Path) => subject.path.as_deref().is_some_and(has_dot_segment),
            UrlPiece::Parameter(UrlParameter::Route) => has_dot_segment(subject.route.as_bytes()),
            UrlPiece::Parameter(UrlParameter::Id | UrlParameter::Scope) | UrlPiece::Text(_) => false,
        };
        if self.path.iter().any(climbs) { None } else { self.fill_in(value) }
    }

    fn has(&self, parameter: UrlParameter) -> bool {
        self.path.iter().chain(&self.query).any(|piece| *piece == UrlPiece::Parameter(parameter))
    }

    fn fill_in(&self, value: impl Fn(UrlParameter) -> Option<String>) -> Option<PathAndQuery> {
        let mut text = String::new();
        for (pieces, before) in [(&self.path, ""), (&self.query, "?")] {
            if !pieces.is_empty() {
                text.push_str(before);
            }
            for piece in pieces {
                match piece {
                    UrlPiece::Text(written) => text.push_str(written),
                    UrlPiece::Parameter(parameter) => text.push_str(&value(*parameter)?),
                }
            }
        }
        text.parse().ok()
    }
}

fn parse_pieces(text: &str) -> Result<Vec<UrlPiece>, String> {
    let pieces = split_placeholders(text)?.into_iter().map(|piece| match piece {
        TemplatePiece::Text(text) => Ok(UrlPiece::Text(text.into())),
        TemplatePiece::Placeholder(name) => UrlParameter::parse(name).map(UrlPiece::Parameter).ok_or_else(|| {
            "has a placeholder that is not known: write `{id}`, `{key}`, `{scope}`, `{route}` or `{path}`".into()
        }),
    });
    pieces.collect()
}

/// Whether a value has a segment `.` or `..`. Readers of a path resolve them, encoded or not, and some decode slashes
/// first.
fn has_dot_segment(value: &[u8]) -> bool {
    value.split(|byte| b"/\\".contains(byte)).any(|segment| matches!(segment, b"." | b".."))
}

/// The service and the placeholders, and the names in the query. There may be a secret in all else.
impl fmt::Display for ReconcileUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/", self.upstream)?;
        for piece in &self.path {
            match piece {
                UrlPiece::Text(written) if &**written == "/" => {}
                UrlPiece::Text(_) => f.write_str("…")?,
                UrlPiece::Parameter(_) => fmt::Display::fmt(piece, f)?,
            }
        }
        if self.query.is_empty() {
            return Ok(());
        }
        let query: String = self.query.iter().map(UrlPiece::to_string).collect();
        let shown: Vec<_> = query.split('&').map(hide_values).collect();
        write!(f, "?{}", shown.join("&"))
    }
}

impl fmt::Display for UrlPiece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(written) => f.write_str(written),
            Self::Parameter(parameter) => write!(f, "{{{}}}", parameter.word()),
        }
    }
}

/// A pair of the query with its name and its placeholders, and dots for all else. A pair without a `=` may be a value.
fn hide_values(pair: &str) -> String {
    let (mut shown, value) = match pair.split_once('=') {
        Some((name, value)) if !name.contains('{') => (format!("{name}="), value),
        _ => (String::new(), pair),
    };
    for piece in split_placeholders(value).expect("the braces of a template that was read pair") {
        match piece {
            TemplatePiece::Text(_) => shown.push('…'),
            TemplatePiece::Placeholder(name) => shown.push_str(&format!("{{{name}}}")),
        }
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use oncegate_domain::ids::{RecordId, Token};
    use oncegate_domain::scope::Scope;

    fn subject(key: &[u8], path: Option<&'static [u8]>) -> InquirySubject {
        InquirySubject {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([2; 16]),
            scope: Scope::from_stored(&[0xab; 32]).unwrap(),
            key: key.to_vec().into(),
            route: "pay".into(),
            path: path.map(Into::into),
        }
    }

    #[test]
    fn a_filled_in_value_stays_in_its_segment_or_value() {
        let (id, scope) = ("01".repeat(32), "ab".repeat(32));
        for (template, key, path, target) in [
            ("http://a/k/{key}", &b"k-1"[..], None, "/k/k-1"),
            ("https://a/k/{key}", b"k-1", None, "/k/k-1"),
            ("http://a/k/{key}/x", b"a/b?c#d&e=f%2F", None, "/k/a%2Fb%3Fc%23d%26e%3Df%252F/x"),
            ("http://a/?k={key}&s={scope}", b"..", None, &format!("/?k=..&s={scope}")),
            (
                "http://a?r={route}&p={path}",
                b"k",
                Some(&b"/v1/pay?a=1&b=\xff"[..]),
                "/?r=pay&p=%2Fv1%2Fpay%3Fa%3D1%26b%3D%FF",
            ),
            ("http://a/k/{id}", b"..", None, &format!("/k/{id}")),
            ("http://a/?id={id}&k={key}", b"k", None, &format!("/?id={id}&k=k")),
            ("http://a/{key}:refund", b"..x", None, "/..x:refund"),
        ] {
            let url = ReconcileUrl::parse(template).unwrap();
            assert_eq!(url.target_for(&subject(key, path)).unwrap().as_str(), target);
        }
    }

    #[test]
    fn only_the_host_and_names_and_placeholders_are_shown() {
        for (template, shown) in [
            ("http://a/k?token=s3cret&key={key}", "http://a/…?token=…&key={key}"),
            ("http://a/k?key={key}&token=s3cret", "http://a/…?key={key}&token=…"),
            ("http://a/k/{key}?s3cret", "http://a/…{key}?…"),
            ("http://a/k/{key}?s3cret&b=", "http://a/…{key}?…&b="),
            ("http://a/?q=s3cret:{key}", "http://a/?q=…{key}"),
            ("http://a/?q={key}:s3cret&r={route}", "http://a/?q={key}…&r={route}"),
            ("http://a/?q={scope}.s3cret.{key}", "http://a/?q={scope}…{key}"),
            ("http://a/?q={key}s3cret=s3cret", "http://a/?q={key}…"),
            ("http://a/?s3cret{key}", "http://a/?…{key}"),
            ("http://a/?t=s3cret=s3cret;u=s3cret&{key}", "http://a/?t=…&{key}"),
        ] {
            assert_eq!(ReconcileUrl::parse(template).unwrap().to_string(), shown, "{template}");
        }
    }

    #[test]
    fn a_value_that_would_climb_is_not_asked_about() {
        let in_path = ReconcileUrl::parse("http://a/k/{key}").unwrap();
        for key in [&b".."[..], b".", b"../admin", b"a/../b", b"a\\..", b"a/."] {
            assert_eq!(in_path.target_for(&subject(key, None)), None, "{key:?}");
        }
        let by_path = ReconcileUrl::parse("http://a/?p={path}").unwrap();
        assert_eq!(by_path.target_for(&subject(b"k", None)), None, "its path was not kept");
        assert!(by_path.names_path() && !in_path.names_path());
    }

    #[test]
    fn a_url_names_its_host_and_has_the_key_or_the_path() {
        for (text, why) in [
            ("/lookup?key={key}", "is no URL"),
            ("h2c://a/{key}", "an unknown scheme"),
            ("file:///{key}", "an unknown scheme"),
            ("{key}://a/{key}", "before its path"),
            ("http://{key}/", "before its path"),
            ("http://a:{key}/", "before its path"),
            ("http://a{route}?k={key}", "before its path"),
            ("http:///{key}", "no host"),
            ("http://a:0/{key}", "port"),
            ("http://user:hunter2@a/{key}", "password"),
            ("http://hunter2@a/{key}", "password"),
            ("http://a/{kee}", "a placeholder that is not known"),
            ("http://a/{}", "a placeholder that is not known"),
            ("http://a/{key", "without a `}`"),
            ("http://a/key}{key}", "without a `{`"),
            ("http://a/{key}}", "without a `{`"),
            ("http://a/{key}#x", "fragment"),
            ("http://a/{route}/{scope}", "neither `{id}` nor `{key}` nor `{path}`"),
            ("http://a/a b/{key}", "characters"),
        ] {
            let message = ReconcileUrl::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }

    #[test]
    fn a_key_without_an_id_or_a_scope_confuses_callers() {
        for (template, confuses, needs_id) in [
            ("http://a/{key}", true, false),
            ("http://a/{route}/{key}?p={path}", true, false),
            ("http://a/{key}?s={scope}", false, false),
            ("http://a/{key}?id={id}", false, false),
            ("http://a/?p={path}", false, false),
            ("http://a/{id}?s={scope}&r={route}", false, true),
        ] {
            let url = ReconcileUrl::parse(template).unwrap();
            assert_eq!((url.confuses_callers(), url.needs_id()), (confuses, needs_id), "{template}");
        }
    }
}
