//! The paths of routes: the requests that they match, and which of two is the more specific.

use serde::{Deserialize, Serialize};

use super::foreign_path::problem_of_foreign_syntax;
use super::normal_path::RequestPath;
use super::percent::{is_path, normalize_escapes};
use super::placeholders::{TemplatePiece, split_placeholders};

/// A route's path: each `{name}` is a whole segment, and `{*rest}` the rest of the path. Ordered by how specific it is:
/// where two patterns match the same path, the lesser one counts.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display, Deserialize, Serialize)]
#[display("{text}")]
#[serde(try_from = "String", into = "String")]
pub struct PathPattern {
    segments: Vec<PatternSegment>,
    text: Box<str>,
}

/// A segment of a pattern. From the most specific to the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PatternSegment {
    /// This text alone.
    Literal(Box<str>),
    /// Any one segment that is not empty.
    One,
    /// All segments from here on; the last one may be empty.
    Rest,
}

impl TryFrom<String> for PathPattern {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<PathPattern> for String {
    fn from(pattern: PathPattern) -> Self {
        pattern.text.into()
    }
}

impl PathPattern {
    /// Reads a path. An error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        if let Some(problem) = problem_of_foreign_syntax(text) {
            return Err(problem);
        }
        let Some(inner) = text.strip_prefix('/') else {
            return Err("must begin with `/`".into());
        };
        if !is_path(text) {
            let right = "spaces, `?`, `#` and all that is not ASCII are percent-encoded there";
            return Err(format!("has a character that no request's path has: {right}"));
        }
        // Requests are matched in their normal form: a path in another form would match none.
        let normal = normalize_escapes(text);
        if normal.len() != text.len() {
            return Err("percent-encodes a letter, digit, `-`, `.`, `_` or `~`: write the character itself".into());
        }
        if normal != text {
            return Err(format!("has hexadecimal digits in lower case: write `{normal}`"));
        }
        if text.contains("//") {
            return Err("has an empty segment, and requests with `//` are not matched as they are written".into());
        }
        let (mut segments, mut names) = (Vec::new(), Vec::new());
        for segment in inner.split('/') {
            if segments.last() == Some(&PatternSegment::Rest) {
                return Err("has something after `{*…}`, which takes all the rest".into());
            }
            if matches!(segment, "." | "..") {
                return Err("has a segment `.` or `..`, which are removed from requests before they are matched".into());
            }
            let (segment, name) = parse_segment(segment)?;
            if name.is_some_and(|name| names.contains(&name)) {
                return Err("has the same name twice".into());
            }
            names.extend(name);
            segments.push(segment);
        }
        Ok(Self { segments, text: text.into() })
    }

    /// Whether the pattern matches a path, which is in its normal form.
    pub fn matches(&self, path: &str) -> bool {
        self.matches_segments(path.strip_prefix('/').unwrap_or(path).split('/').map(Some))
    }

    /// Whether the pattern matches every path of these segments. `None` stands for any text but the empty one.
    pub(super) fn matches_segments<'a>(&self, mut others: impl Iterator<Item = Option<&'a str>>) -> bool {
        for segment in &self.segments {
            let is_match = match (segment, others.next()) {
                (PatternSegment::Rest, Some(_)) => return true,
                (PatternSegment::One, Some(other)) => other != Some(""),
                (PatternSegment::Literal(literal), Some(other)) => other == Some(&**literal),
                (_, None) => false,
            };
            if !is_match {
                return false;
            }
        }
        others.next().is_none()
    }

    /// Whether the pattern matches a lenient form of a path, see [`lenient_form`](super::normal_path::lenient_form).
    /// The case of letters in fixed segments and a `/` at the pattern's end do not count.
    pub fn matches_leniently(&self, form: &str) -> bool {
        // The root has no segment.
        let mut left = if form == "/" { "" } else { form };
        for segment in &self.segments {
            match segment {
                PatternSegment::Rest => return true,
                PatternSegment::Literal(literal) if literal.is_empty() => continue,
                PatternSegment::Literal(_) | PatternSegment::One => {}
            }
            let Some(inner) = left.strip_prefix('/') else { return false };
            let end = memchr::memchr(b'/', inner.as_bytes()).unwrap_or(inner.len());
            let (other, rest) = inner.split_at(end);
            if matches!(segment, PatternSegment::Literal(literal) if !literal.eq_ignore_ascii_case(other)) {
                return false;
            }
            left = rest;
        }
        left.is_empty()
    }

    /// The segment of a path at the placeholder `{name}`, percent-encoded as it is in the path's normal form. `None`
    /// for a path that does not match, and for a pattern that has no segment of this name.
    pub fn segment_of<'a>(&self, name: &str, path: &'a RequestPath<'_>) -> Option<&'a str> {
        let (index, path) = (self.index_of(name)?, self.matching_form(path)?);
        path.split('/').nth(index)
    }

    /// The path with `{name}` for that segment.
    pub fn without_segment(&self, name: &str, path: &RequestPath<'_>) -> Option<String> {
        let (index, path) = (self.index_of(name)?, self.matching_form(path)?);
        let placeholder = format!("{{{name}}}");
        let segments = path.split('/').enumerate();
        let segments = segments.map(|(at, segment)| if at == index { placeholder.as_str() } else { segment });
        Some(segments.collect::<Vec<_>>().join("/"))
    }

    pub fn has_segment(&self, name: &str) -> bool {
        self.index_of(name).is_some()
    }

    /// The form of a path in which its segments stand where the pattern has them.
    fn matching_form<'a>(&self, path: &'a RequestPath<'_>) -> Option<&'a str> {
        if self.matches(path.normal()) {
            return Some(path.normal());
        }
        path.lenient().filter(|form| self.matches_leniently(form))
    }

    /// The number of a placeholder's segment, the empty one before the first `/` counted. `{*rest}` is no segment.
    fn index_of(&self, name: &str) -> Option<usize> {
        let inner = |segment: &'_ str| -> Option<bool> { Some(segment.strip_prefix('{')?.strip_suffix('}')? == name) };
        self.text.split('/').position(|segment| inner(segment) == Some(true)).filter(|_| !name.starts_with('*'))
    }

    /// Whether two patterns match the same paths, whatever the names of their placeholders.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.segments == other.segments
    }

    pub(super) fn segments(&self) -> &[PatternSegment] {
        &self.segments
    }

    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// A segment, and its placeholder's name where it has one.
