//! The key in a directive of a GraphQL document, and the document without it.

use oncegate_domain::place::graphql::{Directive, cut, value_at};
use oncegate_domain::place::{PlaceError, PlaceValue};
use serde_json::json;

/// Checks a document, in which the key is `@idempotent(key: …)`.
///
/// - A document of one operation, whose keys are literals, has the value that a reader of tokens finds.
/// - The cut document differs from it in these literals alone: each is an empty one of its kind. It is cut itself.
/// - Other keys have the same cut document.
/// - A document that cannot be read is not cut.
pub fn check(input: &[u8]) {
    let Ok(document) = std::str::from_utf8(input) else { return };
    let directive = Directive::parse("@idempotent(key)").expect("a directive");
    let value = value_in(document, &directive);
    let cut_document = cut(document, None, std::slice::from_ref(&directive));
    if let Err(PlaceError::Unreadable(problem)) = value {
        assert!(problem.ends_with('.'));
        // A variable's value may be unreadable, but there are no variables in the request.
        assert_eq!(cut_document, None, "{document}");
        return;
    }
    if !document.contains("idempotent") {
        // Nobody has to read it.
        assert_eq!((value, cut_document), (Ok(None), None), "{document}");
        return;
    }
    let tokens = tokens(document);
    if is_plain(&tokens) {
        let keys = keys(&tokens);
        let mut expected = document.to_owned();
        for key in keys.iter().rev() {
            expected.replace_range(key.at..key.at + key.text.len(), empty(key.text));
        }
        let found = cut_document.as_ref().map_or(document, |cut| &cut.document);
        assert_eq!(found, expected, "{document}");
        assert_eq!(cut_document.is_some(), !keys.is_empty(), "{document}");
        let is_simple = |key: &&Token<'_>| !key.text.starts_with("\"\"\"") && !key.text.contains('\\');
        if let ([key], Ok(value)) = (&keys[..], value)
            && is_simple(key)
        {
            assert_eq!(value, Some(key.text.trim_matches('"').as_bytes().to_vec()), "{document}");
        }
        let mut other = document.to_owned();
        for key in keys.iter().rev() {
            let text = if key.text.starts_with('"') { "\"another\"" } else { "8" };
            // A block string is another kind.
            let text = if key.text.starts_with("\"\"\"") { key.text } else { text };
            other.replace_range(key.at..key.at + key.text.len(), text);
        }
        assert_eq!(cut(&other, None, std::slice::from_ref(&directive)), cut_document, "{document}");
    }
    if let Some(first) = cut_document {
        let again = cut(&first.document, None, std::slice::from_ref(&directive));
        assert_eq!(again.as_ref(), Some(&first), "{document}");
        assert!(!matches!(value_in(&first.document, &directive), Err(PlaceError::Unreadable(_))), "{document}");
    }
}

fn value_in(document: &str, directive: &Directive) -> PlaceValue {
    value_at(json!({ "query": document }).to_string().as_bytes(), directive)
}

struct Token<'a> {
    at: usize,
    text: &'a str,
}

/// Splits a document that can be read into its tokens (GraphQL, September 2025, section 2.1).
fn tokens(document: &str) -> Vec<Token<'_>> {
    let (mut at, mut tokens) = (0, Vec::new());
    while let Some(first) = document[at..].chars().next() {
        let rest = &document[at..];
        let run = |is_in: fn(char) -> bool| rest.find(|letter| !is_in(letter)).unwrap_or(rest.len());
        let length = match first {
            '#' => rest.find(['\n', '\r']).unwrap_or(rest.len()),
            '"' => string_length(rest),
            'a'..='z' | 'A'..='Z' | '_' => run(|letter| letter.is_ascii_alphanumeric() || letter == '_'),
            '0'..='9' | '-' => run(|letter| letter.is_ascii_alphanumeric() || matches!(letter, '.' | '+' | '-')),
            _ if rest.starts_with("...") => 3,
            letter => letter.len_utf8(),
        };
        if !matches!(first, '#' | ',' | ' ' | '\t' | '\n' | '\r' | '\u{feff}') {
            tokens.push(Token { at, text: &rest[..length] });
        }
        at += length;
    }
    tokens
}

fn string_length(text: &str) -> usize {
    let (quotes, escape) = if text.starts_with("\"\"\"") { ("\"\"\"", "\\\"\"\"") } else { ("\"", "\\") };
    let mut at = quotes.len();
    while !text[at..].starts_with(quotes) {
        // A backslash escapes the next letter; in a block string, three quotes.
        at += if text[at..].starts_with(escape) { escape.len() } else { 0 };
        at += text[at..]
            .chars()
            .next()
            .filter(|_| quotes.len() == 1 || !text[at..].starts_with(quotes))
            .map_or(0, char::len_utf8);
        assert!(at < text.len(), "a string ends");
    }
    at + quotes.len()
}

/// Whether there are no variables, no fragments and no second operation, whose rules the tokens alone do not show.
fn is_plain(tokens: &[Token<'_>]) -> bool {
    let mut depth = 0;
    let mut ends = 0;
    for token in tokens {
        match token.text {
            "$" | "fragment" => return false,
            "{" | "(" | "[" => depth += 1,
            "}" | ")" | "]" => {
                depth -= 1;
                ends += usize::from(depth == 0 && token.text == "}");
            }
            _ => {}
        }
    }
    ends == 1
}

/// The literals of `@idempotent(key: …)`, texts and integers.
fn keys<'a, 'd>(tokens: &'a [Token<'d>]) -> Vec<&'a Token<'d>> {
    let mut keys = Vec::new();
    for (start, _) in tokens.iter().enumerate().filter(|(_, token)| token.text == "@") {
        let text = |at: usize| tokens.get(at).map_or("", |token| token.text);
        if text(start + 1) != "idempotent" || text(start + 2) != "(" {
            continue;
        }
        let (mut at, mut depth) = (start + 3, 1);
        while depth > 0 && at < tokens.len() {
            match text(at) {
                "(" | "[" | "{" => depth += 1,
                ")" | "]" | "}" => depth -= 1,
                "key" if depth == 1 && text(at + 1) == ":" && text(at - 1) != ":" => {
                    let value = text(at + 2);
                    let is_integer = value.trim_start_matches('-').bytes().all(|digit| digit.is_ascii_digit());
                    if value.starts_with('"') || is_integer {
                        keys.push(&tokens[at + 2]);
                    }
                }
                _ => {}
            }
            at += 1;
        }
    }
    keys
}

fn empty(literal: &str) -> &'static str {
    match literal {
        literal if literal.starts_with("\"\"\"") => "\"\"\"\"\"\"",
        literal if literal.starts_with('"') => "\"\"",
        _ => "0",
    }
}
