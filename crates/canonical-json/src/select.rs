//! Selecting parts of a canonical text by JSON Pointers.
//!
//! Everything here works on texts that [`super::canonicalize`] has returned. They have no white space, no duplicate
//! names and one spelling for each name. So a walk splits them at commas, names are compared as bytes, and the result
//! is canonical again.

use std::borrow::Cow;
use std::error::Error;
use std::fmt;
use std::str::FromStr;

use super::{CanonicalizeError, string};

/// A JSON Pointer (RFC 6901) in its string form: `""` references the whole text, `/a/0`
/// the first element of member `a`.
///
/// One addition: a segment `*` stands for every member of an object and every element of an array. A member whose name
/// is `*` can thus not be referenced alone.
///
/// ```
/// use canonical_json::{Pointer, PointerError};
///
/// let pointer: Pointer = "/lines/*/a~1b".parse()?;
/// assert!(pointer.is_pattern());
/// assert_eq!(pointer.to_string(), "/lines/*/a~1b");
/// assert_eq!(Pointer::parse("lines"), Err(PointerError::NoLeadingSlash));
/// # Ok::<(), PointerError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Pointer {
    text: String,
    segments: Vec<PointerSegment>,
}

impl Pointer {
    /// Parses a pointer, with `~1` for `/` and `~0` for `~` in names. `str::parse` does the same.
    ///
    /// The URI fragment form (RFC 6901 section 6), such as `#/a`, is not accepted.
    ///
    /// # Errors
    ///
    /// [`PointerError`] if it is not empty and does not start with `/`, or has a `~` that neither `0` nor `1`
    /// follows (RFC 6901 section 3).
    pub fn parse(text: &str) -> Result<Self, PointerError> {
        let mut parts = text.split('/');
        if parts.next() != Some("") {
            return Err(PointerError::NoLeadingSlash);
        }
        let segments = parts.map(PointerSegment::parse).collect::<Result<_, _>>()?;
        Ok(Self { text: text.to_owned(), segments })
    }

    /// Whether the pointer has a `*`, so that it may point at several values.
    /// [`super::value_at`] finds nothing with it.
    #[must_use]
    pub fn is_pattern(&self) -> bool {
        self.segments.contains(&PointerSegment::Any)
    }

    /// Returns the names of the segments, unescaped, for a reader of another format; `None` for a `*`.
    ///
    /// ```
    /// let pointer = canonical_json::Pointer::parse("/a~1b/*/0")?;
    /// assert_eq!(pointer.names().collect::<Vec<_>>(), [Some("a/b".into()), None, Some("0".into())]);
    /// # Ok::<(), canonical_json::PointerError>(())
    /// ```
    pub fn names(&self) -> impl Iterator<Item = Option<String>> {
        self.text.split('/').skip(1).map(|segment| (segment != "*").then(|| unescape_segment(segment)))
    }
}

impl FromStr for Pointer {
    type Err = PointerError;

    fn from_str(text: &str) -> Result<Self, PointerError> {
        Self::parse(text)
    }
}

/// Writes the pointer as it was parsed.
impl fmt::Display for Pointer {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.text)
    }
}

/// The reason why a text is not a JSON Pointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PointerError {
    /// A `~` is followed by neither `0` nor `1`.
    BadEscape,
    /// The text is not empty and does not start with `/`.
    NoLeadingSlash,
}

impl fmt::Display for PointerError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::BadEscape => "in a JSON Pointer, ~ is followed by 0 or 1",
            Self::NoLeadingSlash => "a JSON Pointer is empty or starts with /",
        })
    }
}

impl Error for PointerError {}

/// The parts of a JSON text that [`canonicalize_selected`](super::canonicalize_selected) keeps. The default is the
/// whole text.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Selection {
    /// The parts to keep; everything if this is empty. If it has pointers and none references a value, nothing is kept.
    pub include: Vec<Pointer>,
    /// The parts to remove from those.
    pub exclude: Vec<Pointer>,
}

/// A value that a [`Pointer`] references in a JSON text: the result of [`value_at`](super::value_at).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ReferencedValue {
    /// An array, in its canonical form.
    Array(String),
    /// `true` or `false`.
    Boolean(bool),
    /// `null`.
    Null,
    /// A number, in its canonical form: with every digit, so that it may not fit an `f64` exactly.
    Number(String),
    /// An object, in its canonical form.
    Object(String),
    /// A string, without quotes and with its escapes resolved.
    String(String),
}

