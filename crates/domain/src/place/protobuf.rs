//! Protocol Buffers without a schema: a field by its numbers, and the fields by which two messages are compared.
//!
//! Programs write the fields of one message in different orders, and the entries of a map in another order in each
//! process. So the fields of the body's message count by their numbers, those of one number in their order. A longer
//! spelling of a varint counts as the shortest one.
//!
//! A length-delimited value is a text, bytes, a packed list of numbers or a message, and its bytes do not say which. It
//! is read as a message if it parses as one with the shortest varints and is no text: without this, two texts would be
//! equal whose bytes are the same fields in another order. Its fields count in any order only if one of them is a text
//! of three bytes or more. Without one it may be a packed list of numbers: 200, 3, 1000, 2 and 1000, 2, 200, 3 are both
//! the fields 25 and 125 with one value each.
//!
//! A map is a list of messages on the wire: the key is field 1, the value field 2. A field counts as a map, its entries
//! in any order, if it occurs more than once, each time as a message with a key, a value, both in this order, or
//! neither, at least once with both; if all keys have one wire type, all values too; and if no key occurs twice.
//! Python, C++, Java and Go write both in each entry. prost leaves out a key or a value that is the default. A list of
//! such pairs in another order then counts as the same list: the other choice refuses nearly every retry of a message
//! with a map.

use std::collections::HashSet;
use std::mem::{Discriminant, discriminant};

use super::value::only;
use super::value::{BodyPart, PARTS_MAX, PlaceError, PlaceSelection, PlaceValue};
use crate::media_type::essence;

/// The depth of nested messages that are looked into; a value that is deeper counts by its bytes. A `Struct` takes
/// three levels for each object in it. Each level reads its bytes a fixed number of times.
const DEPTH_MAX: usize = 32;

/// More fields than people give to a message, each occurrence counted. They are in memory, up to 16 times the bytes of
/// the message. One with more counts by its bytes.
const FIELDS_MAX: usize = 1 << 16;

/// The longest path, in field numbers.
const PATH_MAX: usize = 8;

/// The largest field number.
const NUMBER_MAX: u32 = (1 << 29) - 1;

/// The most bytes of a varint, and of one that is a tag or a length, which have 32 bits.
const VARINT_MAX: usize = 10;
const VARINT_32_MAX: usize = 5;

/// The shortest text that tells a message from a list of numbers: a currency code has three letters.
const TEXT_MIN: usize = 3;

const VARINT: u32 = 0;
const I64: u32 = 1;
const LEN: u32 = 2;
const GROUP_START: u32 = 3;
const GROUP_END: u32 = 4;
const I32: u32 = 5;

/// The way to a field: `5`, or `1.3` for field 3 of the message in field 1.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("{text}")]
pub struct FieldPath {
    text: Box<str>,
    numbers: Vec<u32>,
}

impl FieldPath {
    /// Reads a path. The error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let numbers: Vec<u32> = text.split('.').map(parse_number).collect::<Result<_, _>>()?;
        if numbers.len() > PATH_MAX {
            return Err(format!("has more than {PATH_MAX} field numbers"));
        }
        Ok(Self { text: text.into(), numbers })
    }
}

fn parse_number(text: &str) -> Result<u32, String> {
    match text.parse::<u32>().ok().filter(|number| number.to_string() == text) {
        Some(19_000..=19_999) => Err("names a field of 19000 to 19999, which protobuf does not have".into()),
        Some(number @ 1..=NUMBER_MAX) => Ok(number),
        Some(1..) => Err(format!("names a field over {NUMBER_MAX}, the largest number of one")),
        _ => Err("is no path of field numbers: write `5`, or `1.3` for field 3 of the message in field 1".into()),
    }
}

/// Whether a `Content-Type` names a message of protobuf, of gRPC (framed) or of Connect (unary).
pub fn is_protobuf(content_type: &[u8]) -> bool {
    const NAMES: [&str; 4] =
        ["application/proto", "application/protobuf", "application/vnd.google.protobuf", "application/x-protobuf"];
    is_framed(content_type) || is_one_of(content_type, &NAMES)
}

/// Whether each message has a frame around it, as gRPC has.
fn is_framed(content_type: &[u8]) -> bool {
    is_one_of(content_type, &["application/grpc", "application/grpc+proto"])
}

fn is_one_of(content_type: &[u8], names: &[&str]) -> bool {
    names.iter().any(|name| essence(content_type).eq_ignore_ascii_case(name.as_bytes()))
}

