//! The path that a message is posted to, with placeholders: `/v1/orders/{x-order-id}/payments`.

use super::percent::{encode_value, is_path};
use super::placeholders::{TemplatePiece, split_placeholders};

/// A path whose placeholders are named like the message headers that fill them, in any case.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub struct MessagePathTemplate(Box<str>);

impl MessagePathTemplate {
    /// Reads a template. An error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("must begin with `/`".into());
        }
        if !is_path(text) {
            return Err("has a character that no path has: percent-encode it".into());
        }
        if split_placeholders(text)?.contains(&TemplatePiece::Placeholder("")) {
            return Err("has a placeholder without a name: write `{x-order-id}`, the name of a message header".into());
        }
        Ok(Self(text.into()))
    }

    /// The path with the values of the headers of these names, in lower case; each value is percent-encoded so that it
    /// stays in its segment. `None` if the message has no such header, or an empty one, or if a value would lead out of
    /// its segment: services resolve `.` and `..`.
    pub fn fill_in<'a>(&self, header: impl Fn(&str) -> Option<&'a [u8]>) -> Option<String> {
        let mut path = String::with_capacity(self.0.len());
        for segment in self.0.split('/').skip(1) {
            path.push('/');
            let begin = path.len();
            for piece in split_placeholders(segment).ok()? {
                match piece {
                    TemplatePiece::Text(written) => path.push_str(written),
                    TemplatePiece::Placeholder(name) => {
                        let value = header(&name.to_ascii_lowercase()).filter(|value| !value.is_empty())?;
                        path.extend(encode_value(value));
                    }
                }
            }
            if matches!(&path[begin..], "." | "..") {
                return None;
            }
        }
        Some(path)
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filled(template: &str, id: &'static [u8]) -> Option<String> {
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
            assert_eq!(filled(template, id).as_deref(), Some(path), "{template}");
        }
    }

    #[test]
    fn a_missing_or_climbing_value_is_refused() {
        for (template, id) in [
            ("/{x-id}", &b""[..]),
            ("/{other}", b"7"),
            ("/{x-id}", b"."),
            ("/{x-id}", b".."),
            ("/{x-id}{x-id}/x", b"."),
        ] {
            assert_eq!(filled(template, id), None, "{template}");
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
