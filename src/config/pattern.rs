//! The paths of routes.

/// A path that was checked: each `{name}` a whole segment, a `{*rest}` the last one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern(Box<str>);

impl Pattern {
    /// The error says what is wrong with it, beginning with a verb.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
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
        let segments: Vec<_> = inner.split('/').collect();
        if segments.iter().any(|segment| matches!(*segment, "." | "..")) {
            return Err("has a segment `.` or `..`, which requests are rid of before they are matched".into());
        }
        let mut names = Vec::new();
        for (index, segment) in segments.iter().enumerate() {
            let Some(parameter) = parameter(segment)? else { continue };
            if parameter.takes_rest && index + 1 < segments.len() {
                return Err("has something after `{*…}`, which takes all the rest".into());
            }
            if names.contains(&parameter.name) {
                return Err("has the same name twice".into());
            }
            names.push(parameter.name);
        }
        Ok(Self(text.into()))
    }

    pub(super) fn as_str(&self) -> &str {
        &self.0
    }

    /// The same for two patterns that match the same paths: names do not count.
    pub(super) fn shape(&self) -> String {
        let shape = |segment: &str| match parameter(segment) {
            Ok(Some(Parameter { takes_rest: true, .. })) => "{*}".to_owned(),
            Ok(Some(_)) => "{}".to_owned(),
            _ => segment.to_owned(),
        };
        self.0.split('/').map(shape).collect::<Vec<_>>().join("/")
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

struct Parameter<'t> {
    name: &'t str,
    takes_rest: bool,
}

fn parameter(segment: &str) -> Result<Option<Parameter<'_>>, String> {
    if !segment.contains(['{', '}']) {
        return Ok(None);
    }
    let inside = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    let Some(inside) = inside.filter(|inside| !inside.contains(['{', '}'])) else {
        return Err("has a brace inside a segment: `{name}` stands for a whole one".into());
    };
    let name = inside.strip_prefix('*').unwrap_or(inside);
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    if name.is_empty() || !name.bytes().all(word) {
        return Err(
            "has a segment without a proper name: write `{name}` or `{*rest}`, of letters, digits and `_`".into()
        );
    }
    Ok(Some(Parameter { name, takes_rest: inside.starts_with('*') }))
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
            assert_eq!(Pattern::parse(text).map(|pattern| pattern.0), Ok(text.into()));
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

    #[test]
    fn names_do_not_make_two_shapes_of_one() {
        let shape = |text| Pattern::parse(text).expect(text).shape();
        assert_eq!(shape("/v1/{id}/x"), shape("/v1/{name}/x"));
        assert_eq!(shape("/{*rest}"), shape("/{*all}"));
        assert_ne!(shape("/{id}"), shape("/{*id}"));
        assert_ne!(shape("/a"), shape("/a/"));
    }
}
