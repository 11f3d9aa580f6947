//! The paths of routes: what they match, and which of two is the more specific.

use std::fmt;

/// A route's path: each `{name}` a whole segment, a `{*rest}` the last one. Ordered by how specific it is: where two
/// patterns match the same path, the lesser one is to be believed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Pattern {
    segments: Vec<Segment>,
    text: Box<str>,
}

/// A piece between two slashes. From the most specific to the least.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Segment {
    /// This and nothing else.
    Literal(Box<str>),
    /// Any one segment that is not empty.
    One,
    /// Everything from here on, also nothing.
    Rest,
}

/// A piece between two slashes of a path that is matched.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Piece<'a> {
    /// Whatever a request has there, but nothing.
    Any,
    /// This text.
    Written(&'a str),
}

impl Pattern {
    /// Reads a path.
    ///
    /// # Errors
    /// What is wrong with it, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(inner) = text.strip_prefix('/') else {
            return Err("must begin with `/`".into());
        };
        if !text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !b"?#\"<>\\^`|".contains(&byte)) {
            let right = "spaces, `?`, `#` and what is not ASCII are percent-encoded there";
            return Err(format!("has a character that no request's path has: {right}"));
        }
        if has_needless_escape(text) {
            return Err("percent-encodes a letter, digit, `-`, `.`, `_` or `~`: write the character itself".into());
        }
        let (mut segments, mut names) = (Vec::new(), Vec::new());
        for segment in inner.split('/') {
            if segments.last() == Some(&Segment::Rest) {
                return Err("has something after `{*…}`, which takes all the rest".into());
            }
            if matches!(segment, "." | "..") {
                return Err("has a segment `.` or `..`, which requests are rid of before they are matched".into());
            }
            let (segment, name) = read_segment(segment)?;
            if name.is_some_and(|name| names.contains(&name)) {
                return Err("has the same name twice".into());
            }
            names.extend(name);
            segments.push(segment);
        }
        Ok(Self { segments, text: text.into() })
    }

    /// Whether a path, in its normal form, is one of this pattern's.
    pub fn matches(&self, path: &str) -> bool {
        self.fits(path.strip_prefix('/').unwrap_or(path).split('/').map(Piece::Written))
    }

    /// Whether every path of these pieces is one of this pattern's.
    pub(super) fn fits<'a>(&self, mut pieces: impl Iterator<Item = Piece<'a>>) -> bool {
        for segment in &self.segments {
            let is_it = match (segment, pieces.next()) {
                (Segment::Rest, Some(_)) => return true,
                (Segment::One, Some(piece)) => piece != Piece::Written(""),
                (Segment::Literal(literal), Some(piece)) => piece == Piece::Written(literal),
                (_, None) => false,
            };
            if !is_it {
                return false;
            }
        }
        pieces.next().is_none()
    }

    /// Whether two patterns match the same paths: names do not count.
    pub fn is_same_as(&self, other: &Self) -> bool {
        self.segments == other.segments
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

/// `/` and nothing else.
impl Default for Pattern {
    fn default() -> Self {
        Self { segments: vec![Segment::Literal("".into())], text: "/".into() }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// Requests are matched with such characters decoded (RFC 3986 section 6.2.2.2): a path that has them encoded would
/// match none.
fn has_needless_escape(text: &str) -> bool {
    text.split('%').skip(1).any(|after| {
        let byte = after.get(..2).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte))
    })
}

/// A segment, and its name where it has one.
fn read_segment(segment: &str) -> Result<(Segment, Option<&str>), String> {
    if !segment.contains(['{', '}']) {
        return Ok((Segment::Literal(segment.into()), None));
    }
    let inside = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let Some(inside) = inside.filter(|inside| !inside.contains(['{', '}'])) else {
        return Err("has a brace inside a segment: `{name}` stands for a whole one".into());
    };
    let (kind, name) = match inside.strip_prefix('*') {
        Some(name) => (Segment::Rest, name),
        None => (Segment::One, inside),
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
            "/.well-known/x",
        ] {
            assert_eq!(Pattern::parse(text).map(|pattern| pattern.to_string()), Ok(text.into()));
        }
    }

    #[test]
    fn what_no_request_could_match_is_refused() {
        for (text, why) in [
            ("", "begin with `/`"),
            ("v1", "begin with `/`"),
            ("/a b", "percent-encoded"),
            ("/a?b", "percent-encoded"),
            ("/caf\u{e9}", "percent-encoded"),
            ("/p%61y", "the character itself"),
            ("/a/../b", "rid of"),
            ("/{id}.json", "whole"),
            ("/{id", "whole"),
            ("/{a}{b}", "whole"),
            ("/{}", "name"),
            ("/{*}", "name"),
            ("/{a-b}", "name"),
            ("/{*rest}/x", "all the rest"),
            ("/{a}/{a}", "twice"),
        ] {
            let message = Pattern::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text).expect(text)
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

    #[test]
    fn the_more_specific_pattern_comes_first() {
        let sorted = ["/v1/pay", "/v1/{id}", "/v1/{id}/x", "/v1/{*rest}", "/{a}/pay", "/{*rest}"].map(pattern);
        let mut shuffled = sorted.clone();
        shuffled.reverse();
        shuffled.sort();
        assert_eq!(shuffled, sorted);
    }
}
