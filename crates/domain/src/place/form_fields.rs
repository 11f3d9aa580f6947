//! The fields of a form by which it is compared, urlencoded or multipart.

use canonical_json::{Pointer, Selection, canonicalize_selected};

use super::value::{BodyPart, PlaceSelection};

/// A field of a form by its name, or a value of the JSON in it.
pub type FormPlace = (Box<str>, Option<Pointer>);

/// The fields that count: each name with its values, and the bytes that count beside each value.
pub(super) fn by_name(
    fields: impl Iterator<Item = (Vec<u8>, Vec<u8>, Vec<u8>)>,
    selection: PlaceSelection<'_, FormPlace>,
) -> Vec<BodyPart> {
    let mut fields: Vec<_> = fields.filter(|(name, ..)| selection.may_count(name)).collect();
    // Stable: the values of one name keep their order.
    fields.sort_by(|(one, ..), (other, ..)| one.cmp(other));
    let mut parts: Vec<BodyPart> = Vec::new();
    let mut last: Option<Vec<u8>> = None;
    for (name, beside, value) in fields {
        if last.as_ref() != Some(&name) {
            // The name itself counts too: two that are no text may look the same.
            let mut start = Vec::with_capacity(name.len() + beside.len() + value.len() + 32);
            write_field(&mut start, &name);
            parts.push(BodyPart { place: format!("form:{}", String::from_utf8_lossy(&name)), value: start });
        }
        let part = &mut parts.last_mut().expect("it was pushed").value;
        write_field(part, &beside);
        match selection.json_of(&name).and_then(|json| canonicalize_selected(&value, &json).ok()) {
            Some(canonical) => {
                part.push(1);
                write_field(part, &canonical);
            }
            None => {
                part.push(0);
                write_field(part, &value);
            }
        }
        last = Some(name);
    }
    parts
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
