//! Where a service is asked what became of an attempt: the template of `reconcile.url`.

use std::fmt;
use std::sync::Arc;

use http::uri::PathAndQuery;

use super::upstream::Upstream;
use crate::domain::probe::Subject;

/// A template: a host that the file names, and a path and query with places for what is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lookup {
    /// Whom to ask.
    pub upstream: Arc<Upstream>,
    path: Vec<Piece>,
    query: Vec<Piece>,
}

/// A piece of a template.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// As it was written.
    Text(Box<str>),
    /// To be filled in.
    Place(Place),
}

/// What can be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Key,
    Path,
    Route,
    Scope,
}

const PLACES: [(&str, Place); 4] =
    [("key", Place::Key), ("scope", Place::Scope), ("route", Place::Route), ("path", Place::Path)];

const RIGHT: &str = "write it like `http://payments:8080/v1/lookup?key={key}`";

impl Lookup {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, beginning with a verb. Never has the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(format!("is no URL: {RIGHT}"));
        };
        let (host, rest) = rest.split_at(rest.find(['/', '?', '#']).unwrap_or(rest.len()));
        if [scheme, host].iter().any(|part| part.contains(['{', '}'])) {
            return Err("has something to fill in before its path: whom to ask is for the file alone".into());
        }
        let scheme = match scheme.to_ascii_lowercase().as_str() {
            "http" => "http",
            "https" => "https",
            _ => return Err(format!("is of a kind that is not known: {RIGHT}")),
        };
        let upstream = Arc::new(Upstream::parse(&format!("{scheme}://{host}"))?);
        if rest.contains('#') {
            return Err("has a fragment, which is never sent: leave `#` out".into());
        }
        let (path, query) = rest.split_once('?').map_or((rest, None), |(path, query)| (path, Some(query)));
        let path = pieces(if path.is_empty() { "/" } else { path })?;
        let query = query.map(pieces).transpose()?.unwrap_or_default();
        let lookup = Self { upstream, path, query };
        if ![Place::Key, Place::Path].iter().any(|place| lookup.names(*place)) {
            return Err(format!(
                "names neither `{{key}}` nor `{{path}}`: its answer would be the same for all; {RIGHT}"
            ));
        }
        // Whatever is filled in later is as harmless as this.
        match lookup.fill_in(|_| Some(String::new())) {
            Some(_) => Ok(lookup),
            None => Err("has characters that no URL may have: percent-encode them".into()),
        }
    }

    /// Whether it asks with the request's path.
    pub fn names_path(&self) -> bool {
        self.names(Place::Path)
    }

    /// What to ask for; `None` where it cannot be asked about this one: its path was not kept, or a value would lead out
    /// of the place that it is filled into.
    pub fn about(&self, subject: &Subject) -> Option<PathAndQuery> {
        let value = |place| match place {
            Place::Key => Some(encode(&subject.key)),
            Place::Path => subject.path.as_deref().map(encode),
            Place::Route => Some(encode(subject.route.as_bytes())),
            Place::Scope => Some(subject.scope.to_string()),
        };
        let climbs = |piece: &Piece| match piece {
            Piece::Place(Place::Key) => has_dot_segment(&subject.key),
            Piece::Place(Place::Path) => subject.path.as_deref().is_some_and(has_dot_segment),
            Piece::Place(Place::Route) => has_dot_segment(subject.route.as_bytes()),
            Piece::Place(Place::Scope) | Piece::Text(_) => false,
        };
        if self.path.iter().any(climbs) { None } else { self.fill_in(value) }
    }

    fn names(&self, place: Place) -> bool {
        self.path.iter().chain(&self.query).any(|piece| *piece == Piece::Place(place))
    }

    fn fill_in(&self, value: impl Fn(Place) -> Option<String>) -> Option<PathAndQuery> {
        let mut text = String::new();
        for (pieces, before) in [(&self.path, ""), (&self.query, "?")] {
            if !pieces.is_empty() {
                text.push_str(before);
            }
            for piece in pieces {
                match piece {
                    Piece::Text(written) => text.push_str(written),
                    Piece::Place(place) => text.push_str(&value(*place)?),
                }
            }
        }
        text.parse().ok()
    }
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else {
            return Err("has a `{` without a `}`".into());
        };
        pieces.extend(literal(before)?);
        let place = PLACES.iter().find(|(known, _)| *known == name);
        let (_, place) =
            place.ok_or("has a place that is not known: write `{key}`, `{scope}`, `{route}` or `{path}`")?;
        pieces.push(Piece::Place(*place));
        rest = after;
    }
    pieces.extend(literal(rest)?);
    Ok(pieces)
}

fn literal(text: &str) -> Result<Option<Piece>, String> {
    match text.contains('}') {
        true => Err("has a `}` without a `{`".into()),
        false => Ok((!text.is_empty()).then(|| Piece::Text(text.into()))),
    }
}

/// Everything but what is never encoded (RFC 3986 section 2.3): one segment of a path, or one value of a query.
fn encode(value: &[u8]) -> String {
    let mut encoded = String::with_capacity(value.len());
    for byte in value {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => encoded.push(char::from(*byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    encoded
}

/// Dots mean "up" to whoever reads a path, encoded or not, and some decode slashes first.
fn has_dot_segment(value: &[u8]) -> bool {
    value.split(|byte| b"/\\".contains(byte)).any(|segment| matches!(segment, b"." | b".."))
}

/// As it was written, but for what the query says beside names and places: there may be a secret in it.
impl fmt::Display for Lookup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.upstream, f)?;
        self.path.iter().try_for_each(|piece| fmt::Display::fmt(piece, f))?;
        if self.query.is_empty() {
            return Ok(());
        }
        let query: String = self.query.iter().map(Piece::to_string).collect();
        let shown: Vec<_> = query.split('&').map(without_values).collect();
        write!(f, "?{}", shown.join("&"))
    }
}