/// Reads a field: a text or bytes as they are, a number in decimal.
pub fn value_at(content_type: &[u8], body: &[u8], path: &FieldPath) -> PlaceValue {
    let mut value = WireValue::Len(message_in(content_type, body)?);
    for number in &path.numbers {
        let WireValue::Len(bytes) = value else { return Err(MALFORMED) };
        if WireReader::new(bytes).any(|field| field.is_none()) {
            return Err(MALFORMED);
        }
        let named = WireReader::new(bytes).flatten().filter(|field| field.number == *number);
        let Some(field) = only(named)? else { return Ok(None) };
        value = field.value;
    }
    match value {
        WireValue::Len(bytes) => Ok(Some(bytes.to_vec())),
        WireValue::Varint(number) => Ok(Some(number.to_string().into_bytes())),
        WireValue::I64(_) | WireValue::I32(_) => Err(PlaceError::NotScalar),
    }
}

/// The fields that count, by their numbers. `None` for a body that is no uncompressed message, or in which a path of
/// the selection leads into a field that is no message: it is compared by its bytes.
pub fn parts(content_type: &[u8], body: &[u8], selection: PlaceSelection<'_, FieldPath>) -> Option<Vec<BodyPart>> {
    let mut message = WireMessage::read(message_in(content_type, body).ok()?)?;
    message.sort();
    let selection = FieldSelection::new(selection);
    let mut parts = Vec::new();
    for occurrences in message.occurrences() {
        let number = occurrences[0].number;
        let Some(within) = selection.within(number) else { continue };
        let mut value = Vec::new();
        if write_occurrences(&mut value, occurrences, &within, 0)? {
            parts.push(BodyPart { place: format!("protobuf:{number}"), value });
        }
        if parts.len() > PARTS_MAX {
            return None;
        }
    }
    Some(parts)
}

/// The message of a body. That of gRPC has a flag and its length before it; a unary request has one message.
fn message_in<'a>(content_type: &[u8], body: &'a [u8]) -> Result<&'a [u8], PlaceError> {
    match body {
        _ if !is_framed(content_type) => Ok(body),
        [0, a, b, c, d, message @ ..] if u32::from_be_bytes([*a, *b, *c, *d]) as usize == message.len() => Ok(message),
        _ => Err(NOT_ONE_FRAME),
    }
}

const NOT_ONE_FRAME: PlaceError = PlaceError::Unreadable(
    "The body is not one uncompressed message of gRPC: a zero, the length in four bytes, and the message.",
);

const MALFORMED: PlaceError = PlaceError::Unreadable(
    "The body, or a field on the way to the value, is not a protobuf message that all programs read alike: whole, and \
     without groups.",
);

/// A value by its wire type. Fixed values are the bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum WireValue<'a> {
    Varint(u64),
    I64(&'a [u8]),
    Len(&'a [u8]),
    I32(&'a [u8]),
}

impl WireValue<'_> {
    fn is_default(&self) -> bool {
        match self {
            Self::Varint(number) => *number == 0,
            Self::I64(bytes) | Self::I32(bytes) => bytes.iter().all(|byte| *byte == 0),
            Self::Len(bytes) => bytes.is_empty(),
        }
    }
}

#[derive(Clone, Copy)]
struct WireField<'a> {
    number: u32,
    value: WireValue<'a>,
}

struct WireMessage<'a> {
    fields: Vec<WireField<'a>>,
    /// Whether each varint has its shortest spelling.
    is_shortest: bool,
}

impl<'a> WireMessage<'a> {
    /// `None` for bytes that are no message, and for a message with a group or more than [`FIELDS_MAX`] fields.
    fn read(bytes: &'a [u8]) -> Option<Self> {
        let mut reader = WireReader::new(bytes);
        let fields = reader.by_ref().take(FIELDS_MAX + 1).collect::<Option<Vec<_>>>()?;
        (fields.len() <= FIELDS_MAX).then_some(Self { fields, is_shortest: reader.is_shortest })
    }

    /// Sorts the fields by their numbers, those of one number in their order.
    fn sort(&mut self) {
        self.fields.sort_by_key(|field| field.number);
    }

    /// The fields, those of one number that stand together in one piece.
    fn occurrences(&self) -> impl Iterator<Item = &[WireField<'a>]> {
        self.fields.chunk_by(|one, other| one.number == other.number)
    }
}

/// Reads the fields of a message. The last one is `None` if the bytes are no message, or have a group.
struct WireReader<'a> {
    rest: &'a [u8],
    is_shortest: bool,
}

