//! Reads a document that all programs read alike. It has no DTD, so that its text is all that it is.
//!
//! `roxmltree` checks that a document is well-formed, but for a few things. [`checked_text`] checks these before it,
//! and sets the limits.

use std::borrow::Cow;
use std::collections::HashSet;

use memchr::{memchr2, memchr3, memmem};
use roxmltree::{Document, ParsingOptions};

/// The greatest depth of nested elements, as for JSON. Envelopes with signatures have about twelve.
pub(super) const DEPTH_MAX: usize = 128;

/// More attributes than an element has, and few enough to compare each with all others.
const ATTRIBUTES_MAX: usize = 256;

/// More namespaces than are in scope at once: each element with a declaration of its own has a list of them.
const NAMESPACES_IN_SCOPE_MAX: usize = 64;

/// More declarations than a document has, each counted once: they are in a sorted list.
const NAMESPACES_MAX: usize = 1024;

/// A longer declaration than documents have: `xmlns`, the prefix and the URI, in bytes. The library compares each
/// whole.
const DECLARATION_LENGTH_MAX: usize = 256;

/// The most comparisons by the library: for each element those of its attributes with each other, twice for prefixed
/// ones, whose URIs are compared too; those of its prefixes with all in scope; and where it declares one, those of all
/// in scope with each other. A row of 100 attributes takes about two for each byte. So the time to read a document is
/// linear in its length.
const COMPARISONS_PER_BYTE: usize = 4;

/// Those that any document may take, so that it may have one element with all attributes.
const COMPARISONS_MIN: usize = 1 << 16;

/// The most nodes: each takes about 80 bytes in memory, and at least 4 in the text.
const NODES_MAX: u32 = 1 << 18;

/// The library reserves memory for an attribute at each `=`.
const EQUALS_MAX: usize = 1 << 18;

const NOT_UTF8: &str = "The body is not XML in UTF-8, or its declaration names another encoding.";
const NOT_WELL_FORMED: &str = "The body is not well-formed XML 1.0 with namespaces.";
const HAS_DTD: &str =
    "The XML has a document type declaration (`<!DOCTYPE`): programs read such a document in different ways.";
const TOO_LARGE: &str = "The XML has elements nested deeper than 128, or more attributes, namespaces or nodes, or longer namespaces, than \
     are read.";

/// The text without its declaration, its line ends normalised (XML 1.0, section 2.11). The error is a sentence for the
/// client.
pub(super) fn checked_text(body: &[u8]) -> Result<Cow<'_, str>, &'static str> {
    let text = std::str::from_utf8(body).map_err(|_| NOT_UTF8)?;
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let text = match text.strip_prefix("<?xml").filter(|rest| rest.starts_with(super::BLANKS)) {
        Some(declaration) => read_declaration(declaration, body)?,
        None => text,
    };
    // The library would skip a second mark.
    if text.starts_with('\u{feff}') {
        return Err(NOT_WELL_FORMED);
    }
    let text = match text.contains('\r') {
        true => Cow::Owned(text.replace("\r\n", "\n").replace('\r', "\n")),
        false => Cow::Borrowed(text),
    };
    MarkupCheck::default().check(&text)?;
    Ok(text)
}

/// Parses what [`checked_text`] has returned.
pub(super) fn parse(text: &str) -> Result<Document<'_>, &'static str> {
    let count = |byte| memchr::memchr_iter(byte, text.as_bytes()).count();
    // An element has two tags.
    if count(b'<') > 2 * NODES_MAX as usize || count(b'=') > EQUALS_MAX {
        return Err(TOO_LARGE);
    }
    let options = ParsingOptions { nodes_limit: NODES_MAX, ..ParsingOptions::default() };
    Document::parse_with_options(text, options).map_err(|error| match error {
        roxmltree::Error::DtdDetected => HAS_DTD,
        roxmltree::Error::NodesLimitReached => TOO_LARGE,
        _ => NOT_WELL_FORMED,
    })
}

