//! XML: a value by a path of local names, and the parts by which two bodies are compared.
//!
//! The parts together are the document in a canonical form. As in Canonical XML, quotes, entities, CDATA, the order of
//! attributes and white space in tags do not count, and white space between elements does. Unlike there, a name counts
//! by its namespace and not by its prefix. All declarations count all the same: a value such as `xsi:type="p:T"`
//! depends on them. The text of a comment does not count, but its place in an element does: some programs read a text
//! only up to a comment in it.

use std::collections::{BTreeMap, HashMap};

use derive_more::Display;
use roxmltree::{Attribute, Document, Node};

use super::value::only;
use super::value::{BodyPart, PARTS_MAX, PlaceError, PlaceSelection, PlaceValue};

mod document;
#[cfg(test)]
mod tests;

/// White space (XML 1.0, section 2.3).
const BLANKS: [char; 4] = [' ', '\t', '\n', '\r'];

/// The way to an element or an attribute: `/Envelope/Header/MessageID`, `/order/@id`, `/{uri}name` where two names
/// would be mixed up.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Display)]
#[display("{text}")]
pub struct XmlPath {
    text: Box<str>,
    elements: Vec<XmlStep>,
    attribute: Option<XmlStep>,
}

impl XmlPath {
    /// Reads a path. The error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let (mut elements, mut rest) = (Vec::new(), text);
        while !rest.is_empty() {
            let Some(after) = rest.strip_prefix('/') else {
                return Err("has no path: write one like `/order/@id`, with a `/` before each name".into());
            };
            if let Some(name) = after.strip_prefix('@') {
                return match XmlStep::parse(name)? {
                    (_, "") if elements.is_empty() => {
                        Err("has an attribute without its element: write `/order/@id`".into())
                    }
                    (step, "") => Ok(Self { text: text.into(), elements, attribute: Some(step) }),
                    _ => Err("goes on after an attribute: nothing is in one".into()),
                };
            }
            let (step, after) = XmlStep::parse(after)?;
            elements.push(step);
            rest = after;
        }
        match elements.len() {
            0 => Err("lacks the names: write a path like `/order/@id`".into()),
            count if count > document::DEPTH_MAX => Err(format!("has more than {} names", document::DEPTH_MAX)),
            _ => Ok(Self { text: text.into(), elements, attribute: None }),
        }
    }

    /// Whether it is the way to this element, which is at `depth`.
    fn ends_at(&self, depth: usize) -> bool {
        self.elements.len() == depth && self.attribute.is_none()
    }

    /// Whether it is the way to this attribute of an element at `depth`.
    fn has_attribute(&self, depth: usize, attribute: &Attribute<'_, '_>) -> bool {
        let is_it = |step: &XmlStep| step.matches(attribute.namespace(), attribute.name());
        self.elements.len() == depth && self.attribute.as_ref().is_some_and(is_it)
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct XmlStep {
    /// Any, if it is `None`; none, if it is empty.
    namespace: Option<Box<str>>,
    name: Box<str>,
}

impl XmlStep {
    /// Reads `name` or `{uri}name` at the beginning of a text, up to a `/` or the end.
    fn parse(text: &str) -> Result<(Self, &str), String> {
        let (namespace, rest) = match text.strip_prefix('{') {
            None => (None, text),
            Some(inner) => {
                let (uri, rest) = inner.split_once('}').ok_or("has a `{` without a `}`: write `/{uri}name`")?;
                (Some(uri.into()), rest)
            }
        };
        let (name, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        if name.contains(':') {
            return Err("has a prefix, which each client chooses: write `{uri}name` or `name`".into());
        }
        let is_name =
            |character: char| !character.is_ascii() || character.is_ascii_alphanumeric() || "_-.".contains(character);
        if name.is_empty() {
            return Err("lacks the name of an element or an attribute".into());
        }
        let is_first = |first: char| !first.is_ascii_digit() && !"-.".contains(first);
        if !name.starts_with(is_first) || !name.chars().all(is_name) {
            return Err("has a name that XML does not allow".into());
        }
        Ok((Self { namespace, name: name.into() }, rest))
    }

    fn matches(&self, namespace: Option<&str>, name: &str) -> bool {
        *self.name == *name && self.namespace.as_deref().is_none_or(|uri| uri == namespace.unwrap_or_default())
    }

    fn matches_element(&self, node: Node<'_, '_>) -> bool {
        self.matches(node.tag_name().namespace(), node.tag_name().name())
    }
}

/// Reads the text of an element without white space around it, or an attribute.
pub fn value_at(body: &[u8], path: &XmlPath) -> PlaceValue {
    let text = document::checked_text(body).map_err(PlaceError::Unreadable)?;
    let document = document::parse(&text).map_err(PlaceError::Unreadable)?;
    let mut nodes = vec![document.root()];
    for step in &path.elements {
        let children = nodes.iter().flat_map(Node::children);
        nodes = children.filter(|child| child.is_element() && step.matches_element(*child)).collect();
    }
    if path.attribute.is_some() {
        let attributes = nodes.iter().flat_map(Node::attributes);
        let found = attributes.filter(|attribute| path.has_attribute(path.elements.len(), attribute));
        return Ok(only(found)?.map(|attribute| attribute.value().as_bytes().to_vec()));
    }
    let Some(element) = only(nodes.into_iter())? else { return Ok(None) };
    if element.children().any(|child| child.is_element()) {
        return Err(PlaceError::NotScalar);
    }
    if element.children().any(|child| !child.is_text()) {
        // Programs read a text that a comment divides in different ways.
        return Err(PlaceError::NotScalar);
    }
    Ok(Some(element.text().unwrap_or_default().trim_matches(BLANKS).into()))
}

/// The parts that count: the text of each element and the value of each attribute by the local names that lead to it,
/// those of the same names in their order; and before them, as `xml:`, all else: names, namespaces and their order.
/// `None` for a body that is not well-formed, or that programs may read in different ways: it is compared by its bytes.
pub fn parts(body: &[u8], selection: PlaceSelection<'_, XmlPath>) -> Option<Vec<BodyPart>> {
    let text = document::checked_text(body).ok()?;
    let document = document::parse(&text).ok()?;
    let writer = PartsWriter::default().write(&document, selection);
    let mut parts = vec![BodyPart { place: "xml:".into(), value: writer.skeleton }];
    parts.extend(writer.values.into_iter().map(|(path, value)| BodyPart { place: format!("xml:{path}"), value }));
    Some(parts)
}

/// A path that is longer is no part of its own: its values are in the skeleton. So the time to find a part has a bound.
const PATH_LENGTH_MAX: usize = 256;

/// Writes the skeleton of a document, in which each step begins with its letter and each text has its length before it.
/// A value is in the part of its path, in the order of the skeleton. The skeleton has the values of the paths beyond
/// the first [`PARTS_MAX`].
#[derive(Default)]
struct PartsWriter<'d> {
    skeleton: Vec<u8>,
    values: BTreeMap<String, Vec<u8>>,
    /// The local names of the open elements.
    path: String,
    /// The prefixes and URIs in the skeleton, in their order, and the number of each. So a long one is there once.
    names: Vec<&'d str>,
    numbers: HashMap<&'d str, usize>,
    /// The number of the last one: most elements have the namespace of the one before.
    last_number: usize,
    /// The last element that has namespaces in the skeleton and a parent that has none there.
    scope_base: Option<Node<'d, 'd>>,
}

/// A prefix, empty for the default namespace, and its URI.
type NamespaceDeclaration<'d> = (&'d str, &'d str);

/// The paths that lead to an element or into it.
type Paths<'p> = Vec<&'p XmlPath>;

/// The selection within an element.
struct XmlScope<'p> {
    /// The element's depth; that of the root element is 1.
    depth: usize,
    /// `None` if all of it is included.
    include: Option<Paths<'p>>,
    exclude: Paths<'p>,
    /// Whether the skeleton has the namespaces that are declared here.
    has_namespaces: bool,
}

