//! The places that a recipe includes and leaves out, by the format that they are of.

use canonical_json::{Pointer, Selection};

use super::body_format::BodyFormat;
use crate::normal_path::RequestPath;
use crate::path_pattern::PathPattern;
use crate::place::form::FormPlace;
use crate::place::{Directive, FieldPath, Place, PlaceSelection, XmlPath};
use crate::urlencoded;

/// The places that a recipe includes and leaves out.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Selections {
    pub(super) json: Selection,
    pub(super) cbor: Selected<Pointer>,
    pub(super) form: Selected<FormPlace>,
    pub(super) protobuf: Selected<FieldPath>,
    pub(super) query: Selected<Box<str>>,
    pub(super) xml: Selected<XmlPath>,
    /// The directives of GraphQL that do not count.
    pub(super) directives: Vec<Directive>,
    /// The segment of the path that does not count.
    segment: Option<Box<str>>,
}

/// The places of one format.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Selected<T> {
    include: Vec<T>,
    exclude: Vec<T>,
}

impl<T> Default for Selected<T> {
    fn default() -> Self {
        Self { include: Vec::new(), exclude: Vec::new() }
    }
}

impl<T> Selected<T> {
    pub(super) fn is_empty(&self) -> bool {
        self.include.is_empty() && self.exclude.is_empty()
    }

    pub(super) fn selection(&self) -> PlaceSelection<'_, T> {
        PlaceSelection { include: &self.include, exclude: &self.exclude }
    }
}

impl Selections {
    pub(super) fn new(include: &[Place], exclude: &[Place]) -> Self {
        let mut selections = Self::default();
        for (places, is_include) in [(include, true), (exclude, false)] {
            for place in places {
                selections.add(place, is_include);
            }
        }
        selections
    }

    fn add(&mut self, place: &Place, is_include: bool) {
        fn list<T>(selected: &mut Selected<T>, is_include: bool) -> &mut Vec<T> {
            if is_include { &mut selected.include } else { &mut selected.exclude }
        }
        match place {
            Place::Cbor(pointer) => list(&mut self.cbor, is_include).push(pointer.clone()),
            Place::Form(name, pointer) => list(&mut self.form, is_include).push((name.clone(), pointer.clone())),
            Place::Graphql(directive) => self.directives.push(directive.clone()),
            Place::Json(pointer) if is_include => self.json.include.push(pointer.clone()),
            Place::Json(pointer) => self.json.exclude.push(pointer.clone()),
            Place::Path(name) => self.segment = Some(name.clone()),
            Place::Protobuf(path) => list(&mut self.protobuf, is_include).push(path.clone()),
            Place::Query(name) => list(&mut self.query, is_include).push(name.clone()),
            Place::Xml(path) => list(&mut self.xml, is_include).push(path.clone()),
            // Fields are named one by one.
            Place::Cookie(_) | Place::Header(..) => {}
        }
    }

    /// The format of a body whose media type says none: the one that the places are of.
    pub(super) fn only_format(&self) -> Option<BodyFormat> {
        let has_json = !self.json.include.is_empty() || !self.json.exclude.is_empty();
        let formats = [
            (has_json || !self.directives.is_empty(), BodyFormat::Json),
            (!self.cbor.is_empty(), BodyFormat::Cbor),
            (!self.form.is_empty(), BodyFormat::Form),
            (!self.protobuf.is_empty(), BodyFormat::Protobuf),
            (!self.xml.is_empty(), BodyFormat::Xml),
        ];
        let mut named = formats.into_iter().filter(|(is_named, _)| *is_named).map(|(_, format)| format);
        named.next().filter(|_| named.next().is_none())
    }

    /// The query as it counts: as sent, without the parameters that do not count.
    pub(super) fn select_query(&self, query: &str) -> Option<String> {
        if self.query.is_empty() {
            return None;
        }
        let has = |list: &[Box<str>], name: &[u8]| list.iter().any(|own| own.as_bytes() == name);
        let Selected { include, exclude } = &self.query;
        Some(urlencoded::select(query, |name| (include.is_empty() || has(include, name)) && !has(exclude, name)))
    }

    /// The path with the placeholder for the segment that does not count; `None` where the path counts as a whole.
    pub(super) fn select_path(&self, pattern: Option<&PathPattern>, path: &RequestPath<'_>) -> Option<String> {
        pattern?.without_segment(self.segment.as_deref()?, path)
    }
}
