//! GraphQL: the argument of a directive in the document that is executed.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Range;

use apollo_parser::cst::{self, Argument, CstNode, FragmentSpread, Value, Variable, VariableDefinition};
use apollo_parser::{SyntaxKind, SyntaxNode};
use canonical_json::{Pointer, ReferencedValue};
use serde::de::IgnoredAny;

use super::value::json_value;
use super::value::{PlaceError, PlaceValue};
use crate::graphql::{ExecutableDocument, GraphqlParameters, TOKENS_MAX, all_in_batch};

/// The most variables of a request that one directive reads: a client has one key, and each is looked up in the body.
const VARIABLES_MAX: usize = 8;

/// A directive and one of its arguments: `@idempotent(key)`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
#[display("@{name}({argument})")]
pub struct Directive {
    name: Box<str>,
    argument: Box<str>,
}

impl Directive {
    /// Reads `@NAME(ARGUMENT)`. The error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, String> {
        let inner = text.strip_prefix('@').and_then(|text| text.strip_suffix(')'));
        let Some((name, argument)) = inner.and_then(|inner| inner.split_once('(')) else {
            return Err("is no argument of a directive: write one like `@idempotent(key)`".into());
        };
        match [name, argument].into_iter().all(is_graphql_name) {
            true => Ok(Self { name: name.into(), argument: argument.into() }),
            false => Err("has a name that GraphQL does not allow: write one like `@idempotent(key)`".into()),
        }
    }

    /// Whether a document may have the directive. A name has no escapes.
    fn may_be_in(&self, document: &str) -> bool {
        document.contains(&*self.name)
    }

    /// The directive's arguments of this name in a definition.
    fn arguments_in(&self, definition: &SyntaxNode) -> impl Iterator<Item = Argument> {
        let directives = definition.descendants().filter_map(cst::Directive::cast);
        let named = directives.filter(|directive| is_name(directive.name(), &self.name));
        let arguments = named.filter_map(|directive| directive.arguments()).flat_map(|list| list.arguments());
        arguments.filter(|argument| is_name(argument.name(), &self.argument))
    }
}

