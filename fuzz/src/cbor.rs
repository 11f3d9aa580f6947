//! CBOR bodies: one deterministic encoding for each item.

use canonical_json::Pointer;
use oncegate_domain::place::{BodyPart, PlaceSelection, cbor};

/// An item, whatever its spelling. A float is the bits of a double.
#[derive(Clone, Debug, PartialEq)]
enum CborItem {
    Integer(i128),
    Bytes(Vec<u8>),
    Text(String),
    Array(Vec<CborItem>),
    Map(Vec<(CborItem, CborItem)>),
    Tag(u64, Box<CborItem>),
    Simple(u8),
    Float(u64),
}

/// Checks a body's parts:
///
/// - it has some exactly if a reader of its own reads it;
/// - that reader finds the same item in the parts, so that two bodies with the same parts are the same;
/// - the longest spelling of the item has the same parts;
/// - a member that is excluded leaves the other parts as they are, and one that is included is its part.
pub fn check(input: &[u8]) {
    let parts = parts(input, &[], &[]);
    let mut rest = input.strip_prefix(b"\xd9\xd9\xf7").unwrap_or(input);
    let item = read(&mut rest, 0).filter(|_| rest.is_empty());
    assert_eq!(parts.is_some(), item.is_some());
    let (Some(parts), Some(item)) = (parts, item) else { return };

    let found = parts.iter().flat_map(|part| read_all(&part.value));
    let found = match &item {
        // One of more members is one part.
        CborItem::Map(members) if members.len() <= 4096 => {
            let found: Vec<_> = found.collect();
            vec![sorted_map(found.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect())]
        }
        _ => found.collect(),
    };
    assert_eq!(found, std::slice::from_ref(&item));
    let mut longest = Vec::new();
    write(&item, &mut longest);
    assert_eq!(self::parts(&longest, &[], &[]).as_ref(), Some(&parts), "{}", longest.escape_ascii());

    let Some(name) = parts.first().and_then(|part| part.place.strip_prefix("cbor:")) else { return };
    let Some(pointer) = Pointer::parse(name).ok().filter(|pointer| !name.is_empty() && !pointer.is_pattern()) else {
        return;
    };
    let pointer = [pointer];
    assert_eq!(self::parts(input, &[], &pointer).as_deref(), Some(&parts[1..]));
    assert_eq!(self::parts(input, &pointer, &[]).as_deref(), Some(&parts[..1]));
    let value = found_text(&item, name);
    assert_eq!(cbor::value_at(input, &pointer[0]).ok().flatten(), value);
}

fn parts(body: &[u8], include: &[Pointer], exclude: &[Pointer]) -> Option<Vec<BodyPart>> {
    cbor::parts(body, PlaceSelection { include, exclude })
}

/// The text or the integer of the top-level member at a pointer.
fn found_text(item: &CborItem, pointer: &str) -> Option<Vec<u8>> {
    let CborItem::Map(members) = item else { return None };
    let name = pointer[1..].replace("~1", "/").replace("~0", "~");
    members.iter().find(|(key, _)| *key == CborItem::Text(name.clone())).and_then(|(_, value)| match value {
        CborItem::Text(text) => Some(text.clone().into_bytes()),
        CborItem::Integer(number) => Some(number.to_string().into_bytes()),
        _ => None,
    })
}

/// A map in one order of its members.
fn sorted_map(mut members: Vec<(CborItem, CborItem)>) -> CborItem {
    members.sort_by_key(|(key, _)| format!("{key:?}"));
    CborItem::Map(members)
}

fn read_all(mut bytes: &[u8]) -> Vec<CborItem> {
    let mut items = Vec::new();
    while !bytes.is_empty() {
        items.push(read(&mut bytes, 0).expect("a part has items"));
    }
    items
}

fn take<'a>(bytes: &mut &'a [u8], count: u64) -> Option<&'a [u8]> {
    let (taken, rest) = bytes.split_at_checked(usize::try_from(count).ok()?)?;
    *bytes = rest;
    Some(taken)
}

/// Whether a `break` comes next; it is taken then.
fn at_break(bytes: &mut &[u8]) -> bool {
    let is_there = bytes.first() == Some(&0xff);
    *bytes = &bytes[usize::from(is_there)..];
    is_there
}

/// The argument; `None` for an indefinite length.
fn read_argument(bytes: &mut &[u8], information: u8) -> Option<Option<u64>> {
    Some(match information {
        0..=23 => Some(u64::from(information)),
        24..=27 => {
            let mut number = [0; 8];
            let taken = take(bytes, [1, 2, 4, 8][usize::from(information - 24)])?;
            number[8 - taken.len()..].copy_from_slice(taken);
            Some(u64::from_be_bytes(number))
        }
        31 => None,
        _ => return None,
    })
}