impl ReferencedValue {
    /// Makes the value of its canonical text.
    pub(super) fn from_canonical(value: &[u8]) -> Result<Self, CanonicalizeError> {
        let text = |bytes| String::from_utf8(bytes).map_err(|_| CanonicalizeError::InvalidUtf8);
        match value {
            [b'"', inner @ .., b'"'] => {
                let mut unescaped = Vec::with_capacity(inner.len());
                string::unescape(inner, &mut unescaped)?;
                text(unescaped).map(Self::String)
            }
            [b'[', ..] => text(value.to_vec()).map(Self::Array),
            [b'{', ..] => text(value.to_vec()).map(Self::Object),
            b"true" => Ok(Self::Boolean(true)),
            b"false" => Ok(Self::Boolean(false)),
            b"null" => Ok(Self::Null),
            _ => text(value.to_vec()).map(Self::Number),
        }
    }
}

/// Returns the part of a canonical text that `selection` keeps.
pub(super) fn apply<'t>(canonical: Cow<'t, [u8]>, selection: &Selection) -> Cow<'t, [u8]> {
    let included = match paths(&selection.include) {
        include if include.is_empty() || any_ends_here(&include) => canonical,
        include => {
            let mut output = Vec::new();
            write_included(&canonical, &include, &mut output);
            Cow::Owned(output)
        }
    };
    match paths(&selection.exclude) {
        exclude if exclude.is_empty() => included,
        exclude if any_ends_here(&exclude) => Cow::Owned(Vec::new()),
        exclude => {
            let mut output = Vec::with_capacity(included.len());
            write_without(&included, &exclude, &mut output);
            Cow::Owned(output)
        }
    }
}

/// Returns the members of an object, or the elements of a list, in a canonical text; `None` for another value.
pub(super) fn children<'t>(canonical: &'t [u8]) -> Option<impl Iterator<Item = (Option<&'t [u8]>, &'t [u8])>> {
    Some(Children::in_value(canonical)?.map(|child: Child<'t>| match child.step {
        SelectionStep::Element(_) => (None, child.value),
        SelectionStep::Member(quoted) => (Some(quoted), child.value),
    }))
}

/// Finds the value at `pointer` in a canonical text.
pub(super) fn find<'t>(canonical: &'t [u8], pointer: &Pointer) -> Option<&'t [u8]> {
    if pointer.is_pattern() {
        return None;
    }
    pointer.segments.iter().try_fold(canonical, |value, segment| {
        Children::in_value(value)?.find(|child| segment.matches(child)).map(|child| child.value)
    })
}

/// In this order: `~01` means `~1`, not `/` (RFC 6901 section 4).
fn unescape_segment(text: &str) -> String {
    text.replace("~1", "/").replace("~0", "~")
}

/// One step of a pointer.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum PointerSegment {
    Any,
    Named {
        /// The name as in a canonical text, without quotes.
        name: Vec<u8>,
        /// The name as an array index; `None` if it is none: a leading zero and `-` point at no element (RFC 6901
        /// section 4).
        index: Option<usize>,
    },
}

impl PointerSegment {
    fn parse(text: &str) -> Result<Self, PointerError> {
        if text == "*" {
            return Ok(Self::Any);
        }
        let valid = text.split('~').skip(1).all(|after| after.starts_with(['0', '1']));
        if !valid {
            return Err(PointerError::BadEscape);
        }
        let plain = unescape_segment(text);
        let mut name = Vec::with_capacity(plain.len());
        string::escape(&plain, &mut name);
        let is_index = plain.bytes().all(|byte| byte.is_ascii_digit()) && (plain == "0" || !plain.starts_with('0'));
        Ok(Self::Named { name, index: plain.parse().ok().filter(|_| is_index) })
    }

    fn matches(&self, child: &Child<'_>) -> bool {
        match self {
            Self::Any => true,
            Self::Named { name, index } => match child.step {
                SelectionStep::Element(position) => *index == Some(position),
                SelectionStep::Member(quoted) => quoted[1..quoted.len() - 1] == **name,
            },
        }
    }
}

/// The rest of a pointer, from some value on.
type Path<'p> = &'p [PointerSegment];

fn paths(pointers: &[Pointer]) -> Vec<Path<'_>> {
    pointers.iter().map(|pointer| pointer.segments.as_slice()).collect()
}

