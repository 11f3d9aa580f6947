//! The path that a message is posted to, with placeholders: `/v1/orders/{x-order-id}/payments`.

use super::percent::{encode_value, is_path};
use super::placeholders::{TemplatePiece, split_placeholders};

/// A path whose placeholders are named like the message headers that fill them.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{text}")]
pub struct MessagePathTemplate {
    text: Box<str>,
    segments: Vec<Vec<MessagePathPiece>>,
}

/// A piece of a segment.
#[derive(Clone, Debug, PartialEq, Eq)]
enum MessagePathPiece {
    /// Text as it was written.
    Text(Box<str>),
    /// The value of the header of this name.
    Header(Box<str>),
}

/// Why a path could not be filled in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MessagePathError {
    /// The message has no header of a placeholder's name, or an empty one.
    Missing,
    /// The value would lead out of its segment: services resolve `.` and `..`.
    Climbs,
}

impl MessagePathTemplate {
    /// Reads a template.
    ///
    /// # Errors
    /// The problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(inner) = text.strip_prefix('/') else { return Err("must begin with `/`".into()) };
        if !is_path(text) {
            return Err("has a character that no path has: percent-encode it".into());
        }
        let segments = inner.split('/').map(parse_segment).collect::<Result<_, _>>()?;
        Ok(Self { text: text.into(), segments })
    }

    /// The path with the values of the headers, each percent-encoded so that it stays in its segment.
    ///
    /// # Errors
    /// [`MessagePathError`].
    pub fn fill_in<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Result<String, MessagePathError> {
        let mut path = String::with_capacity(self.text.len());
        for pieces in &self.segments {
            path.push('/');
            let begin = path.len();
            for piece in pieces {
                match piece {
                    MessagePathPiece::Text(written) => path.push_str(written),
                    MessagePathPiece::Header(name) => {
                        let value = header(name).filter(|value| !value.is_empty()).ok_or(MessagePathError::Missing)?;
                        path.extend(encode_value(value));
                    }
                }
            }
            if matches!(&path[begin..], "." | "..") {
                return Err(MessagePathError::Climbs);
            }
        }
        Ok(path)
    }

    /// The template as it was written.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

fn parse_segment(segment: &str) -> Result<Vec<MessagePathPiece>, String> {
    let pieces = split_placeholders(segment)?.into_iter().map(|piece| match piece {
        TemplatePiece::Text(text) => Ok(MessagePathPiece::Text(text.into())),
        TemplatePiece::Placeholder("") => {
            Err("has a placeholder without a name: write `{x-order-id}`, the name of a message header".into())
        }
        TemplatePiece::Placeholder(name) => Ok(MessagePathPiece::Header(name.to_ascii_lowercase().into())),
    });
    pieces.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, id: &'static [u8]) -> Result<String, MessagePathError> {
        let header = |name: &str| (name == "x-id").then_some(id);
        MessagePathTemplate::parse(template).expect(template).fill_in(header)
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
    fn a_missing_or_climbing_value_is_refused() {
        for (template, id, why) in [
            ("/{x-id}", &b""[..], MessagePathError::Missing),
            ("/{other}", b"7", MessagePathError::Missing),
            ("/{x-id}", b".", MessagePathError::Climbs),
            ("/{x-id}", b"..", MessagePathError::Climbs),
            ("/{x-id}{x-id}/x", b".", MessagePathError::Climbs),
        ] {
            assert_eq!(filled(template, id), Err(why), "{template}");
        }
    }

    #[test]
    fn a_malformed_template_is_refused() {
        for (text, why) in [
            ("", "begin with `/`"),
            ("v1", "begin with `/`"),
            ("/a b", "percent-encode"),
            ("/a?b", "percent-encode"),
            ("/{a", "without a `}`"),
            ("/{a/b}", "without a `}`"),
            ("/a}", "without a `{`"),
            ("/{}", "without a name"),
            ("/{{a}", "inside"),
        ] {
            let message = MessagePathTemplate::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