impl<'p> XmlScope<'p> {
    /// The selection within a child. `None` if nothing in it counts.
    fn enter(&self, node: Node<'_, '_>) -> Option<Self> {
        let within = |paths: &Paths<'p>| -> Paths<'p> {
            let leads = |path: &&XmlPath| path.elements.get(self.depth).is_some_and(|step| step.matches_element(node));
            paths.iter().copied().filter(leads).collect()
        };
        let depth = self.depth + 1;
        let ends_here = |paths: &Paths<'p>| paths.iter().any(|path| path.ends_at(depth));
        let exclude = within(&self.exclude);
        let include = self.include.as_ref().map(within).filter(|paths| !ends_here(paths));
        let is_empty = include.as_ref().is_some_and(Vec::is_empty);
        (!ends_here(&exclude) && !is_empty).then_some(Self { depth, include, exclude, has_namespaces: false })
    }

    fn has_attribute(&self, attribute: &Attribute<'_, '_>) -> bool {
        let is_in = |paths: &Paths<'p>| paths.iter().any(|path| path.has_attribute(self.depth, attribute));
        self.include.as_ref().is_none_or(is_in) && !is_in(&self.exclude)
    }
}

impl<'d> PartsWriter<'d> {
    fn write(mut self, document: &'d Document<'_>, selection: PlaceSelection<'_, XmlPath>) -> Self {
        let include = (!selection.include.is_empty()).then(|| selection.include.iter().collect());
        let exclude = selection.exclude.iter().collect();
        let scope = XmlScope { depth: 0, include, exclude, has_namespaces: false };
        for child in document.root().children().filter(|child| !child.is_comment()) {
            self.write_node(child, &scope, false);
        }
        self
    }

