//! The value at a place, and the parts of a body that are compared.

use canonical_json::{Pointer, ReferencedValue, value_at};

/// More fields than people give to a body, and few enough to keep a name and a value of each. What is beyond counts
/// all the same, and is no part of its own.
pub(super) const PARTS_MAX: usize = 4096;

/// Why a place of a request cannot be read. It is never taken for a place without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PlaceError {
    /// There is more than one value: nobody can tell which one counts.
    Several,
    /// The value is neither a text nor a number.
    NotScalar,
    /// What it is in cannot be read. The text is a whole sentence, for the client.
    Unreadable(&'static str),
}

/// The value at a place; `None` if there is none. A number is in its decimal form, and a text as it is.
pub type PlaceValue = Result<Option<Vec<u8>>, PlaceError>;

/// A part of a body that counts in a comparison.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BodyPart {
    /// The part's place, as an operator reads it: `form:amount`, `xml:/Envelope/Body`, `protobuf:5`.
    pub place: String,
    /// The bytes that count: the same for all spellings of the same content.
    pub value: Vec<u8>,
}

/// The places of one format that a comparison includes, and those that it leaves out.
#[derive(Clone, Copy, Debug)]
pub struct PlaceSelection<'a, T> {
    /// Empty for all.
    pub include: &'a [T],
    /// These do not count, also within those that are included.
    pub exclude: &'a [T],
}

/// Reads a value of a JSON document. `unreadable` is the error of a text that is no document which all programs read
/// alike.
pub(super) fn json_value(document: &[u8], pointer: &Pointer, unreadable: PlaceError) -> PlaceValue {
    match value_at(document, pointer).map_err(|_| unreadable)? {
        Some(ReferencedValue::String(text)) => Ok(Some(text.into_bytes())),
        Some(ReferencedValue::Number(digits)) => Ok(Some(digits.into_bytes())),
        Some(_) => Err(PlaceError::NotScalar),
        None => Ok(None),
    }
}

/// The only value. With two, nobody can tell which one counts.
pub(super) fn only<T>(mut values: impl Iterator<Item = T>) -> Result<Option<T>, PlaceError> {
    match (values.next(), values.next()) {
        (value, None) => Ok(value),
        (_, Some(_)) => Err(PlaceError::Several),
    }
}

/// The body without the byte order mark of UTF-8: some programs write it before JSON, and many readers skip it (RFC
/// 8259, section 8.1).
pub(super) fn without_mark(body: &[u8]) -> &[u8] {
    body.strip_prefix(b"\xef\xbb\xbf").unwrap_or(body)
}
