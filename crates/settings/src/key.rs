//! The places and the syntax of a request's key.

use canonical_json::Pointer;
use http::HeaderName;

use oncegate_domain::key::{KeyLimits, KeySyntax};
use oncegate_domain::place::Place;

/// The places and the syntax of a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The places to look; the first that is present counts. At least one.
    pub from: Vec<KeyPlace>,
    /// The key is a secret: only its keyed hash is kept.
    pub hash: bool,
    /// Refuse a request without a key, rather than pass it unguarded.
    pub required: bool,
    /// The syntax of a key.
    pub syntax: KeySyntax,
    /// The shortest and the longest key.
    pub limits: KeyLimits,
}

/// A place of a key, or several whose values are one key together. At least one. Displayed as it is written.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", parts.iter().map(Place::to_string).collect::<Vec<_>>().join("+"))]
pub struct KeyPlace {
    /// The places whose values are the key: all of them must be there.
    pub parts: Vec<Place>,
}

impl KeyPlace {
    /// The field whose value is the whole key, if it is in one.
    pub fn key_field(&self) -> Option<&HeaderName> {
        match &*self.parts {
            [Place::Header(name, None)] => Some(name),
            _ => None,
        }
    }

    /// Whether a part of it is in the body.
    pub fn is_in_body(&self) -> bool {
        self.parts.iter().any(Place::is_in_body)
    }
}

impl KeyRule {
    /// The fields whose value is the key, the first that counts before the others.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.from.iter().filter_map(KeyPlace::key_field)
    }

    /// All places of keys and of their parts.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.from.iter().flat_map(|place| &place.parts)
    }

    /// The places that never count in a comparison. A part of a composite key is none where another place may have
    /// the key instead: the part is there then, and is no key.
    pub fn own_places(&self) -> impl Iterator<Item = &Place> {
        let is_only = self.from.len() == 1;
        self.from.iter().filter(move |place| is_only || place.parts.len() == 1).flat_map(|place| &place.parts)
    }

    /// The fields that any part of a key may be in.
    pub fn fields(&self) -> impl Iterator<Item = &HeaderName> {
        self.places().filter_map(Place::field)
    }

    /// The places in a JSON body of each key that is in one, and whose other parts are there.
    pub fn json_places(&self, is_there: impl Fn(&Place) -> bool) -> impl Iterator<Item = Vec<&Pointer>> {
        self.from.iter().filter_map(move |place| {
            let json = place.parts.iter().filter_map(|part| match part {
                Place::Json(pointer) => Some(pointer),
                _ => None,
            });
            let pointers: Vec<_> = json.collect();
            let mut others = place.parts.iter().filter(|part| !matches!(part, Place::Json(_)));
            (!pointers.is_empty() && others.all(&is_there)).then_some(pointers)
        })
    }

    /// Whether a key may be in the body.
    pub fn may_be_in_body(&self) -> bool {
        self.places().any(Place::is_in_body)
    }
}

/// The key as the service sees it.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum ForwardKey {
    /// The key with this step appended, as a key of its own.
    #[display("KEY:{_0}")]
    Derive(Box<str>),
    /// No key: for services whose own client library re-sends requests that have one.
    #[display("nothing")]
    None,
    /// The key as the client sent it.
    #[display("it came")]
    Same,
}
