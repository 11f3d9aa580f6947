//! CBOR (RFC 8949): a value by a JSON Pointer, and the members by which two bodies are compared.
//!
//! A body is first written in its deterministic encoding, then read there. A library would have to keep the bits of a
//! NaN, the order of equal keys and the place of each item; none does without as much code around it.

use canonical_json::Pointer;

use super::value::{BodyPart, PARTS_MAX, PlaceError, PlaceSelection, PlaceValue};

mod encoding;
#[cfg(test)]
mod tests;

use encoding::{ARRAY, BYTES, CborItems, MAP, NEGATIVE, TEXT, UNSIGNED, read_head, to_deterministic, write_head};

/// Reads a value of a CBOR body: a text or an integer. A name of the pointer is a text key of a map, or the index of an
/// array's element. A byte string is no scalar: the same bytes as a text would be the same key.
pub fn value_at(body: &[u8], pointer: &Pointer) -> PlaceValue {
    let document = to_deterministic(body).ok_or(NOT_DETERMINISTIC)?;
    let mut value = &document[..];
    for name in pointer.names() {
        let segment = name.map(CborSegment::new);
        let matching = |child: &CborChild<'_>| segment.as_ref().is_some_and(|segment| segment.matches(child));
        let Some(child) = children(value).and_then(|mut children| children.find(matching)) else { return Ok(None) };
        value = child.value;
    }
    let (major, argument, content) = read_head(value).ok_or(NOT_DETERMINISTIC)?;
    match major {
        UNSIGNED => Ok(Some(argument.to_string().into_bytes())),
        NEGATIVE => Ok(Some((-1 - i128::from(argument)).to_string().into_bytes())),
        TEXT => Ok(Some(content.to_vec())),
        _ => Err(PlaceError::NotScalar),
    }
}

const NOT_DETERMINISTIC: PlaceError = PlaceError::Unreadable(
    "The body is not CBOR that all programs read alike: one item, UTF-8, each key once in a map, nesting of at most \
     128.",
);

/// The members that count, each with its key, in their deterministic encoding (RFC 8949, section 4.2.1). A body that is
/// no map, or has more than `PARTS_MAX` members, is one part. `None` for a body that is not one well-formed item: it
/// is compared by its bytes.
pub fn parts(body: &[u8], selection: PlaceSelection<'_, Pointer>) -> Option<Vec<BodyPart>> {
    let mut document = to_deterministic(body)?;
    for (pointers, keeps) in [(selection.include, true), (selection.exclude, false)] {
        let paths: Vec<CborPath> = pointers.iter().map(CborPath::new).collect();
        let paths: Vec<_> = paths.iter().map(|path| &path.0[..]).collect();
        if !paths.is_empty() {
            let mut selected = Vec::with_capacity(document.len());
            if document.is_empty() || !write_selected(&document, &paths, keeps, &mut selected) {
                selected.clear();
            }
            document = selected;
        }
    }
    let part = |place, value: &[u8]| BodyPart { place, value: value.to_vec() };
    let is_apart = matches!(read_head(&document), Some((MAP, count, _)) if count <= PARTS_MAX as u64);
    let Some(members) = children(&document).filter(|_| is_apart) else {
        return Some(if document.is_empty() { Vec::new() } else { vec![part("cbor:".into(), &document)] });
    };
    Some(members.map(|child| part(member_place(child.key), child.member)).collect())
}

/// The place of a member: a pointer for a text key, and the diagnostic notation (RFC 8949, section 8) for another one.
fn member_place(key: &[u8]) -> String {
    match read_head(key) {
        Some((TEXT, _, text)) => {
            let name = String::from_utf8_lossy(text);
            format!("cbor:/{}", name.replace('~', "~0").replace('/', "~1"))
        }
        Some((UNSIGNED, number, _)) => format!("cbor:{number}"),
        Some((NEGATIVE, number, _)) => format!("cbor:{}", -1 - i128::from(number)),
        Some((BYTES, _, bytes)) => format!("cbor:h'{}'", data_encoding::HEXLOWER.encode(bytes)),
        // Any other key by its encoding, as a sequence in diagnostic notation would be.
        _ => format!("cbor:<<h'{}'>>", data_encoding::HEXLOWER.encode(key)),
    }
}

/// A pointer's segments; `None` is `*`.
struct CborPath(Vec<Option<CborSegment>>);

impl CborPath {
    fn new(pointer: &Pointer) -> Self {
        Self(pointer.names().map(|name| name.map(CborSegment::new)).collect())
    }
}

struct CborSegment {
    name: String,
    /// The name as an array index; `None` if it is none (RFC 6901, section 4).
    index: Option<usize>,
}

impl CborSegment {
    fn new(name: String) -> Self {
        let is_index = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
        Self { index: name.parse().ok().filter(|_| is_index), name }
    }

    fn matches(&self, child: &CborChild<'_>) -> bool {
        match read_head(child.key) {
            None => self.index == Some(child.position),
            Some((major, _, text)) => major == TEXT && text == self.name.as_bytes(),
        }
    }
}

struct CborChild<'a> {
    /// Empty in an array.
    key: &'a [u8],
    value: &'a [u8],
    /// The key and the value.
    member: &'a [u8],
    position: usize,
}

/// The elements or members of an array or a map in deterministic encoding; `None` for any other item.
fn children(item: &[u8]) -> Option<impl Iterator<Item = CborChild<'_>>> {
    let (major, _, content) = read_head(item).filter(|(major, ..)| matches!(*major, ARRAY | MAP))?;
    let mut items = CborItems(content);
    Some((0..).map_while(move |position| {
        let start = items.0;
        let key = if major == MAP { items.next()? } else { &[] };
        let value = items.next()?;
        Some(CborChild { key, value, member: &start[..key.len() + value.len()], position })
    }))
}

/// Appends the parts of an item that `paths` lead to, or all but these. Returns whether there is something to append.
/// The place of an element that is left out has a `null`, so that the others keep theirs.
fn write_selected(item: &[u8], paths: &[&[Option<CborSegment>]], keeps: bool, output: &mut Vec<u8>) -> bool {
    let ends_here = paths.iter().any(|path| path.is_empty());
    let Some(children) = children(item).filter(|_| !ends_here && !paths.is_empty()) else {
        let is_kept = ends_here == keeps;
        output.extend_from_slice(if is_kept { item } else { &[] });
        return is_kept;
    };
    let is_map = item[0] >> 5 == MAP;
    let (mut items, mut count, mut kept) = (Vec::new(), 0, (0, 0));
    for child in children {
        let leads = |segment: &Option<CborSegment>| segment.as_ref().is_none_or(|segment| segment.matches(&child));
        let within: Vec<_> =
            paths.iter().filter_map(|path| path.split_first()).filter(|(first, _)| leads(first)).collect();
        let within: Vec<_> = within.into_iter().map(|(_, rest)| rest).collect();
        let start = items.len();
        items.extend_from_slice(child.key);
        let is_kept = write_selected(child.value, &within, keeps, &mut items);
        if !is_kept && is_map {
            items.truncate(start);
            continue;
        }
        if !is_kept {
            items.push(NULL);
        }
        count += 1;
        if is_kept || !keeps {
            kept = (items.len(), count);
        }
    }
    if keeps && kept.1 == 0 {
        return false;
    }
    write_head(output, item[0] >> 5, kept.1);
    output.extend_from_slice(&items[..kept.0]);
    true
}

/// `null` in CBOR.
const NULL: u8 = 0xf6;
