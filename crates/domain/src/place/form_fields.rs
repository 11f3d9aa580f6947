//! The fields of a form by which it is compared, urlencoded or multipart.

use std::borrow::Cow;

use canonical_json::{Pointer, Selection, canonicalize_selected};

use super::value::{BodyPart, PlaceSelection};

/// A field of a form by its name, or a value of the JSON in it.
pub type FormPlace = (Box<str>, Option<Pointer>);

/// A field of a form, as it was sent.
pub(super) struct FormField<'a> {
    pub(super) name: Cow<'a, [u8]>,
    pub(super) content: Cow<'a, [u8]>,
    /// The part of a multipart form that has the content at its end.
    pub(super) part: &'a [u8],
}

impl FormField<'_> {
    /// The lines before the content; empty in an urlencoded form.
    pub(super) fn head(&self) -> &[u8] {
        self.part.strip_suffix(&*self.content).unwrap_or_default()
    }
}

/// The fields that count: a part for each name, or for all names that [`field_group`] keeps together. `write_whole`
/// writes a field that counts as a whole, and begins with another byte than 3.
pub(super) fn by_name<'a>(
    fields: impl Iterator<Item = FormField<'a>>,
    selection: PlaceSelection<'_, FormPlace>,
    write_whole: impl Fn(&mut Vec<u8>, &FormField<'a>),
) -> Vec<BodyPart> {
    let mut fields: Vec<_> = fields.filter(|field| selection.may_count(&field.name)).enumerate().collect();
    fields.sort_by_cached_key(|(_, field)| group_order(field_group(&field.name)).collect::<Vec<_>>());
    let write = |value: &mut Vec<u8>, field: &FormField<'a>| {
        write_field(value, &field.name);
        let json = selection.json_of(&field.name);
        match json.and_then(|json| Some(canonicalize_selected(&field.content, &json).ok()?.into_owned())) {
            Some(canonical) => {
                value.push(3);
                write_field(value, field.head());
                write_field(value, &canonical);
            }
            None => write_whole(value, field),
        }
    };
    let mut parts = Vec::with_capacity(fields.len());
    let mut rest = &mut fields[..];
    while let Some((_, first)) = rest.first() {
        let group = field_group(&first.name);
        let length = rest.iter().take_while(|(_, field)| is_within(field_group(&field.name), group)).count();
        let has_one_name = rest[..length].iter().all(|(_, field)| field.name == first.name);
        let place = String::from_utf8_lossy(if has_one_name { &first.name } else { group });
        let place = format!("form:{place}");
        let (own, others) = rest.split_at_mut(length);
        own.sort_by_key(|(at, _)| *at);
        let size = own.iter().map(|(_, field)| field.name.len() + field.content.len().max(field.part.len()) + 32).sum();
        let mut value = Vec::with_capacity(size);
        own.iter().for_each(|(_, field)| write(&mut value, field));
        parts.push(BodyPart { place, value });
        rest = others;
    }
    parts
}

/// The beginning of a name, up to the first `[]`. The order of two fields counts where the group of one is within that
/// of the other: services make one value of them. In Rack, an element begins where a name comes again, so that
/// `i[][id]=1&i[][id]=2&i[][gift]=1` makes a gift of the second item, and in another order of the first. In PHP, the
/// last one counts of `a=1&a[b]=2`. A name that services read in more ways is in the group of all: then the order of
/// the whole form counts.
fn field_group(name: &[u8]) -> &[u8] {
    let name = name.trim_ascii_start();
    match is_plain(name) {
        true => &name[..memchr::memmem::find(name, b"[]").unwrap_or(name.len())],
        false => b"",
    }
}

/// Whether a name is a word with words in brackets behind it, in ASCII. PHP drops what follows a bracket or a zero, and
/// takes a bracket that does not close for a `_`. ASP.NET takes capital letters for small ones in any script.
fn is_plain(name: &[u8]) -> bool {
    let (base, mut rest) = name.split_at(memchr::memchr(b'[', name).unwrap_or(name.len()));
    while let Some(inner) = rest.strip_prefix(b"[") {
        let Some(end) = memchr::memchr2(b'[', b']', inner).filter(|end| inner[*end] == b']') else { return false };
        if end > 0 && inner[..end].trim_ascii().is_empty() {
            return false;
        }
        rest = &inner[end + 1..];
    }
    rest.is_empty()
        && !base.is_empty()
        && !base.contains(&b']')
        && name.iter().all(|byte| byte.is_ascii() && *byte != 0)
}

/// The bytes by which groups are ordered: a group comes right before all that are within it. PHP takes a dot and a
/// space for a `_`, and ASP.NET a capital letter for a small one.
fn group_order(group: &[u8]) -> impl Iterator<Item = u16> {
    group.iter().map(|byte| match byte {
        b'[' => 0,
        b'.' | b' ' => u16::from(b'_') + 1,
        other => u16::from(other.to_ascii_lowercase()) + 1,
    })
}

fn is_within(group: &[u8], outer: &[u8]) -> bool {
    let start = group.get(..outer.len());
    let is_deeper = || matches!(group[outer.len()..], [] | [b'[', ..]);
    outer.is_empty() || start.is_some_and(|start| group_order(start).eq(group_order(outer))) && is_deeper()
}

impl PlaceSelection<'_, FormPlace> {
    /// Whether a field of this name counts, at least in part.
    fn may_count(&self, name: &[u8]) -> bool {
        let is_of = |place: &FormPlace| place.0.as_bytes() == name;
        (self.include.is_empty() || self.include.iter().any(is_of))
            && !self.exclude.iter().any(|place| is_of(place) && place.1.is_none())
    }

    /// The values of a field's JSON that count; `None` where the field counts as a whole.
    fn json_of(&self, name: &[u8]) -> Option<Selection> {
        let of = |places: &[FormPlace]| {
            let own = places.iter().filter(|place| place.0.as_bytes() == name);
            own.map(|place| place.1.clone()).collect::<Vec<_>>()
        };
        let (include, exclude) = (of(self.include), of(self.exclude));
        // A field that is included as a whole includes all of its JSON.
        let include = include.into_iter().collect::<Option<Vec<_>>>().unwrap_or_default();
        let exclude: Vec<_> = exclude.into_iter().flatten().collect();
        (!include.is_empty() || !exclude.is_empty()).then_some(Selection { include, exclude })
    }
}

/// Writes bytes behind their length, so that no field can end in the next.
pub(super) fn write_field(canonical: &mut Vec<u8>, bytes: &[u8]) {
    canonical.extend_from_slice(&(bytes.len() as u64).to_be_bytes());
    canonical.extend_from_slice(bytes);
}