impl<'a> Iterator for WireReader<'a> {
    type Item = Option<WireField<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let field = self.field();
        if field.is_none() {
            self.rest = &[];
        }
        Some(field)
    }
}

impl<'a> WireReader<'a> {
    fn new(bytes: &'a [u8]) -> Self {
        Self { rest: bytes, is_shortest: true }
    }

    fn field(&mut self) -> Option<WireField<'a>> {
        let tag = u32::try_from(self.varint(VARINT_32_MAX)?).ok()?;
        let number = tag >> 3;
        let value = match tag & 7 {
            _ if number == 0 => return None,
            VARINT => WireValue::Varint(self.varint(VARINT_MAX)?),
            I64 => WireValue::I64(self.take_bytes(8)?),
            LEN => {
                let length = self.varint(VARINT_32_MAX)?;
                WireValue::Len(self.take_bytes(usize::try_from(length).ok()?)?)
            }
            I32 => WireValue::I32(self.take_bytes(4)?),
            _ => return None,
        };
        Some(WireField { number, value })
    }

    fn take_bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(count)?;
        self.rest = rest;
        Some(taken)
    }

    fn varint(&mut self, bytes_max: usize) -> Option<u64> {
        let mut number = 0;
        for place in 0..bytes_max {
            let byte = *self.take_bytes(1)?.first()?;
            // Of the tenth byte, 64 bits have one. Some programs drop the others.
            if place == VARINT_MAX - 1 && byte > 1 {
                return None;
            }
            number |= u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                self.is_shortest &= byte > 0 || place == 0;
                return Some(number);
            }
        }
        None
    }
}

/// The paths of a selection within one message.
struct FieldSelection<'s> {
    /// `None` for all fields.
    include: Option<Vec<&'s [u32]>>,
    exclude: Vec<&'s [u32]>,
}

impl<'s> FieldSelection<'s> {
    fn new(selection: PlaceSelection<'s, FieldPath>) -> Self {
        let paths = |paths: &'s [FieldPath]| paths.iter().map(|path| path.numbers.as_slice()).collect::<Vec<_>>();
        let include = (!selection.include.is_empty()).then(|| paths(selection.include));
        Self { include, exclude: paths(selection.exclude) }
    }

    fn is_everything(&self) -> bool {
        self.include.is_none() && self.exclude.is_empty()
    }

    /// The selection within the field of this number. `None` if nothing of it counts.
    fn within(&self, number: u32) -> Option<Self> {
        let rests = |paths: &[&'s [u32]]| {
            let split = paths.iter().filter_map(|path| path.split_first());
            split.filter(|(first, _)| **first == number).map(|(_, rest)| rest).collect::<Vec<_>>()
        };
        let ends_here = |paths: &[&[u32]]| paths.iter().any(|path| path.is_empty());
        let exclude = rests(&self.exclude);
        let include = self.include.as_deref().map(rests).filter(|paths| !ends_here(paths));
        let is_selected = !ends_here(&exclude) && include.as_ref().is_none_or(|paths| !paths.is_empty());
        is_selected.then_some(Self { include, exclude })
    }
}

/// Writes the fields of a message that count. Returns whether there are any.
fn write_message(
    output: &mut Vec<u8>,
    message: &WireMessage<'_>,
    selection: &FieldSelection<'_>,
    depth: usize,
) -> Option<bool> {
    let mut is_any = false;
    for occurrences in message.occurrences() {
        if let Some(within) = selection.within(occurrences[0].number) {
            is_any |= write_occurrences(output, occurrences, &within, depth)?;
        }
    }
    Some(is_any)
}

