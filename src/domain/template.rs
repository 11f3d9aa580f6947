//! The paths of an API's description: `/v1/payments/{id}`.

use std::fmt;

use super::path::{decode_unreserved, normal_form};
use super::pattern::{Pattern, Piece};

/// All the paths that an operation has, whatever its parameters are.
///
/// A parameter is never empty and has no slash (OpenAPI, "Path Templating"), and may be anything else; so is a piece
/// with a parameter in it, such as `{id}.json`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Template {
    text: Box<str>,
    /// `None` for a piece with a parameter.
    pieces: Vec<Option<Box<str>>>,
}

impl Template {
    /// Reads a template. What a client would percent-encode is percent-encoded.
    ///
    /// # Errors
    /// What is wrong with it, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('/') {
            return Err("must begin with `/`");
        }
        let sent = normal_form(&encode(text)).into_owned();
        let pieces = sent[1..].split('/').map(read_piece).collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), pieces })
    }

    /// Whether each of its paths is one of the pattern's.
    pub fn is_covered_by(&self, pattern: &Pattern) -> bool {
        pattern.fits(self.pieces.iter().map(|piece| piece.as_deref().map_or(Piece::Any, Piece::Written)))
    }
}

/// As it was written.
impl fmt::Display for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// `None` for a piece with a parameter.
fn read_piece(piece: &str) -> Result<Option<Box<str>>, &'static str> {
    let mut inside = false;
    let mut has_parameter = false;
    for byte in piece.bytes() {
        match byte {
            b'{' if inside => return Err("has a `{` within a parameter"),
            b'}' if !inside => return Err("has a `}` without a `{`"),
            b'{' | b'}' => inside = !inside,
            _ => {}
        }
        has_parameter |= inside;
    }
    match (inside, has_parameter) {
        (true, _) => Err("has a `{` without a `}` before the next slash"),
        (false, true) => Ok(None),
        (false, false) => Ok(Some(piece.into())),
    }
}

/// As a client sends it: what no path may have is percent-encoded (RFC 3986 section 2.1), but for braces, which are ours
/// to read.
fn encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            0x21..=0x7e if !b"?#\"<>\\^`|".contains(&byte) => encoded.push(char::from(byte)),
            _ => encoded.push_str(&format!("%{byte:02X}")),
        }
    }
    decode_unreserved(&encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_covered_by_what_takes_any_value() {
        for (template, covered_by, not_by) in [
            ("/v1/pay", &["/v1/pay", "/v1/{id}", "/{a}/{b}", "/v1/{*rest}", "/{*rest}"][..], &["/v1/pay/", "/v1"][..]),
            ("/v1/{id}", &["/v1/{other}", "/v1/{*rest}", "/{*rest}"], &["/v1/7", "/v1/{a}/{b}", "/v1/{a}/{*rest}"]),
            ("/v1/{id}/pay", &["/v1/{id}/pay", "/v1/{id}/{verb}", "/v1/{*rest}"], &["/v1/id/pay", "/v1/{id}"]),
            ("/v1/{id}.json", &["/v1/{file}", "/v1/{*rest}"], &["/v1/7.json"]),
            ("/v1/{a}-{b}", &["/v1/{pair}"], &["/v1/{a}/{b}"]),
            ("/v1/", &["/v1/", "/v1/{*rest}"], &["/v1/{id}", "/v1"]),
            ("/", &["/", "/{*rest}"], &["/{id}"]),
            ("/v1/x/../p%61y", &["/v1/pay"], &["/v1/x/{*rest}"]),
            ("/v1/a b/caf\u{e9}", &["/v1/a%20b/caf%C3%A9"], &["/v1/ab"]),
        ] {
            let read = Template::parse(template).expect(template);
            let covers = |pattern: &&str| read.is_covered_by(&Pattern::parse(pattern).expect(pattern));
            assert!(covered_by.iter().all(covers), "{template}: one of {covered_by:?} does not cover it");
            assert!(!not_by.iter().any(covers), "{template}: one of {not_by:?} covers it");
            assert_eq!(read.to_string(), template);
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for text in ["", "v1", "/{a", "/a}", "/{a{b}}", "/{a/b}"] {
            assert!(Template::parse(text).is_err(), "{text}");
        }
    }
}