impl fmt::Display for Piece {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Text(written) => f.write_str(written),
            Self::Place(place) => {
                let name = PLACES.iter().find(|(_, known)| known == place).map_or("", |(name, _)| name);
                write!(f, "{{{name}}}")
            }
        }
    }
}

/// A parameter of a query with its name and its places, and dots for all else. What has no `=` may be a value.
fn without_values(parameter: &str) -> String {
    let (name, value) = match parameter.split_once('=') {
        Some((name, value)) if !name.contains('{') => (format!("{name}="), value),
        _ => (String::new(), parameter),
    };
    let mut shown = name;
    let mut rest = value;
    while !rest.is_empty() {
        let (text, place) = rest.split_at(rest.find('{').unwrap_or(rest.len()));
        // Braces come in pairs, which `pieces` has seen to.
        let (place, after) = place.split_at(place.find('}').map_or(place.len(), |end| end + 1));
        shown.push_str(if text.is_empty() { "" } else { "…" });
        shown.push_str(place);
        rest = after;
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::attempt::Token;
    use crate::domain::record::RecordId;
    use crate::domain::scope::Scope;

    fn subject(key: &[u8], path: Option<&'static [u8]>) -> Subject {
        Subject {
            id: RecordId::from_stored(&[1; 32]).unwrap(),
            token: Token::from_random([2; 16]),
            scope: Scope::from_stored(&[0xab; 32]).unwrap(),
            key: key.to_vec().into(),
            route: "pay".into(),
            path: path.map(Into::into),
        }
    }

    #[test]
    fn a_template_is_filled_in_and_nothing_gets_out_of_its_place() {
        let scope = "ab".repeat(32);
        for (template, key, path, asked) in [
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
            ("http://a/{key}:refund", b"..x", None, "/..x:refund"),
        ] {
            let lookup = Lookup::parse(template).unwrap();
            assert_eq!(lookup.about(&subject(key, path)).unwrap().as_str(), asked);
            assert_eq!(lookup.to_string().replace("/?", "?"), template.replace("/?", "?"));
        }
    }

    #[test]
    fn what_is_shown_of_a_query_is_names_and_places() {
        for (template, shown) in [
            ("http://a/k?token=s3cret&key={key}", "http://a/k?token=…&key={key}"),
            ("http://a/k?key={key}&token=s3cret", "http://a/k?key={key}&token=…"),
            ("http://a/k/{key}?s3cret", "http://a/k/{key}?…"),
            ("http://a/k/{key}?s3cret&b=", "http://a/k/{key}?…&b="),
            ("http://a/?q=s3cret:{key}", "http://a/?q=…{key}"),
            ("http://a/?q={key}:s3cret&r={route}", "http://a/?q={key}…&r={route}"),
            ("http://a/?q={scope}.s3cret.{key}", "http://a/?q={scope}…{key}"),
            ("http://a/?q={key}s3cret=s3cret", "http://a/?q={key}…"),
            ("http://a/?s3cret{key}", "http://a/?…{key}"),
            ("http://a/?t=s3cret=s3cret;u=s3cret&{key}", "http://a/?t=…&{key}"),
        ] {
            assert_eq!(Lookup::parse(template).unwrap().to_string(), shown, "{template}");
        }
    }

    #[test]
    fn what_would_lead_elsewhere_is_not_asked() {
        let in_path = Lookup::parse("http://a/k/{key}").unwrap();
        for key in [&b".."[..], b".", b"../admin", b"a/../b", b"a\\..", b"a/."] {
            assert_eq!(in_path.about(&subject(key, None)), None, "{key:?}");
        }
        let by_path = Lookup::parse("http://a/?p={path}").unwrap();
        assert_eq!(by_path.about(&subject(b"k", None)), None, "its path was not kept");
        assert!(by_path.names_path() && !in_path.names_path());
    }

    #[test]
    fn a_template_names_its_host_and_what_is_asked_about() {
        for (text, why) in [
            ("/lookup?key={key}", "is no URL"),
            ("h2c://a/{key}", "a kind that is not known"),
            ("file:///{key}", "a kind that is not known"),
            ("{key}://a/{key}", "before its path"),
            ("http://{key}/", "before its path"),
            ("http://a:{key}/", "before its path"),
            ("http://a{route}?k={key}", "before its path"),
            ("http:///{key}", "no host"),
            ("http://a:0/{key}", "port"),
            ("http://user:hunter2@a/{key}", "password"),
            ("http://hunter2@a/{key}", "password"),
            ("http://a/{kee}", "a place that is not known"),
            ("http://a/{}", "a place that is not known"),
            ("http://a/{key", "without a `}`"),
            ("http://a/key}{key}", "without a `{`"),
            ("http://a/{key}}", "without a `{`"),
            ("http://a/{key}#x", "fragment"),
            ("http://a/{route}/{scope}", "neither `{key}` nor `{path}`"),
            ("http://a/a b/{key}", "characters"),
        ] {
            let message = Lookup::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }
}
