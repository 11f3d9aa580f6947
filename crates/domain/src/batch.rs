//! Batches: a request whose JSON body has a list of operations, each with a key of its own.
//!
//! A batch is split into batches of one. The bytes around the list and those of each element stay as they came, so that
//! a service reads what it would read of the sender.

use std::borrow::Cow;

use bytes::Bytes;
use serde_json::value::RawValue;

use super::json_members::JsonMembers;
use super::place::Place;

/// The most elements of a batch: each is a row of the store. Senders of webhooks have 100 at most (HubSpot), or less
/// than a kilobyte for each (SendGrid).
pub const ELEMENTS_MAX: usize = 1_000;

/// The place of the list in a body.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{list}/*")]
pub struct BatchPlace {
    /// As it is written, without the `/*`.
    list: Box<str>,
    /// The names of the members that lead to it.
    names: Box<[Box<str>]>,
}

/// The reason for which a batch is refused as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchError {
    /// It has more than [`ELEMENTS_MAX`] elements, or its parts would have more bytes than the route takes.
    TooLarge,
    /// No list is at the place, or a member on the way to it is there twice.
    NoList,
}

impl BatchPlace {
    /// Parses a place such as `json:/*` or `json:/events/*`.
    ///
    /// # Errors
    /// The problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = "is no list of a body: write it like `json:/*` or `json:/events/*`";
        let Place::Json(_) = Place::parse(text)? else { return Err(wrong.into()) };
        let list = text.strip_suffix("/*").ok_or(wrong)?;
        let names: Vec<_> =
            list.split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~").into()).collect();
        let place = Self { list: list.into(), names: names.into() };
        if place.names.iter().any(|name| **name == *"*") { Err(wrong.into()) } else { Ok(place) }
    }

    /// Whether a place is in the element of a batch of one.
    pub fn holds(&self, place: &Place) -> bool {
        let (place, first) = (place.to_string(), format!("{}/0", self.list));
        place.strip_prefix(&first).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// The place of the list; `None` where it is the whole body.
    pub fn list(&self) -> Option<Place> {
        Place::parse(&self.list).ok().filter(|_| !self.names.is_empty())
    }

    /// Splits a body into one for each element, of this many bytes at most in all.
    ///
    /// # Errors
    /// The reason why the body is no batch that can be split.
    pub fn split(&self, body: &Bytes, bytes_max: usize) -> Result<Vec<Bytes>, BatchError> {
        let text = str::from_utf8(body).map_err(|_| BatchError::NoList)?;
        let list = self.names.iter().try_fold(text, |text, name| member(text, name)).ok_or(BatchError::NoList)?;
        let list = list.trim_ascii();
        let elements: Vec<&RawValue> = serde_json::from_str(list).map_err(|_| BatchError::NoList)?;
        // The list is a part of the text, by which its place is known.
        let start = list.as_ptr() as usize - text.as_ptr() as usize;
        let (before, after) = (&text[..start], &text[start + list.len()..]);
        let around = before.len() + after.len() + 2;
        let length: usize = elements.iter().map(|element| element.get().len() + around).sum();
        if elements.len() > ELEMENTS_MAX || length > bytes_max {
            return Err(BatchError::TooLarge);
        }
        Ok(elements.into_iter().map(|element| [before, "[", element.get(), "]", after].concat().into()).collect())
    }
}

/// The only member of this name in an object.
fn member<'a>(object: &'a str, name: &str) -> Option<&'a str> {
    let JsonMembers(members) = serde_json::from_str::<JsonMembers<Cow<'_, str>, &RawValue>>(object).ok()?;
    let mut named = members.into_iter().filter(|(other, _)| other == name);
    named.next().filter(|_| named.next().is_none()).map(|(_, value)| value.get())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_becomes_batches_of_one_with_the_bytes_around_them() {
        for (place, body, parts) in [
            ("json:/*", r#"[{"id":1}, {"id":2.0} ]"#, vec![r#"[{"id":1}]"#, r#"[{"id":2.0}]"#]),
            ("json:/*", " [ 1 ]\n", vec![" [1]\n"]),
            ("json:/*", "[]", vec![]),
            (
                "json:/a/b~1c/*",
                r#"{"x":1,"a":{"b/c":["é",2]}}"#,
                vec![r#"{"x":1,"a":{"b/c":["é"]}}"#, r#"{"x":1,"a":{"b/c":[2]}}"#],
            ),
        ] {
            let split = BatchPlace::parse(place).unwrap().split(&Bytes::from(body), 1_000).unwrap();
            assert_eq!(split, parts, "{place} {body}");
        }
    }

    #[test]
    fn what_is_no_batch_or_too_large_is_said() {
        let events = BatchPlace::parse("json:/events/*").unwrap();
        for body in ["", "[]", "{}", r#"{"events":{}}"#, r#"{"events":[1],"events":[2]}"#, r#"{"events":[1}"#, "\u{1}"]
        {
            assert_eq!(events.split(&Bytes::from(body), 1_000), Err(BatchError::NoList), "{body}");
        }
        let all = BatchPlace::parse("json:/*").unwrap();
        let batch = |count: usize| Bytes::from(format!("[{}]", vec!["1"; count].join(",")));
        assert_eq!(all.split(&batch(ELEMENTS_MAX), 1 << 20).map(|parts| parts.len()), Ok(ELEMENTS_MAX));
        assert_eq!(all.split(&batch(ELEMENTS_MAX + 1), 1 << 20), Err(BatchError::TooLarge));
        // The rest of the body would be kept once for each element.
        assert_eq!(events.split(&Bytes::from(r#"{"a":"aaaaaaaa","events":[1,2]}"#), 50), Err(BatchError::TooLarge));
        let places = ["json:/events/0/id", "json:/events/0", "json:/events/1/id", "json:/id", "header:a"];
        let held = places.map(|place| events.holds(&Place::parse(place).unwrap()));
        assert_eq!(held, [true, true, false, false, false]);
        assert_eq!((all.list(), events.list()), (None, Some(Place::parse("json:/events").unwrap())));
        assert_eq!((all.to_string(), events.to_string()), ("json:/*".into(), "json:/events/*".into()));
        for text in ["json:/", "json:/a", "xml:/a/*", "json:/*/a/*", "header:a", "json:/*/*"] {
            assert!(BatchPlace::parse(text).is_err(), "{text}");
        }
    }
}