fn parse_segment(segment: &str) -> Result<(PatternSegment, Option<&str>), String> {
    let inside = match split_placeholders(segment).as_deref() {
        Ok([]) => return Ok((PatternSegment::Literal("".into()), None)),
        Ok([TemplatePiece::Text(text)]) => return Ok((PatternSegment::Literal((*text).into()), None)),
        Ok([TemplatePiece::Placeholder(inside)]) => *inside,
        Ok(_) | Err(_) => return Err("has a brace inside a segment: `{name}` stands for a whole one".into()),
    };
    let (kind, name) = match inside.strip_prefix('*') {
        Some(name) => (PatternSegment::Rest, name),
        None => (PatternSegment::One, inside),
    };
    if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_') {
        return Err(
            "has a segment without a proper name: write `{name}` or `{*rest}`, of letters, digits and `_`".into()
        );
    }
    Ok((kind, Some(name)))
}

#[cfg(test)]
mod tests {
    use super::super::normal_path::lenient_form;
    use super::*;

    #[test]
    fn a_path_has_literal_segments_named_ones_and_a_rest() {
        for text in [
            "/",
            "/v1/payments",
            "/v1/{id}/pay",
            "/{*rest}",
            "/v1/a%20b/",
            "/v1/{a}/{b}/{*c}",
            "/v1/pay:cancel",
            "/v1/{id}/things:batch",
            "/users/@me",
            "/v1/$batch",
            "/v1/a*b",
            "/~user/Products(1)",
            "/.well-known/x",
        ] {
            assert_eq!(PathPattern::parse(text).map(|pattern| pattern.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn a_path_that_no_request_could_match_is_refused() {
        for (text, why) in [
            ("", "begin with `/`"),
            ("v1", "begin with `/`"),
            ("/a b", "percent-encoded"),
            ("/a?b", "percent-encoded"),
            ("/caf\u{e9}", "percent-encoded"),
            ("/p%61y", "the character itself"),
            ("/a%2fb", "`/a%2Fb`"),
            ("/v1//pay", "empty segment"),
            ("/a/../b", "removed"),
            ("/{id}.json", "whole"),
            ("/{id", "whole"),
            ("/{a}{b}", "whole"),
            ("/{}", "name"),
            ("/{*}", "name"),
            ("/{a-b}", "name"),
            ("/{*rest}/x", "all the rest"),
            ("/{a}/{a}", "twice"),
            ("/orders/:id/pay", "write `{id}`"),
            ("/orders/:", "write `{name}`"),
            ("/files/:path*", "write `{*path}`"),
            ("/v1/*", "write `{*rest}`"),
            ("/v1/**", "write `{*rest}`"),
            ("/v1/*/pay", "or `{name}`"),
            ("/v1/*path", "write `{*rest}`"),
            ("/orders/<id>", "write `{id}`"),
            ("/orders/<int:order_id>/pay", "write `{order_id}`"),
            ("/v1/(.*)", "`{*rest}`"),
            ("/v1/[^/]+/pay", "`{name}`"),
            ("/v1/.*", "write `{*rest}`"),
            ("/v1/pay$", "regular expression"),
            ("^/v1/pay", "regular expression"),
            ("~/v1", "regular expression"),
        ] {
            let message = PathPattern::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    fn pattern(text: &str) -> PathPattern {
        PathPattern::parse(text).expect(text)
    }

    #[test]
    fn names_do_not_make_two_patterns_of_one() {
        assert!(pattern("/v1/{id}/x").is_same_as(&pattern("/v1/{name}/x")));
        assert!(pattern("/{*rest}").is_same_as(&pattern("/{*all}")));
        assert!(!pattern("/{id}").is_same_as(&pattern("/{*id}")));
        assert!(!pattern("/a").is_same_as(&pattern("/a/")));
    }

    #[test]
    fn a_pattern_matches_whole_segments() {
        for (text, matched, others) in [
            ("/v1/pay", &["/v1/pay"][..], &["/v1/pay/", "/v1", "/v1/pays", "/v1/pay/x", "/V1/pay"][..]),
            ("/v1/{id}", &["/v1/7", "/v1/a.b"], &["/v1/", "/v1", "/v1/7/", "/v1/7/x"]),
            ("/v1/{id}/pay", &["/v1/7/pay"], &["/v1//pay", "/v1/7/8/pay"]),
            ("/v1/{*rest}", &["/v1/", "/v1/a", "/v1/a/b"], &["/v1", "/v2/a"]),
            ("/{*rest}", &["/", "/a", "/a/b/"], &[]),
            ("/", &["/"], &["/a", "//"]),
        ] {
            matched.iter().for_each(|path| assert!(pattern(text).matches(path), "{text} {path}"));
            others.iter().for_each(|path| assert!(!pattern(text).matches(path), "{text} {path}"));
        }
    }

    fn is_lenient_match(text: &str, path: &str) -> bool {
        lenient_form(path).is_some_and(|form| pattern(text).matches_leniently(&form))
    }

    #[test]
    fn a_lenient_match_ignores_what_lenient_services_ignore() {
        for (text, paths) in [
            ("/v1/pay", &["/v1/pay", "/V1/Pay", "//v1/pay/", "/v1/x/../pay", "/v1%2Fpay"][..]),
            ("/v1/pay/", &["/v1/pay", "/v1/pay/"]),
            ("/v1/{id}/pay", &["/v1/7;a/PAY", "/v1//7/pay"]),
            ("/v1/{*rest}", &["/v1", "/v1/", "/V1/a/B/"]),
            ("/{*rest}", &["/", "//", "/a"]),
            ("/", &["/", "//", "/;a", "/x/.."]),
        ] {
            for path in paths {
                assert!(is_lenient_match(text, path), "{text} {path}");
            }
        }
        for (text, paths) in [
            ("/v1/pay", &["/v1", "/", "/v1/pay/x", "/v1/pays", "/v1%252Fpay"][..]),
            ("/v1/{id}", &["/v1", "/v1/", "/v1/a%2Fb"]),
            ("/", &["/a"]),
        ] {
            for path in paths {
                assert!(!is_lenient_match(text, path), "{text} {path}");
            }
        }
    }

    #[test]
    fn the_more_specific_pattern_comes_first() {
        let sorted = ["/v1/pay", "/v1/{id}", "/v1/{id}/x", "/v1/{*rest}", "/{a}/pay", "/{*rest}"].map(pattern);
        let mut shuffled = sorted.clone();
        shuffled.reverse();
        shuffled.sort();
        assert_eq!(shuffled, sorted);
    }
}