fn is_graphql_name(text: &str) -> bool {
    let is_first = |first: char| first.is_ascii_alphabetic() || first == '_';
    text.starts_with(is_first) && text.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn is_name(name: Option<cst::Name>, text: &str) -> bool {
    name.is_some_and(|name| name.text() == text)
}

/// A document without the values of directives that do not count.
#[derive(Debug, PartialEq, Eq)]
pub struct CutDocument {
    /// The document, in which each literal of such an argument is an empty text, or a 0.
    pub document: String,
    /// The variables that hold such an argument and nothing else, as pointers into the request.
    pub variables: Vec<Pointer>,
}

/// Reads the argument in a GraphQL request (a JSON body): a literal or a variable.
pub fn value_at(body: &[u8], directive: &Directive) -> PlaceValue {
    match body.iter().find(|byte| !byte.is_ascii_whitespace()) {
        Some(b'[') => {
            let mut tokens_left = TOKENS_MAX;
            let is_without = |request: &GraphqlParameters<IgnoredAny>| {
                request.query.as_deref().is_some_and(|document| is_without(document, directive, &mut tokens_left))
            };
            if all_in_batch(body, is_without) { Ok(None) } else { Err(BATCH) }
        }
        Some(b'{') => {
            let request: GraphqlParameters<IgnoredAny> = serde_json::from_slice(body).map_err(|_| AMBIGUOUS)?;
            // A service may know the document by its hash alone, and execute it.
            let document = request.query.ok_or(NO_DOCUMENT)?;
            match Some(document).filter(|document| directive.may_be_in(document)) {
                Some(document) => ExecutedOperation::find(&document, request.operation_name.as_deref())
                    .ok_or(NO_OPERATION)?
                    .value_of(directive, body),
                None => Ok(None),
            }
        }
        _ => Err(NO_DOCUMENT),
    }
}

const NO_DOCUMENT: PlaceError = PlaceError::Unreadable(
    "The key is in the GraphQL document, and the body is no JSON with a document: send the request with its `query`.",
);

/// Whether no operation and no fragment of a document has the directive.
fn is_without(document: &str, directive: &Directive, tokens_left: &mut usize) -> bool {
    if !directive.may_be_in(document) {
        return true;
    }
    ExecutableDocument::read(document, tokens_left).is_some_and(|document| {
        let operations = document.operations.iter().map(CstNode::syntax);
        let mut definitions = operations.chain(document.fragments.iter().map(CstNode::syntax));
        definitions.all(|definition| directive.arguments_in(definition).next().is_none())
    })
}

/// Cuts the arguments out of a document. `None` for a document that cannot be read, or that has none of them.
///
/// The cut document has the tokens of the document, so that two documents with one cut document differ in these
/// arguments alone.
pub fn cut(document: &str, operation: Option<&str>, directives: &[Directive]) -> Option<CutDocument> {
    if !directives.iter().any(|directive| directive.may_be_in(document)) {
        return None;
    }
    let executed = ExecutedOperation::find(document, operation)?;
    let (mut literals, mut names, mut uses) = (Vec::new(), BTreeSet::new(), HashSet::new());
    for argument in directives.iter().flat_map(|directive| executed.arguments(directive)) {
        match argument.value()? {
            Value::Variable(variable) => {
                names.insert(variable_name(&variable)?);
                uses.insert(variable.syntax().text_range());
            }
            literal => literals.extend(empty_literal(&literal)),
        }
    }
    // A variable that is used elsewhere too counts there.
    for variable in executed.nodes().filter_map(Variable::cast) {
        let is_definition = |node: SyntaxNode| node.kind() == SyntaxKind::VARIABLE_DEFINITION;
        let is_use = !variable.syntax().parent().is_some_and(is_definition);
        if is_use && !uses.contains(&variable.syntax().text_range()) {
            names.remove(&variable_name(&variable)?);
        }
    }
    let definitions = executed.variable_definitions().filter(|definition| {
        definition.variable().and_then(|variable| variable_name(&variable)).is_some_and(|name| names.contains(&name))
    });
    let defaults = definitions.filter_map(|definition| definition.default_value()?.value());
    literals.extend(defaults.filter_map(|default| empty_literal(&default)));
    if literals.is_empty() && names.is_empty() {
        return None;
    }
    let variables = names.iter().map(|name| variable_pointer(name)).collect();
    Some(CutDocument { document: replace(document, literals)?, variables })
}

/// Replaces each range of a text.
fn replace(text: &str, mut replacements: Vec<(Range<usize>, &str)>) -> Option<String> {
    replacements.sort_unstable_by_key(|(range, _)| range.start);
    replacements.dedup();
    let (mut replaced, mut at) = (String::with_capacity(text.len()), 0);
    for (range, replacement) in replacements {
        replaced.push_str(text.get(at..range.start)?);
        replaced.push_str(replacement);
        at = range.end;
    }
    replaced.push_str(text.get(at..)?);
    Some(replaced)
}

/// The place of a text or an integer in the document, and the empty one that has the same token.
fn empty_literal(value: &Value) -> Option<(Range<usize>, &'static str)> {
    let token = value.syntax().first_token()?;
    let empty = match value {
        Value::StringValue(_) if token.text().starts_with("\"\"\"") => "\"\"\"\"\"\"",
        Value::StringValue(_) => "\"\"",
        Value::IntValue(_) => "0",
        _ => return None,
    };
    let range = token.text_range();
    Some((range.start().into()..range.end().into(), empty))
}

/// The operation of a document that is executed, and the fragments that it spreads.
struct ExecutedOperation {
    operation: cst::OperationDefinition,
    fragments: Vec<SyntaxNode>,
}

impl ExecutedOperation {
    /// `None` for a document that servers refuse, or of which they may execute different operations.
    fn find(document: &str, name: Option<&str>) -> Option<Self> {
        let mut document = ExecutableDocument::read(document, &mut { TOKENS_MAX })?;
        document.retain_operations(name);
        let [operation] = <[_; 1]>::try_from(document.operations).ok()?;
        let mut unread = HashMap::new();
        for fragment in document.fragments {
            let name = fragment.fragment_name()?.name()?.text().to_string();
            if unread.insert(name, fragment.syntax().clone()).is_some() {
                return None;
            }
        }
        let (mut fragments, mut definition) = (Vec::new(), operation.syntax().clone());
        let mut next = 0;
        loop {
            for spread in definition.descendants().filter_map(FragmentSpread::cast) {
                let name = spread.fragment_name()?.name()?;
                // Each is taken once: fragments that spread each other end.
                fragments.extend(unread.remove(name.text().as_str()));
            }
            let Some(fragment) = fragments.get(next) else { break };
            definition = fragment.clone();
            next += 1;
        }
        let found = Self { operation, fragments };
        // The parser takes an argument without a value, and servers refuse it.
        let is_whole = found.nodes().filter_map(Argument::cast).all(|argument| argument.value().is_some());
        is_whole.then_some(found)
    }

    fn definitions(&self) -> impl Iterator<Item = &SyntaxNode> {
        std::iter::once(self.operation.syntax()).chain(&self.fragments)
    }

    fn nodes(&self) -> impl Iterator<Item = SyntaxNode> {
        self.definitions().flat_map(SyntaxNode::descendants)
    }

    fn arguments(&self, directive: &Directive) -> impl Iterator<Item = Argument> {
        self.definitions().flat_map(|definition| directive.arguments_in(definition))
    }

    fn variable_definitions(&self) -> impl Iterator<Item = VariableDefinition> {
        self.operation.variable_definitions().into_iter().flat_map(|list| list.variable_definitions())
    }

    /// The value that all arguments have, of which a variable without a value is none.
    fn value_of(&self, directive: &Directive, body: &[u8]) -> PlaceValue {
        let (mut found, mut names) = (None, BTreeSet::new());
        for argument in self.arguments(directive) {
            let value = match argument.value().ok_or(NO_OPERATION)? {
                Value::Variable(variable) => {
                    let name = variable_name(&variable).ok_or(NO_OPERATION)?;
                    if names.contains(&name) {
                        continue;
                    }
                    let value = self.value_of_variable(&name, body)?;
                    names.insert(name);
                    value
                }
                literal => Some(literal_value(&literal)?),
            };
            if names.len() > VARIABLES_MAX || found.is_some() && value.is_some() && found != value {
                return Err(PlaceError::Several);
            }
            found = found.or(value);
        }
        Ok(found)
    }

    /// The value in the request, or else the default in the operation.
    fn value_of_variable(&self, name: &str, body: &[u8]) -> PlaceValue {
        // Some servers read variables from a text.
        match canonical_json::value_at(body, &pointer("/variables")) {
            Ok(None | Some(ReferencedValue::Null | ReferencedValue::Object(_))) => {}
            _ => return Err(AMBIGUOUS),
        }
        if let Some(value) = json_value(body, &variable_pointer(name), AMBIGUOUS)? {
            return Ok(Some(value));
        }
        let of_name =
            |definition: &VariableDefinition| is_name(definition.variable().and_then(|variable| variable.name()), name);
        let definition = super::value::only(self.variable_definitions().filter(of_name))?;
        let default = definition.and_then(|definition| definition.default_value()?.value());
        default.map(|default| literal_value(&default)).transpose()
    }
}

/// The text of a string, or the digits of an integer.
fn literal_value(value: &Value) -> Result<Vec<u8>, PlaceError> {
    match value {
        Value::StringValue(text) => Ok(String::from(text).into_bytes()),
        Value::IntValue(number) => {
            let token = number.syntax().first_token().ok_or(NO_OPERATION)?;
            Ok(token.text().as_bytes().to_vec())
        }
        _ => Err(PlaceError::NotScalar),
    }
}

fn variable_name(variable: &Variable) -> Option<String> {
    Some(variable.name()?.text().to_string())
}

fn variable_pointer(name: &str) -> Pointer {
    pointer(&format!("/variables/{name}"))
}

fn pointer(text: &str) -> Pointer {
    Pointer::parse(text).expect("it starts with a slash, and a name has no tilde")
}

const AMBIGUOUS: PlaceError = PlaceError::Unreadable(
    "The body is not a GraphQL request that all programs read alike: JSON in UTF-8, each parameter once, the variables \
     an object.",
);

const BATCH: PlaceError = PlaceError::Unreadable(
    "The body is a batch of GraphQL requests, of which one may have the directive with the key: it counts in a single \
     request.",
);

const NO_OPERATION: PlaceError = PlaceError::Unreadable(
    "The GraphQL document cannot be read, or it is not clear which of its operations is executed: name one with \
     `operationName`.",
);

#[cfg(test)]
mod tests;
