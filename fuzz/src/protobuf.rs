//! Protobuf without a schema: the parts by which messages are compared, and single fields.

use std::collections::BTreeSet;

use oncegate_domain::place::protobuf::{FieldPath, parts, value_at};
use oncegate_domain::place::{PlaceError, PlaceSelection};

use super::bytes_reader::BytesReader;

const CONTENT_TYPE: &[u8] = b"application/protobuf";

/// A field as the model reads it, without a guess about its value.
#[derive(Clone, Debug, PartialEq)]
struct ModelField {
    number: u64,
    kind: u8,
    /// The number of a varint, big-endian; otherwise the bytes.
    value: Vec<u8>,
}

/// Checks a message. The input's first two bytes are a path of the selection and a place to change.
///
/// - It has parts exactly if the model reads it: one for each field number, in order.
/// - A part has the fields of its number, each with all its bytes, in their order or as those of a message.
/// - The same fields, those of each number in their order, have the same parts in another order and with longer
///   varints.
/// - A change of one byte within a value changes the parts.
/// - A field is read as the model reads it.
/// - An excluded field has no part, and the others have the parts that they had.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let (choice, place) = (input.byte(), usize::from(input.byte()));
    let body = input.rest();
    let all = values(body, &[]);
    let Some(fields) = read(body) else {
        assert_eq!(all, None, "{}", body.escape_ascii());
        return;
    };
    let mut numbers: Vec<u64> = fields.iter().map(|field| field.number).collect();
    numbers.sort_unstable();
    numbers.dedup();
    let Some(all) = all else {
        assert!(numbers.len() > 4096, "{}", body.escape_ascii());
        return;
    };
    let places: Vec<_> = numbers.iter().map(|number| format!("protobuf:{number}")).collect();
    assert_eq!(all.iter().map(|(place, _)| place.clone()).collect::<Vec<_>>(), places);
    for (number, (_, value)) in numbers.iter().zip(&all) {
        let own: Vec<_> = fields.iter().filter(|field| field.number == *number).cloned().collect();
        check_fields(value, &own);
        check_value(body, *number, &own);
    }

    let mut shuffled = fields.clone();
    shuffled.sort_by_key(|field| field.number.wrapping_mul(u64::from(choice) | 1) ^ u64::from(choice));
    assert_eq!(values(&write(&shuffled), &[]).as_ref(), Some(&all), "{}", body.escape_ascii());

    let mut changed = fields.clone();
    let longest = changed.iter_mut().filter(|field| field.kind != 0).max_by_key(|field| field.value.len());
    if let Some(value) = longest.filter(|field| !field.value.is_empty()).map(|field| &mut field.value) {
        let at = place % value.len();
        value[at] ^= choice | 1;
        assert_ne!(values(&write(&changed), &[]).as_ref(), Some(&all), "{}", body.escape_ascii());
    }

    if let Some(path) = numbers.get(place % numbers.len().max(1)).and_then(|number| path(&number.to_string())) {
        let mut left = all.clone();
        left.retain(|(place, _)| *place != format!("protobuf:{path}"));
        assert_eq!(values(body, &[path]), Some(left), "{}", body.escape_ascii());
    }
    if let Some(path) = path(&format!("{}.{}", choice % 16, place % 16)) {
        // Where it leads into a message, or nowhere.
        let _ = (values(body, std::slice::from_ref(&path)), value_at(CONTENT_TYPE, body, &path));
    }
}

fn path(text: &str) -> Option<FieldPath> {
    FieldPath::parse(text).ok()
}

fn values(body: &[u8], exclude: &[FieldPath]) -> Option<Vec<(String, Vec<u8>)>> {
    let parts = parts(CONTENT_TYPE, body, PlaceSelection { include: &[], exclude })?;
    Some(parts.into_iter().map(|part| (part.place, part.value)).collect())
}

/// The part of one number has its fields, each as it was sent, or as a group: a message with the same bytes in another
/// order. A text is no message.
fn check_fields(part: &[u8], fields: &[ModelField]) {
    let mut rest = part;
    let (mut written, mut is_group) = (Vec::new(), Vec::new());
    while !rest.is_empty() {
        let (field, group) = read_written(&mut rest);
        written.push(field);
        is_group.push(group);
    }
    let sorted = |fields: &[ModelField]| {
        let mut sorted: Vec<_> = fields.iter().map(|field| (field.kind, field.value.clone())).collect();
        sorted.iter_mut().filter(|(kind, _)| *kind == 2).for_each(|(_, value)| value.sort_unstable());
        sorted.sort_unstable();
        sorted
    };
    assert_eq!(sorted(&written), sorted(fields), "{}", part.escape_ascii());
    let sent: BTreeSet<_> = fields.iter().map(|field| &field.value).collect();
    for (field, is_group) in written.iter().zip(is_group) {
        if is_group {
            let text = std::str::from_utf8(&field.value).ok();
            let is_text = text.is_some_and(|text| !text.chars().any(char::is_control));
            // Sorted, a message may look like a text, but it was none.
            assert!(!is_text || !sent.contains(&field.value), "{}", part.escape_ascii());
        } else {
            assert!(sent.contains(&field.value), "{}", part.escape_ascii());
        }
    }
}