/// Reads the declaration after `<?xml`. Returns the text behind it.
fn read_declaration<'a>(declaration: &'a str, body: &[u8]) -> Result<&'a str, &'static str> {
    let (inner, rest) = declaration.split_once("?>").ok_or(NOT_WELL_FORMED)?;
    let (mut inner, mut pairs) = (inner, Vec::new());
    while !inner.trim_start_matches(super::BLANKS).is_empty() {
        let pair = inner.trim_start_matches(super::BLANKS);
        let (name, value) = pair.split_once('=').filter(|_| pair.len() < inner.len()).ok_or(NOT_WELL_FORMED)?;
        let value = value.trim_start_matches(super::BLANKS);
        let quote = value.chars().next().filter(|first| "\"'".contains(*first)).ok_or(NOT_WELL_FORMED)?;
        let (value, after) = value[1..].split_once(quote).ok_or(NOT_WELL_FORMED)?;
        pairs.push((name.trim_end_matches(super::BLANKS), value));
        inner = after;
    }
    let mut pairs = pairs.into_iter().peekable();
    if pairs.next() != Some(("version", "1.0")) {
        return Err(NOT_WELL_FORMED);
    }
    if let Some((_, encoding)) = pairs.next_if(|(name, _)| *name == "encoding") {
        let is_ascii = encoding.eq_ignore_ascii_case("us-ascii") && body.is_ascii();
        if !is_ascii && !encoding.eq_ignore_ascii_case("utf-8") {
            return Err(NOT_UTF8);
        }
    }
    let _ = pairs.next_if(|(name, value)| *name == "standalone" && matches!(*value, "yes" | "no"));
    if pairs.next().is_some() { Err(NOT_WELL_FORMED) } else { Ok(rest) }
}

/// Checks what the library does not, and the limits, in one pass. Any other fault is left to it.
#[derive(Default)]
struct MarkupCheck<'t> {
    /// For each open element, the number of declarations in scope.
    in_scope: Vec<usize>,
    declarations: HashSet<&'t str>,
    comparisons: usize,
}

impl<'t> MarkupCheck<'t> {
    fn check(mut self, text: &'t str) -> Result<(), &'static str> {
        let mut rest = text;
        while let Some(at) = memchr::memchr(b'<', rest.as_bytes()) {
            check_references(&rest[..at])?;
            rest = &rest[at + 1..];
            // By the first byte: most markup is a tag.
            rest = match rest.as_bytes().first() {
                Some(b'!') => after_section(rest)?,
                Some(b'?') => {
                    check_instruction(&rest[1..])?;
                    after(&rest[1..], "?>")?
                }
                Some(b'/') => {
                    self.in_scope.pop();
                    check_name(&rest[1..])?;
                    after_byte(rest, b'>')?
                }
                _ => self.check_start_tag(rest)?,
            };
            if self.comparisons > COMPARISONS_MIN + COMPARISONS_PER_BYTE * text.len() {
                return Err(TOO_LARGE);
            }
        }
        check_references(rest)
    }

    /// Checks the tag at the beginning of `text`, behind its `<`. Returns the text behind it.
    fn check_start_tag(&mut self, text: &'t str) -> Result<&'t str, &'static str> {
        check_name(text)?;
        let outer_scope = self.in_scope.last().copied().unwrap_or(0);
        let (mut in_scope, mut attributes, mut prefixes, mut has_default) = (outer_scope, 0, 1, false);
        let is_end = |byte: &u8| matches!(byte, b'/' | b'>' | b'\t' | b'\n' | b' ');
        let mut at = text.bytes().position(|byte| is_end(&byte)).ok_or(NOT_WELL_FORMED)?;
        loop {
            let rest = &text[at..];
            let end = memchr3(b'"', b'\'', b'>', rest.as_bytes()).ok_or(NOT_WELL_FORMED)?;
            let quote = rest.as_bytes()[end];
            if quote == b'>' {
                if end == 0 || rest.as_bytes()[end - 1] != b'/' {
                    self.in_scope.push(in_scope);
                }
                self.comparisons += prefixes * in_scope + (attributes * attributes + prefixes * prefixes) / 2;
                self.comparisons += if in_scope > outer_scope { in_scope * in_scope / 2 } else { 0 };
                let is_within = self.in_scope.len() <= DEPTH_MAX && self.declarations.len() <= NAMESPACES_MAX;
                check_references(&text[..at])?;
                return is_within.then_some(&rest[end + 1..]).ok_or(TOO_LARGE);
            }
            let length = memchr::memchr(quote, &rest.as_bytes()[end + 1..]).ok_or(NOT_WELL_FORMED)?;
            let name = rest[..end].trim_matches(super::BLANKS).trim_end_matches('=').trim_end_matches(super::BLANKS);
            let value = &rest[end + 1..end + 1 + length];
            check_name(name)?;
            // The library takes `p:xmlns` for a declaration, and more than one default namespace.
            let is_default = name == "xmlns";
            let is_declaration = is_default || name.starts_with("xmlns:");
            if name.ends_with(":xmlns")
                || (is_default && has_default)
                || (is_declaration && !is_default && value.is_empty())
            {
                return Err(NOT_WELL_FORMED);
            }
            has_default |= is_default;
            if is_declaration {
                in_scope += 1;
                self.declarations.insert(&rest[..end + 1 + length]);
                if name.len() + resolved_length(value) > DECLARATION_LENGTH_MAX {
                    return Err(TOO_LARGE);
                }
            }
            prefixes += usize::from(!is_declaration && name.contains(':'));
            attributes += 1;
            if attributes > ATTRIBUTES_MAX || in_scope > NAMESPACES_IN_SCOPE_MAX {
                return Err(TOO_LARGE);
            }
            at += end + length + 2;
        }
    }
}

/// The text behind a comment or a section, at whose `!` it begins.
fn after_section(text: &str) -> Result<&str, &'static str> {
    if let Some(comment) = text.strip_prefix("!--") {
        after(comment, "-->")
    } else if let Some(section) = text.strip_prefix("![CDATA[") {
        after(section, "]]>")
    } else {
        Err(if text.starts_with("!DOCTYPE") { HAS_DTD } else { NOT_WELL_FORMED })
    }
}

