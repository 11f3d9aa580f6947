//! Forms: a field by its name, and the fields by which two forms are compared.

use std::borrow::Cow;

pub use super::form_fields::FormPlace;
use super::form_fields::{FormField, by_name, write_field};
use super::multipart;
use super::value::{BodyPart, PARTS_MAX, PlaceError, PlaceSelection, PlaceValue, json_value, only, without_mark};
use crate::media_type::is_form;
use crate::urlencoded::decoded_pairs;

/// Reads a field of a form, urlencoded or multipart as the `Content-Type` says. A body without one is read as
/// urlencoded.
pub fn value_at(content_type: &[u8], body: &[u8], (name, pointer): &FormPlace) -> PlaceValue {
    let value = if multipart::is_form_data(content_type) {
        let fields = multipart::fields(content_type, body).ok_or(NOT_PLAIN)?;
        let field = only(fields.into_iter().filter(|field| &*field.name == name.as_bytes()))?;
        if field.as_ref().is_some_and(|field| !field.is_utf8()) {
            return Err(NOT_UTF8);
        }
        field.map(|field| field.content)
    } else if content_type.is_empty() || is_form(content_type) {
        let body = without_mark(body);
        // Text in UTF-16 or UTF-32 has zeros, and an urlencoded form has none.
        if memchr::memchr(0, body).is_some() {
            return Err(NOT_UTF8);
        }
        only(decoded_pairs(body).filter(|(other, _)| &**other == name.as_bytes()).map(|(_, value)| value))?
    } else {
        return Err(NO_FORM);
    };
    match (value, pointer) {
        (Some(document), Some(pointer)) => json_value(&document, pointer, NO_JSON),
        (value, _) => Ok(value.map(Cow::into_owned)),
    }
}

const NO_FORM: PlaceError = PlaceError::Unreadable(
    "A value may be in a form field, and the body is neither application/x-www-form-urlencoded nor multipart/form-data.",
);

const NOT_PLAIN: PlaceError = PlaceError::Unreadable(
    "A value may be in a field of the multipart form, and programs may find other parts in it: its boundary stands in a part, or a part \
     does not name its field plainly.",
);

const NOT_UTF8: PlaceError =
    PlaceError::Unreadable("A value may be in a form field, and the field is not in UTF-8. Send it in UTF-8.");

const NO_JSON: PlaceError = PlaceError::Unreadable(
    "A field of the form should have a JSON document, and has something else, or JSON that programs read in different ways.",
);

/// The fields of an urlencoded form that count: by name, in any order between names, in theirs within one name. Some
/// clients keep their fields in a set, and send another order in each run. `None` for a form of more than `PARTS_MAX`
/// fields: it is compared by its bytes.
pub fn parts(body: &[u8], selection: PlaceSelection<'_, FormPlace>) -> Option<Vec<BodyPart>> {
    if decoded_pairs(body).nth(PARTS_MAX).is_some() {
        return None;
    }
    let fields = decoded_pairs(body).map(|(name, content)| FormField { name, content, part: b"" });
    Some(by_name(fields, selection, |canonical, field| {
        canonical.push(0);
        write_field(canonical, &field.content);
    }))
}

#[cfg(test)]
mod tests;