    /// Appends an element, unless nothing in it counts. The depth of the document bounds the recursion.
    fn write_element(&mut self, node: Node<'d, 'd>, outer: &XmlScope<'_>) {
        let Some(mut scope) = outer.enter(node) else { return };
        let (skeleton_start, path_start, names_start) = (self.skeleton.len(), self.path.len(), self.names.len());
        self.path.push('/');
        self.path.push_str(node.tag_name().name());
        self.step(b'<', &[node.tag_name().name()]);
        self.write_numbered(node.tag_name().namespace().unwrap_or_default());

        let mut attributes: Vec<_> = node.attributes().filter(|attribute| scope.has_attribute(attribute)).collect();
        attributes.sort_by_key(|attribute| (attribute.namespace(), attribute.name()));
        if scope.include.is_none() || !attributes.is_empty() {
            self.write_namespaces(node, outer.has_namespaces);
            scope.has_namespaces = true;
        }
        for attribute in &attributes {
            self.step(b'@', &[attribute.name()]);
            self.write_numbered(attribute.namespace().unwrap_or_default());
            let element_end = self.path.len();
            self.path.push_str("/@");
            self.path.push_str(attribute.name());
            self.write_value(attribute.value());
            self.path.truncate(element_end);
        }

        let content_start = self.skeleton.len();
        let has_elements = node.children().any(|child| child.is_element());
        for child in node.children() {
            self.write_node(child, &scope, has_elements);
        }
        let is_way_to_nothing =
            scope.include.is_some() && attributes.is_empty() && self.skeleton.len() == content_start;
        if is_way_to_nothing {
            self.skeleton.truncate(skeleton_start);
            for name in self.names.drain(names_start..) {
                self.numbers.remove(name);
            }
        } else {
            self.skeleton.push(b'>');
        }
        self.path.truncate(path_start);
    }

    fn write_node(&mut self, node: Node<'d, 'd>, scope: &XmlScope<'_>, has_elements: bool) {
        let text = node.text().unwrap_or_default();
        if node.is_element() {
            self.write_element(node, scope);
        } else if scope.include.is_some() {
            // Only elements and attributes are included.
        } else if let Some(instruction) = node.pi() {
            self.step(b'?', &[instruction.target, instruction.value.unwrap_or_default()]);
        } else if node.is_comment() {
            self.step(b'!', &[]);
        } else if has_elements && text.trim_matches(BLANKS).is_empty() {
            self.step(b' ', &[text]);
        } else {
            self.write_value(text);
        }
    }