/// Reads a field of a part, and whether it is a group: wire types 3 and 4 are its start and its end.
fn read_written(rest: &mut &[u8]) -> (ModelField, bool) {
    let varint = |rest: &mut &[u8]| {
        let (number, length) = read_varint(rest).expect("a part is well-formed");
        *rest = &rest[length..];
        number
    };
    let tag = varint(rest);
    let (number, kind) = (tag >> 3, (tag & 7) as u8);
    let size = match kind {
        0 => return (ModelField { number, kind, value: varint(rest).to_be_bytes().to_vec() }, false),
        1 => 8,
        2 => usize::try_from(varint(rest)).expect("a length"),
        3 => {
            let mut fields = Vec::new();
            loop {
                let (end, length) = read_varint(rest).expect("a part is well-formed");
                if end & 7 == 4 {
                    assert_eq!(end >> 3, number);
                    *rest = &rest[length..];
                    return (ModelField { number, kind: 2, value: write_shortest(&fields) }, true);
                }
                fields.push(read_written(rest).0);
            }
        }
        kind => {
            assert_eq!(kind, 5);
            4
        }
    };
    let (value, after) = rest.split_at(size);
    *rest = after;
    (ModelField { number, kind, value: value.to_vec() }, false)
}

fn check_value(body: &[u8], number: u64, fields: &[ModelField]) {
    let Some(path) = path(&number.to_string()) else { return };
    let expected = match fields {
        [ModelField { kind: 0, value, .. }] => {
            let number = value.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
            Ok(Some(number.to_string().into_bytes()))
        }
        [ModelField { kind: 2, value, .. }] => Ok(Some(value.clone())),
        [_] => Err(PlaceError::NotScalar),
        _ => Err(PlaceError::Several),
    };
    assert_eq!(value_at(CONTENT_TYPE, body, &path), expected, "{}", body.escape_ascii());
}

/// Reads a message as its specification says: a list of tags and values. A tag and a length have 32 bits.
fn read(body: &[u8]) -> Option<Vec<ModelField>> {
    let (mut at, mut fields) = (0, Vec::new());
    while at < body.len() {
        let (tag, length) = read_varint(&body[at..])?;
        at += length;
        if length > 5 || tag >> 32 != 0 || tag >> 3 == 0 {
            return None;
        }
        let (skipped, size) = match tag & 7 {
            0 => (0, read_varint(&body[at..])?.1),
            1 => (0, 8),
            2 => {
                let (size, length) = read_varint(&body[at..])?;
                (length, usize::try_from(size).ok().filter(|_| length <= 5)?)
            }
            5 => (0, 4),
            _ => return None,
        };
        let start = at + skipped;
        at = start.checked_add(size)?;
        let value = body.get(start..at)?;
        let value = if tag & 7 == 0 { read_varint(value)?.0.to_be_bytes().to_vec() } else { value.to_vec() };
        fields.push(ModelField { number: tag >> 3, kind: (tag & 7) as u8, value });
    }
    Some(fields)
}

/// The number, and the length of its spelling.
fn read_varint(bytes: &[u8]) -> Option<(u64, usize)> {
    let length = bytes.iter().take(10).position(|byte| *byte < 128)? + 1;
    let groups = bytes[..length].iter().rev();
    let number = groups.fold(0u128, |number, byte| number * 128 + u128::from(byte % 128));
    Some((u64::try_from(number).ok()?, length))
}

/// Writes each tag and length in five bytes, and each number in ten.
fn write(fields: &[ModelField]) -> Vec<u8> {
    write_with(fields, |output, number, size| {
        for place in 0..size {
            let group = (number >> (7 * place) & 127) as u8;
            output.push(if place + 1 < size { group | 128 } else { group });
        }
    })
}

fn write_shortest(fields: &[ModelField]) -> Vec<u8> {
    write_with(fields, |output, mut number, _| {
        while number > 127 {
            output.push((number % 128) as u8 | 128);
            number /= 128;
        }
        output.push(number as u8);
    })
}

fn write_with(fields: &[ModelField], write_varint: impl Fn(&mut Vec<u8>, u64, usize)) -> Vec<u8> {
    let mut output = Vec::new();
    for field in fields {
        write_varint(&mut output, field.number * 8 + u64::from(field.kind), 5);
        match field.kind {
            0 => {
                let number = field.value.iter().fold(0u64, |number, byte| number << 8 | u64::from(*byte));
                write_varint(&mut output, number, 10);
            }
            2 => {
                write_varint(&mut output, field.value.len() as u64, 5);
                output.extend(&field.value);
            }
            _ => output.extend(&field.value),
        }
    }
    output
}