fn read(bytes: &mut &[u8], depth: usize) -> Option<CborItem> {
    let first = take(bytes, 1)?[0];
    let argument = read_argument(bytes, first & 31)?;
    if matches!(first >> 5, 4..=6) && depth == 128 {
        return None;
    }
    Some(match (first >> 5, argument) {
        (0, Some(number)) => CborItem::Integer(number.into()),
        (1, Some(number)) => CborItem::Integer(-1 - i128::from(number)),
        (2, length) => CborItem::Bytes(read_chunks(bytes, first >> 5, length)?.concat()),
        (3, length) => {
            let chunks = read_chunks(bytes, first >> 5, length)?;
            let texts: Option<Vec<_>> = chunks.into_iter().map(|chunk| String::from_utf8(chunk).ok()).collect();
            CborItem::Text(texts?.concat())
        }
        (4, length) => {
            let mut elements = Vec::new();
            while length.map_or_else(|| !at_break(bytes), |length| (elements.len() as u64) < length) {
                elements.push(read(bytes, depth + 1)?);
            }
            CborItem::Array(elements)
        }
        (5, length) => {
            let mut members: Vec<(CborItem, CborItem)> = Vec::new();
            while length.map_or_else(|| !at_break(bytes), |length| (members.len() as u64) < length) {
                members.push((read(bytes, depth + 1)?, read(bytes, depth + 1)?));
            }
            let is_twice =
                |(at, (key, _)): (usize, &(CborItem, CborItem))| members[..at].iter().any(|(other, _)| other == key);
            if members.iter().enumerate().any(is_twice) {
                return None;
            }
            sorted_map(members)
        }
        (6, Some(tag)) => CborItem::Tag(tag, Box::new(read(bytes, depth + 1)?)),
        (7, Some(number)) => match first & 31 {
            0..=23 => CborItem::Simple(first & 31),
            24 => CborItem::Simple(u8::try_from(number).ok().filter(|number| *number >= 32)?),
            25 => CborItem::Float(from_float(number, 10, 15)),
            26 => CborItem::Float(from_float(number, 23, 127)),
            _ => CborItem::Float(number),
        },
        _ => return None,
    })
}

fn read_chunks(bytes: &mut &[u8], major: u8, length: Option<u64>) -> Option<Vec<Vec<u8>>> {
    if let Some(length) = length {
        return Some(vec![take(bytes, length)?.to_vec()]);
    }
    let mut chunks = Vec::new();
    while !at_break(bytes) {
        let first = take(bytes, 1)?[0];
        let length = read_argument(bytes, first & 31)?.filter(|_| first >> 5 == major)?;
        chunks.push(take(bytes, length)?.to_vec());
    }
    Some(chunks)
}

/// The bits of a double with the value of a shorter float, which has `fraction_bits` and the exponent's `bias`.
fn from_float(bits: u64, fraction_bits: u32, bias: i32) -> u64 {
    let fraction = bits & ((1 << fraction_bits) - 1);
    let exponent = (bits >> fraction_bits) as i32 & (2 * bias + 1);
    let sign = bits >> if bias == 15 { 15 } else { 31 } << 63;
    if exponent == 2 * bias + 1 {
        return sign | 0x7ff << 52 | fraction << (52 - fraction_bits);
    }
    let scaled = fraction | if exponent == 0 { 0 } else { 1 << fraction_bits };
    sign | (scaled as f64 * 2_f64.powi(exponent.max(1) - bias - fraction_bits as i32)).to_bits()
}

/// Writes the longest spelling.
fn write(item: &CborItem, output: &mut Vec<u8>) {
    let mut head = |major: u8, argument: u64| {
        output.push(major << 5 | 27);
        output.extend(argument.to_be_bytes());
    };
    match item {
        CborItem::Integer(number) if *number >= 0 => head(0, *number as u64),
        CborItem::Integer(number) => head(1, (-1 - *number) as u64),
        CborItem::Float(bits) => head(7, *bits),
        CborItem::Simple(number) if *number < 32 => output.push(7 << 5 | number),
        CborItem::Simple(number) => output.extend([7 << 5 | 24, *number]),
        CborItem::Bytes(bytes) => {
            output.push(0x5f);
            bytes.iter().for_each(|byte| output.extend([0x58, 1, *byte]));
            output.push(0xff);
        }
        CborItem::Text(text) => {
            output.push(0x7f);
            for character in text.chars() {
                output.extend([0x78, character.len_utf8() as u8]);
                output.extend(character.to_string().as_bytes());
            }
            output.push(0xff);
        }
        CborItem::Array(elements) => {
            output.push(0x9f);
            elements.iter().for_each(|element| write(element, output));
            output.push(0xff);
        }
        CborItem::Map(members) => {
            output.push(0xbf);
            for (key, value) in members.iter().rev() {
                write(key, output);
                write(value, output);
            }
            output.push(0xff);
        }
        CborItem::Tag(tag, inner) => {
            head(6, *tag);
            write(inner, output);
        }
    }
}