fn after_byte(text: &str, end: u8) -> Result<&str, &'static str> {
    memchr::memchr(end, text.as_bytes()).map(|at| &text[at + 1..]).ok_or(NOT_WELL_FORMED)
}

fn after<'t>(text: &'t str, end: &str) -> Result<&'t str, &'static str> {
    memmem::find(text.as_bytes(), end.as_bytes()).map(|at| &text[at + end.len()..]).ok_or(NOT_WELL_FORMED)
}

/// The library takes the name `:a` for `a`.
fn check_name(text: &str) -> Result<(), &'static str> {
    if text.as_bytes().first() == Some(&b':') { Err(NOT_WELL_FORMED) } else { Ok(()) }
}

/// The library takes any text behind a target, also without white space, and a target `xml` in a second declaration.
fn check_instruction(text: &str) -> Result<(), &'static str> {
    let target = &text[..memchr2(b'?', b' ', text.as_bytes()).unwrap_or(text.len())];
    let target = target.split(super::BLANKS).next().unwrap_or_default();
    // Few use other letters in a target, and no other punctuation is allowed in one.
    let is_target = target.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_-.".contains(&byte));
    if is_target && !target.eq_ignore_ascii_case("xml") { Ok(()) } else { Err(NOT_WELL_FORMED) }
}

/// The length of a value whose references are resolved: it is one limit for all spellings.
fn resolved_length(value: &str) -> usize {
    let mut pieces = value.split('&');
    let before = pieces.next().map_or(0, str::len);
    let lengths = pieces.map(|piece| {
        let (reference, rest) = piece.split_once(';').unwrap_or_default();
        let character = match reference.strip_prefix("#x") {
            Some(digits) => u32::from_str_radix(digits, 16).ok(),
            None => reference.strip_prefix('#').and_then(|digits| digits.parse().ok()),
        };
        character.and_then(char::from_u32).map_or(1, char::len_utf8) + rest.len()
    });
    before + lengths.sum::<usize>()
}

/// The library takes a reference to half a surrogate pair, or beyond Unicode, for U+FFFD.
fn check_references(text: &str) -> Result<(), &'static str> {
    for at in memchr::memchr_iter(b'&', text.as_bytes()) {
        let Some(rest) = text[at + 1..].strip_prefix('#') else { continue };
        let (digits, radix) = rest.strip_prefix('x').map_or((rest, 10), |digits| (digits, 16));
        let end = digits.find(|digit: char| !digit.is_digit(radix)).ok_or(NOT_WELL_FORMED)?;
        u32::from_str_radix(&digits[..end], radix).ok().and_then(char::from_u32).ok_or(NOT_WELL_FORMED)?;
    }
    Ok(())
}
