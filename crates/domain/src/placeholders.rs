//! `{name}` placeholders in URLs and paths.

/// A piece of a template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TemplatePiece<'a> {
    /// Text as it was written; never empty.
    Text(&'a str),
    /// The name between two braces; it may be empty.
    Placeholder(&'a str),
}

/// Splits a template at its placeholders, whose names have no brace and no slash. An error begins with a verb.
pub fn split_placeholders(text: &str) -> Result<Vec<TemplatePiece<'_>>, &'static str> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find(['{', '}']) {
        let (before, from_brace) = rest.split_at(at);
        let Some(inside) = from_brace.strip_prefix('{') else { return Err("has a `}` without a `{`") };
        let name = match inside.split_once(['{', '}', '/']) {
            Some((name, after)) if inside.as_bytes()[name.len()] == b'}' => {
                rest = after;
                name
            }
            Some((name, _)) if inside.as_bytes()[name.len()] == b'{' => return Err("has a `{` inside a `{…}`"),
            _ => return Err("has a `{` without a `}` before the next slash"),
        };
        pieces.extend(non_empty(before));
        pieces.push(TemplatePiece::Placeholder(name));
    }
    pieces.extend(non_empty(rest));
    Ok(pieces)
}

fn non_empty(text: &str) -> Option<TemplatePiece<'_>> {
    (!text.is_empty()).then_some(TemplatePiece::Text(text))
}

#[cfg(test)]
mod tests {
    use super::TemplatePiece::{Placeholder, Text};
    use super::*;

    #[test]
    fn a_template_is_split_into_texts_and_names() {
        for (text, pieces) in [
            ("", &[][..]),
            ("/a", &[Text("/a")]),
            ("{a}", &[Placeholder("a")]),
            (
                "/{a}{}/{b}.json",
                &[Text("/"), Placeholder("a"), Placeholder(""), Text("/"), Placeholder("b"), Text(".json")],
            ),
        ] {
            assert_eq!(split_placeholders(text).as_deref(), Ok(pieces), "{text}");
        }
    }

    #[test]
    fn braces_that_do_not_pair_are_refused() {
        for (text, why) in [
            ("{a", "without a `}`"),
            ("{a/b}", "without a `}`"),
            ("a}", "without a `{`"),
            ("{a}}", "without a `{`"),
            ("{{a}}", "inside"),
            ("{a{b}}", "inside"),
        ] {
            let message = split_placeholders(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }
}