/// Writes the fields of one number, and nothing if none of them counts: those of a map sorted, others in their order.
fn write_occurrences(
    output: &mut Vec<u8>,
    occurrences: &[WireField<'_>],
    selection: &FieldSelection<'_>,
    depth: usize,
) -> Option<bool> {
    let (start, mut ranges, mut is_any) = (output.len(), Vec::with_capacity(occurrences.len()), false);
    for field in occurrences {
        let from = output.len();
        is_any |= write_field(output, field, selection, depth)?;
        ranges.push(from..output.len());
    }
    if !is_any {
        output.truncate(start);
    } else if is_map(occurrences) {
        ranges.sort_unstable_by(|one, other| output[one.clone()].cmp(&output[other.clone()]));
        let entries: Vec<&[u8]> = ranges.into_iter().map(|range| &output[range]).collect();
        let sorted = entries.concat();
        output.truncate(start);
        output.extend_from_slice(&sorted);
    }
    Some(is_any)
}

/// Writes a field as on the wire, but a nested message as a group. No message that is read has one, so that no bytes
/// are taken for a message.
fn write_field(
    output: &mut Vec<u8>,
    field: &WireField<'_>,
    selection: &FieldSelection<'_>,
    depth: usize,
) -> Option<bool> {
    let write_tag = |output: &mut Vec<u8>, kind| write_varint(output, u64::from((field.number << 3) | kind));
    let bytes = match field.value {
        WireValue::Len(bytes) => bytes,
        _ if !selection.is_everything() => return None,
        WireValue::Varint(number) => {
            write_tag(output, VARINT);
            write_varint(output, number);
            return Some(true);
        }
        WireValue::I64(bytes) => {
            write_tag(output, I64);
            output.extend_from_slice(bytes);
            return Some(true);
        }
        WireValue::I32(bytes) => {
            write_tag(output, I32);
            output.extend_from_slice(bytes);
            return Some(true);
        }
    };
    let nested = if selection.is_everything() { find_message(bytes, depth) } else { Some(named_message(bytes)?) };
    let Some(nested) = nested else {
        write_tag(output, LEN);
        write_varint(output, bytes.len() as u64);
        output.extend_from_slice(bytes);
        return Some(true);
    };
    write_tag(output, GROUP_START);
    let is_any = write_message(output, &nested, selection, depth + 1)? || selection.include.is_none();
    write_tag(output, GROUP_END);
    Some(is_any)
}

fn write_varint(output: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        output.push(number as u8 | 0x80);
        number >>= 7;
    }
    output.push(number as u8);
}

/// Reads a value that is a message, because a path of the selection leads into it.
fn named_message(bytes: &[u8]) -> Option<WireMessage<'_>> {
    let mut message = WireMessage::read(bytes)?;
    message.sort();
    Some(message)
}

/// Reads a value that looks like a message. See the head of this file.
fn find_message(bytes: &[u8], depth: usize) -> Option<WireMessage<'_>> {
    if depth == DEPTH_MAX || is_text(bytes) {
        return None;
    }
    let mut message = WireMessage::read(bytes).filter(|message| message.is_shortest)?;
    let is_long_text = |bytes: &[u8]| bytes.len() >= TEXT_MIN && is_text(bytes);
    if message.fields.iter().any(|field| matches!(field.value, WireValue::Len(bytes) if is_long_text(bytes))) {
        message.sort();
    }
    Some(message)
}

fn is_text(bytes: &[u8]) -> bool {
    std::str::from_utf8(bytes).is_ok_and(|text| !text.chars().any(char::is_control))
}

/// Whether the fields of one number are the entries of a map. See the head of this file.
fn is_map(occurrences: &[WireField<'_>]) -> bool {
    let (mut keys, mut has_both) = (HashSet::new(), false);
    let (mut key_kind, mut value_kind) = (None, None);
    occurrences.len() > 1
        && occurrences.iter().all(|field| {
            let Some((key, value)) = read_entry(field) else { return false };
            has_both |= key.is_some() && value.is_some();
            is_of(&mut key_kind, key)
                && is_of(&mut value_kind, value)
                && keys.insert(key.filter(|key| !key.is_default()))
        })
        && has_both
}

/// Whether a value has the wire type of those before it.
fn is_of<'a>(kind: &mut Option<Discriminant<WireValue<'a>>>, value: Option<WireValue<'a>>) -> bool {
    value.is_none_or(|value| *kind.get_or_insert(discriminant(&value)) == discriminant(&value))
}

/// Reads the key and the value of an entry. A key is a number or a text.
fn read_entry<'a>(field: &WireField<'a>) -> Option<(Option<WireValue<'a>>, Option<WireValue<'a>>)> {
    let WireValue::Len(bytes) = field.value else { return None };
    let entry = WireMessage::read(bytes).filter(|message| message.is_shortest)?;
    let (key, value) = match entry.fields[..] {
        [] => (None, None),
        [WireField { number: 1, value: key }] => (Some(key), None),
        [WireField { number: 2, value }] => (None, Some(value)),
        [WireField { number: 1, value: key }, WireField { number: 2, value }] => (Some(key), Some(value)),
        _ => return None,
    };
    let is_key = |key| !matches!(key, WireValue::Len(bytes) if std::str::from_utf8(bytes).is_err());
    key.is_none_or(is_key).then_some((key, value))
}

#[cfg(test)]
mod tests;
