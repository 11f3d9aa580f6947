//! A part of a request that counts in its fingerprint, with its place.

use std::borrow::Cow;

use canonical_json::canonical_children;

/// The most parts of a request that have bits: with them, a row grows by 193 bytes at most.
pub const PARTS_MAX: usize = 48;

/// The most values within a part that are looked at.
const NESTED_MAX: usize = 1024;

/// The longest place, and the longest name in it, that is shown: longer ones are mostly values.
const PLACE_MAX: usize = 120;
const NAME_MAX: usize = 40;

/// The digits in a row that a name may have, as in `line2` and in a year. More are a number of somebody.
const DIGITS_MAX: usize = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestPart<'a> {
    /// The beginning of its place.
    pub(crate) kind: &'static str,
    /// The rest of its place. In JSON, the name of a member as its canonical form has it.
    pub(crate) name: Cow<'a, [u8]>,
    pub(crate) value: Cow<'a, [u8]>,
}

impl<'a> RequestPart<'a> {
    pub(crate) fn whole(kind: &'static str, value: impl Into<Cow<'a, [u8]>>) -> Self {
        Self { kind, name: Cow::Borrowed(b""), value: value.into() }
    }

    pub fn into_owned(self) -> RequestPart<'static> {
        let Self { kind, name, value } = self;
        RequestPart { kind, name: name.into_owned().into(), value: value.into_owned().into() }
    }

    /// The part's place, as an operator writes it: `json:/amount`, `header:x-tenant`. The method, the path, and bytes
    /// that have no parts are named by one word.
    pub fn place(&self) -> String {
        if self.is_json() {
            return [self.kind, &pointer_step(&self.name)].concat();
        }
        [self.kind, &String::from_utf8_lossy(&self.name)].concat()
    }

    /// The place as it may be told: its kind alone where the name may be a value. A body of JSON that `curl` sends
    /// without a media type is the name of a form's field, and a token may be a parameter without a value.
    pub fn shown_place(&self) -> String {
        let place = self.place();
        let is_empty = match place.split_once(':') {
            Some(("query", _)) => self.value.is_empty(),
            // The length of an empty text.
            Some(("form", _)) => self.value.ends_with(&[0; 8]),
            _ => false,
        };
        if !is_empty && is_name(&place) {
            return place;
        }
        place.split_once(':').map_or(place.as_str(), |(kind, _)| kind).to_owned()
    }

    /// Whether nobody can tell from it that it is another operation: it is bytes without parts, or the form of the
    /// parts alone, such as white space in XML, or it has a number for a name.
    pub fn is_opaque(&self) -> bool {
        let is_form = |place: &[u8]| place.starts_with(b"part ") || matches!(place, b"xml:" | b"cbor:" | b"multipart");
        matches!(self.kind, BODY | QUERY) || self.kind.is_empty() && is_form(&self.name)
    }

    /// The places of all values with a name within its value, if that is JSON; `None` if they are too many.
    pub(crate) fn nested_places(&self) -> Option<Vec<String>> {
        let mut places = Vec::new();
        let mut open = Vec::from_iter(self.is_json().then(|| (self.place(), &*self.value)));
        let mut count = 0;
        while let Some((outer, value)) = open.pop() {
            for (name, value) in canonical_children(value).into_iter().flatten() {
                count += 1;
                if count > NESTED_MAX {
                    return None;
                }
                let place = format!("{outer}/{}", name.map_or_else(|| "*".to_owned(), pointer_step));
                if name.is_some() {
                    places.push(place.clone());
                }
                open.push((place, value));
            }
        }
        Some(places)
    }

    fn is_json(&self) -> bool {
        self.kind.starts_with("json:/")
    }
}

/// A body that has no parts, and a query with more parameters than are told apart.
pub(crate) const BODY: &str = "body";
pub(crate) const QUERY: &str = "query";

/// A step of a JSON Pointer (RFC 6901, section 3) from a name in quotes.
fn pointer_step(quoted: &[u8]) -> String {
    let unescaped = serde_json::from_slice(quoted).unwrap_or_else(|_| String::from_utf8_lossy(quoted).into_owned());
    // In this order.
    unescaped.replace('~', "~0").replace('/', "~1")
}

/// Whether a place has names, and nothing that may be a value.
pub(crate) fn is_name(place: &str) -> bool {
    let is_word = |word: &str| {
        let word = word.strip_prefix('@').unwrap_or(word);
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"_-.:[]*~".contains(&byte);
        word.len() <= NAME_MAX && word.bytes().all(is_plain)
    };
    let longest_number = place.split(|character: char| !character.is_ascii_digit()).map(str::len).max();
    place.len() <= PLACE_MAX
        && place.split('/').all(is_word)
        && longest_number.is_none_or(|length| length <= DIGITS_MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_shown_unless_its_name_may_be_a_value() {
        for (kind, name, value, shown) in [
            ("json:/", r#""amount""#, "1", "json:/amount"),
            ("json:/", r#""a/b""#, "1", "json:/a~1b"),
            ("json:/params/", r#""line2""#, "1", "json:/params/line2"),
            ("json:/", r#""alice@example.org""#, "1", "json"),
            ("json:/", r#""4111111111111111""#, "1", "json"),
            ("json:/", r#""a\u202eb""#, "1", "json"),
            ("json:/", r#""a, b""#, "1", "json"),
            ("", "form:items[][price]", "x", "form:items[][price]"),
            ("", r#"form:{"card":"4111"}"#, "x", "form"),
            ("", "form:a", "\0\0\0\0\0\0\0\0", "form"),
            ("", "xml:/Envelope/Body/order/@id", "x", "xml:/Envelope/Body/order/@id"),
            ("query:", "to", "a", "query:to"),
            ("query:", "TOKEN", "", "query"),
            ("query:", "TOKEN-of-somebody-that-is-longer-than-a-name", "a", "query"),
            ("header:", "x-tenant", "a", "header:x-tenant"),
            ("method", "", "POST", "method"),
            ("body", "", "x", "body"),
        ] {
            let part = RequestPart { kind, name: name.as_bytes().into(), value: value.as_bytes().into() };
            assert_eq!(part.shown_place(), shown, "{kind}{name}");
        }
    }

    #[test]
    fn the_values_within_a_part_have_places() {
        let nested = |value: &str| {
            let part =
                RequestPart { kind: "json:/", name: br#""a""#[..].into(), value: value.as_bytes().to_vec().into() };
            part.nested_places()
        };
        assert_eq!(nested("1"), Some(Vec::new()));
        let places = ["json:/a/b", "json:/a/d~1e", "json:/a/b/*/c"].map(str::to_owned).to_vec();
        assert_eq!(nested(r#"{"b":[1,{"c":2}],"d/e":3}"#), Some(places));
        assert_eq!(nested(&format!("[{}1]", "1,".repeat(NESTED_MAX))), None);
    }
}