    /// Appends the declarations that differ from those of the parent, or of the last element before if the skeleton has
    /// none of the parent's.
    fn write_namespaces(&mut self, node: Node<'d, 'd>, parent_has: bool) {
        let base = if parent_has { node.parent() } else { self.scope_base.replace(node) };
        let (declared, outer) = different_namespaces(node, base);
        for declaration in declared.iter().filter(|declaration| outer.binary_search(declaration).is_err()) {
            self.write_declaration(*declaration);
        }
        for (prefix, _) in outer {
            if declared.binary_search_by_key(&prefix, |(prefix, _)| prefix).is_err() {
                self.write_declaration((prefix, ""));
            }
        }
    }

    fn write_declaration(&mut self, (prefix, uri): NamespaceDeclaration<'d>) {
        self.step(b'=', &[]);
        self.write_numbered(prefix);
        self.write_numbered(uri);
    }

    fn write_value(&mut self, value: &str) {
        let is_full = self.values.len() == PARTS_MAX;
        let values = match self.values.get_mut(&self.path) {
            Some(values) => values,
            None if is_full || self.path.len() > PATH_LENGTH_MAX => return self.step(b'&', &[value]),
            None => self.values.entry(self.path.clone()).or_insert_with(|| Vec::with_capacity(8 + value.len())),
        };
        write_text(values, value);
        self.skeleton.push(b'$');
    }

    /// Appends the number of a prefix or a URI, and the first time its text, too.
    fn write_numbered(&mut self, name: &'d str) {
        let next = self.names.len();
        if self.names.get(self.last_number).is_none_or(|last| !std::ptr::eq(*last, name)) {
            self.last_number = *self.numbers.entry(name).or_insert(next);
        }
        self.skeleton.extend_from_slice(&(self.last_number as u64).to_be_bytes());
        if self.last_number == next {
            self.names.push(name);
            write_text(&mut self.skeleton, name);
        }
    }

    fn step(&mut self, letter: u8, texts: &[&str]) {
        self.skeleton.push(letter);
        for text in texts {
            write_text(&mut self.skeleton, text);
        }
    }
}

fn write_text(bytes: &mut Vec<u8>, text: &str) {
    bytes.extend_from_slice(&(text.len() as u64).to_be_bytes());
    bytes.extend_from_slice(text.as_bytes());
}

/// The namespaces in scope at each of two elements, but for some of those that both have, in the order of prefixes.
fn different_namespaces<'d>(
    one: Node<'d, 'd>,
    other: Option<Node<'d, 'd>>,
) -> (Vec<NamespaceDeclaration<'d>>, Vec<NamespaceDeclaration<'d>>) {
    let scope = |node: Option<Node<'d, 'd>>| node.into_iter().flat_map(|node| node.namespaces());
    let count = |node: Option<Node<'d, 'd>>| node.map_or(0, |node| node.namespaces().len());
    let (one_count, other_count) = (count(Some(one)), count(other));
    let shorter = one_count.min(other_count);
    // An element's own declarations come first. Most elements have none: without this, many of them within many
    // declarations take long.
    let ends = scope(Some(one)).skip(one_count - shorter).zip(scope(other).skip(other_count - shorter));
    let shared = ends.fold(0, |shared, (one, other)| if std::ptr::eq(one, other) { shared + 1 } else { 0 });
    let rest = |node, count: usize| {
        let declared = scope(node).take(count - shared).filter(|namespace| !namespace.uri().is_empty());
        let mut declared: Vec<_> =
            declared.map(|namespace| (namespace.name().unwrap_or_default(), namespace.uri())).collect();
        declared.sort_unstable();
        declared
    };
    (rest(Some(one), one_count), rest(other, other_count))
}