/// Returns the rests of the paths that lead into `child`. Allocates nothing if none does.
fn paths_into<'p>(child: &Child<'_>, paths: &[Path<'p>]) -> Vec<Path<'p>> {
    let split = paths.iter().filter_map(|path| path.split_first());
    split.filter(|(segment, _)| segment.matches(child)).map(|(_, rest)| rest).collect()
}

fn any_ends_here(paths: &[Path<'_>]) -> bool {
    paths.iter().any(|path| path.is_empty())
}

/// Appends the parts of `value` at `paths`, none of which may end at `value` itself. Returns whether there were any.
fn write_included(value: &[u8], paths: &[Path<'_>], output: &mut Vec<u8>) -> bool {
    let Some(children) = Children::in_value(value) else { return false };
    let start = output.len();
    output.push(value[0]);
    let mut kept_end = None;
    for child in children {
        let before = output.len();
        if before > start + 1 {
            output.push(b',');
        }
        child.write_name(output);
        let inner = paths_into(&child, paths);
        let kept = if any_ends_here(&inner) {
            output.extend_from_slice(child.value);
            true
        } else {
            !inner.is_empty() && write_included(child.value, &inner, output)
        };
        if kept {
            kept_end = Some(output.len());
        } else if let SelectionStep::Element(_) = child.step {
            output.extend_from_slice(b"null");
        } else {
            output.truncate(before);
        }
    }
    output.truncate(kept_end.unwrap_or(start));
    if kept_end.is_some() {
        output.extend(value.last());
    }
    kept_end.is_some()
}

/// Appends `value` without its parts at `paths`, none of which may end at `value` itself.
fn write_without(value: &[u8], paths: &[Path<'_>], output: &mut Vec<u8>) {
    let Some(children) = Children::in_value(value) else {
        output.extend_from_slice(value);
        return;
    };
    let start = output.len();
    output.push(value[0]);
    for child in children {
        let inner = paths_into(&child, paths);
        let removed = any_ends_here(&inner);
        if removed && matches!(child.step, SelectionStep::Member(_)) {
            continue;
        }
        if output.len() > start + 1 {
            output.push(b',');
        }
        child.write_name(output);
        match removed {
            true => output.extend_from_slice(b"null"),
            false if inner.is_empty() => output.extend_from_slice(child.value),
            false => write_without(child.value, &inner, output),
        }
    }
    output.extend(value.last());
}

struct Child<'t> {
    step: SelectionStep<'t>,
    value: &'t [u8],
}

#[derive(Clone, Copy)]
enum SelectionStep<'t> {
    Element(usize),
    /// With its quotes.
    Member(&'t [u8]),
}

impl Child<'_> {
    fn write_name(&self, output: &mut Vec<u8>) {
        if let SelectionStep::Member(quoted) = self.step {
            output.extend_from_slice(quoted);
            output.push(b':');
        }
    }
}

/// The elements or members of an array or object in a canonical text, in order.
struct Children<'t> {
    rest: &'t [u8],
    in_object: bool,
    position: usize,
}

impl<'t> Children<'t> {
    /// Returns `None` for a value that is no array or object.
    fn in_value(value: &'t [u8]) -> Option<Self> {
        let (rest, in_object) = match value {
            [b'{', inner @ .., b'}'] => (inner, true),
            [b'[', inner @ .., b']'] => (inner, false),
            _ => return None,
        };
        Some(Self { rest, in_object, position: 0 })
    }
}

impl<'t> Iterator for Children<'t> {
    type Item = Child<'t>;

    fn next(&mut self) -> Option<Child<'t>> {
        if self.rest.is_empty() {
            return None;
        }
        let step = if self.in_object {
            let (quoted, after) = self.rest.split_at(string_len(self.rest));
            self.rest = after.get(1..).unwrap_or_default();
            SelectionStep::Member(quoted)
        } else {
            SelectionStep::Element(self.position)
        };
        let (value, after) = self.rest.split_at(value_len(self.rest));
        self.rest = after.get(1..).unwrap_or_default();
        self.position += 1;
        Some(Child { step, value })
    }
}

/// Returns the length of the value at the start of a canonical text. Not recursive; it reads each byte once.
fn value_len(text: &[u8]) -> usize {
    let mut depth = 0_usize;
    let mut at = 0;
    while at < text.len() {
        match text[at] {
            b'"' => {
                at += string_len(&text[at..]);
                continue;
            }
            b'[' | b'{' => depth += 1,
            b']' | b'}' => match depth {
                0 => break,
                _ => depth -= 1,
            },
            b',' if depth == 0 => break,
            _ => {}
        }
        at += 1;
    }
    at
}

/// Returns the length of the string at the start of a canonical text, with its quotes.
fn string_len(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(rest) = text.get(at..) {
        at += string::literal_len(rest);
        match text.get(at) {
            Some(b'"') => return at + 1,
            // The byte after a backslash never ends the string.
            Some(_) => at += 2,
            None => break,
        }
    }
    text.len()
}
