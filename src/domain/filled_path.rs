//! A path with places to fill in: `/v1/orders/{x-order-id}/payments`.

use std::fmt;

/// A template whose places are named like the message headers that fill them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FilledPath {
    text: Box<str>,
    segments: Vec<Vec<Piece>>,
}

/// A piece of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    /// As it was written.
    Text(Box<str>),
    /// To be filled in with what has this name.
    Place(Box<str>),
}

/// Why a path could not be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfilled {
    /// Nothing, or an empty text, has the name of a place.
    Missing,
    /// The value would have led out of its segment: `.` and `..` mean something else to whoever reads a path.
    Climbs,
}

impl FilledPath {
    /// Reads a template.
    ///
    /// # Errors
    /// What is wrong with it, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(inner) = text.strip_prefix('/') else { return Err("must begin with `/`".into()) };
        if !text.bytes().all(|byte| matches!(byte, 0x21..=0x7e) && !b"?#\"<>\\^`|".contains(&byte)) {
            return Err("has a character that no path has: percent-encode it".into());
        }
        let segments = inner.split('/').map(pieces).collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), segments })
    }

    /// The path, each value percent-encoded so that it stays in its segment.
    ///
    /// # Errors
    /// [`Unfilled`].
    pub fn fill_in<'a>(&self, value: impl Fn(&str) -> Option<&'a [u8]>) -> Result<String, Unfilled> {
        let mut path = String::with_capacity(self.text.len());
        for pieces in &self.segments {
            path.push('/');
            let begin = path.len();
            for piece in pieces {
                match piece {
                    Piece::Text(written) => path.push_str(written),
                    Piece::Place(name) => {
                        let value = value(name).filter(|value| !value.is_empty()).ok_or(Unfilled::Missing)?;
                        encode(value, &mut path);
                    }
                }
            }
            if matches!(&path[begin..], "." | "..") {
                return Err(Unfilled::Climbs);
            }
        }
        Ok(path)
    }

    /// As it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl fmt::Display for FilledPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

fn pieces(segment: &str) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = segment;
    let text = |text: &str| match text.contains('}') {
        true => Err("has a `}` without a `{`".to_owned()),
        false => Ok((!text.is_empty()).then(|| Piece::Text(text.into()))),
    };
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, after)) = after.split_once('}') else {
            return Err("has a `{` without a `}` before the next slash".into());
        };
        if name.is_empty() || name.contains('{') {
            return Err("has a place without a name: write `{x-order-id}`, the name of a message header".into());
        }
        pieces.extend(text(before)?);
        pieces.push(Piece::Place(name.to_ascii_lowercase().into()));
        rest = after;
    }
    pieces.extend(text(rest)?);
    Ok(pieces)
}

/// Everything but what is never encoded (RFC 3986 section 2.3).
fn encode(value: &[u8], path: &mut String) {
    for byte in value {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => path.push(char::from(*byte)),
            _ => path.push_str(&format!("%{byte:02X}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, id: &'static [u8]) -> Result<String, Unfilled> {
        let value = |name: &str| (name == "x-id").then_some(id);
        FilledPath::parse(template).expect(template).fill_in(value)
    }

    #[test]
    fn a_value_stays_in_its_segment() {
        for (template, id, path) in [
            ("/v1/pay", &b""[..], "/v1/pay"),
            ("/", b"", "/"),
            ("/v1/{x-id}/pay", b"7", "/v1/7/pay"),
            ("/v1/{X-Id}.json", b"a/b?c#d%2F\xff", "/v1/a%2Fb%3Fc%23d%252F%FF.json"),
            ("/{x-id}-{x-id}", b"..", "/..-.."),
            ("/{x-id}/", b"...", "/.../"),
        ] {
            assert_eq!(filled(template, id).as_deref(), Ok(path), "{template}");
        }
    }

    #[test]
    fn what_is_missing_or_would_climb_is_refused() {
        for (template, id, why) in [
            ("/{x-id}", &b""[..], Unfilled::Missing),
            ("/{other}", b"7", Unfilled::Missing),
            ("/{x-id}", b".", Unfilled::Climbs),
            ("/{x-id}", b"..", Unfilled::Climbs),
            ("/{x-id}{x-id}/x", b".", Unfilled::Climbs),
        ] {
            assert_eq!(filled(template, id), Err(why), "{template}");
        }
    }

    #[test]
    fn what_is_no_template_is_refused() {
        for (text, why) in [
            ("", "begin with `/`"),
            ("v1", "begin with `/`"),
            ("/a b", "percent-encode"),
            ("/a?b", "percent-encode"),
            ("/{a", "without a `}`"),
            ("/{a/b}", "without a `}`"),
            ("/a}", "without a `{`"),
            ("/{}", "without a name"),
            ("/{{a}", "without a name"),
        ] {
            let message = FilledPath::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
