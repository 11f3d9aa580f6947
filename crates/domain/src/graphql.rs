//! GraphQL over HTTP: the parameters of a request, and whether its operation only reads.

use std::fmt;
use std::marker::PhantomData;

use apollo_parser::Parser;
use apollo_parser::cst::{Definition, FragmentDefinition, OperationDefinition};
use serde::Deserialize;
use serde::de::{DeserializeSeed, Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

/// The deepest nesting of a document that is read; a deeper one counts as one that may write.
const DEPTH_MAX: usize = 200;
/// The longest document that is read, in tokens; in a batch all documents together.
pub(crate) const TOKENS_MAX: usize = 20_000;

/// The parameters of a request, as the body has them.
#[derive(Debug, Default, PartialEq)]
pub struct GraphqlParameters<Extensions = Value> {
    /// The document.
    pub query: Option<String>,
    pub operation_name: Option<String>,
    /// Additions of clients and servers.
    pub extensions: Option<Extensions>,
    /// Whether there are other members. Some servers find a stored document by one of them, and leave the document in
    /// the body alone.
    pub has_others: bool,
}

/// Whether a request's JSON body, or each element of a batch, names an operation that only reads. A body that services
/// may read in different ways does not count as one.
pub fn only_reads(body: &[u8]) -> bool {
    let first = body.iter().find(|byte| !matches!(byte, b' ' | b'\t' | b'\n' | b'\r'));
    match first {
        Some(b'[') => {
            let (mut tokens_left, mut is_empty) = (TOKENS_MAX, true);
            let only_reads = |request: &GraphqlParameters<IgnoredAny>| {
                is_empty = false;
                request.only_reads(&mut tokens_left)
            };
            all_in_batch(body, only_reads) && !is_empty
        }
        _ => serde_json::from_slice::<GraphqlParameters<IgnoredAny>>(body)
            .is_ok_and(|request| request.only_reads(&mut { TOKENS_MAX })),
    }
}

/// Whether the operation of this name only reads; without a name, whether all do.
pub fn operation_only_reads(document: &str, name: Option<&str>) -> bool {
    operation_only_reads_within(document, name, &mut { TOKENS_MAX })
}

/// Takes the tokens of the document from `tokens_left`, and reads no more than these.
fn operation_only_reads_within(document: &str, name: Option<&str>, tokens_left: &mut usize) -> bool {
    let Some(mut document) = ExecutableDocument::read(document, tokens_left) else { return false };
    document.retain_operations(name);
    let operations = document.operations;
    // Of two with one name, nobody can tell which one is executed.
    let is_clear = operations.len() == 1 || name.is_none_or(str::is_empty);
    is_clear && !operations.is_empty() && operations.iter().all(is_read)
}

/// The operations and the fragments of a document.
pub(crate) struct ExecutableDocument {
    pub operations: Vec<OperationDefinition>,
    pub fragments: Vec<FragmentDefinition>,
}

impl ExecutableDocument {
    /// Takes the tokens of the document from `tokens_left`, and reads no more than these. `None` for a document with
    /// errors, and for one with other definitions: a server refuses it whole.
    pub(crate) fn read(document: &str, tokens_left: &mut usize) -> Option<Self> {
        let tree = Parser::new(document).recursion_limit(DEPTH_MAX).token_limit(*tokens_left).parse();
        *tokens_left = tokens_left.saturating_sub(tree.token_limit().high);
        if tree.errors().len() > 0 {
            return None;
        }
        let (mut operations, mut fragments) = (Vec::new(), Vec::new());
        for definition in tree.document().definitions() {
            match definition {
                Definition::FragmentDefinition(fragment) => fragments.push(fragment),
                Definition::OperationDefinition(operation) => operations.push(operation),
                _ => return None,
            }
        }
        Some(Self { operations, fragments })
    }

    /// Leaves the operations of this name; all, without a name.
    pub(crate) fn retain_operations(&mut self, name: Option<&str>) {
        if let Some(name) = name.filter(|name| !name.is_empty()) {
            self.operations.retain(|operation| operation.name().is_some_and(|own| own.text() == name));
        }
    }
}

/// A subscription reads too. `{ … }` is short for a query.
fn is_read(operation: &OperationDefinition) -> bool {
    operation.operation_type().is_none_or(|kind| kind.query_token().is_some() || kind.subscription_token().is_some())
}

impl<Extensions> GraphqlParameters<Extensions> {
    fn only_reads(&self, tokens_left: &mut usize) -> bool {
        if self.has_others {
            return false;
        }
        let name = self.operation_name.as_deref();
        self.query.as_deref().is_some_and(|document| operation_only_reads_within(document, name, tokens_left))
    }
}

/// Whether a body is an array of requests, each of which meets a condition. Each is judged when it is read, and
/// dropped: a batch has up to a third as many elements as bytes.
pub(crate) fn all_in_batch(body: &[u8], condition: impl FnMut(&GraphqlParameters<IgnoredAny>) -> bool) -> bool {
    let mut deserializer = serde_json::Deserializer::from_slice(body);
    BatchVisitor(condition).deserialize(&mut deserializer).is_ok() && deserializer.end().is_ok()
}

/// Reads an array. An element that does not meet the condition is an error.
struct BatchVisitor<F>(F);

impl<'de, F: FnMut(&GraphqlParameters<IgnoredAny>) -> bool> DeserializeSeed<'de> for BatchVisitor<F> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de, F: FnMut(&GraphqlParameters<IgnoredAny>) -> bool> Visitor<'de> for BatchVisitor<F> {
    type Value = ();

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a batch of GraphQL requests")
    }

    fn visit_seq<S: SeqAccess<'de>>(mut self, mut requests: S) -> Result<(), S::Error> {
        while let Some(request) = requests.next_element()? {
            if !self.0(&request) {
                return Err(S::Error::custom("a request does not meet the condition"));
            }
        }
        Ok(())
    }
}

/// Reads an object. A parameter that is there twice, or under a name that some servers take for it, is an error.
impl<'de, Extensions: Default + Deserialize<'de>> Deserialize<'de> for GraphqlParameters<Extensions> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct ParametersVisitor<Extensions>(PhantomData<Extensions>);
        impl<'de, Extensions: Default + Deserialize<'de>> Visitor<'de> for ParametersVisitor<Extensions> {
            type Value = GraphqlParameters<Extensions>;

            fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
                formatter.write_str("the parameters of a GraphQL request")
            }

            fn visit_map<M: MapAccess<'de>>(self, mut members: M) -> Result<Self::Value, M::Error> {
                const NAMES: [&str; 4] = ["query", "operationName", "variables", "extensions"];
                let mut parameters = GraphqlParameters::<Extensions>::default();
                let mut seen = Vec::new();
                while let Some(name) = members.next_key::<String>()? {
                    let Some(known) = NAMES.into_iter().find(|known| known.eq_ignore_ascii_case(&name)) else {
                        members.next_value::<IgnoredAny>()?;
                        parameters.has_others = true;
                        continue;
                    };
                    if name != known || seen.contains(&known) {
                        return Err(M::Error::custom("a parameter is ambiguous"));
                    }
                    seen.push(known);
                    match known {
                        "query" => parameters.query = members.next_value()?,
                        "operationName" => parameters.operation_name = members.next_value()?,
                        "variables" => drop(members.next_value::<IgnoredAny>()?),
                        _ => parameters.extensions = members.next_value()?,
                    }
                }
                Ok(parameters)
            }
        }
        deserializer.deserialize_map(ParametersVisitor(PhantomData))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_operation_that_is_surely_a_query_or_a_subscription_only_reads() {
        let deep = format!("{{{}}}", "a{".repeat(5_000) + &"}".repeat(5_000));
        let long = format!("{{{}}}", "a ".repeat(TOKENS_MAX));
        for (document, name, reads) in [
            ("{ a }", None, true),
            ("query { a }", None, true),
            ("query Q($a: Int = 1) @d { a(b: $a) { ...F } } fragment F on T { c }", Some("Q"), true),
            ("subscription S { a }", None, true),
            ("mutation { pay }", None, false),
            ("mutation M { pay }", Some("M"), false),
            ("# query\n mutation { pay }", None, false),
            ("\u{feff}query { a }", None, true),
            ("query A { a } mutation B { b }", Some("A"), true),
            ("query A { a } mutation B { b }", Some("B"), false),
            ("query A { a } mutation B { b }", None, false),
            ("query A { a } mutation B { b }", Some(""), false),
            ("query A { a } query B { b }", None, true),
            ("query A { a } mutation A { b }", Some("A"), false),
            ("query A { a }", Some("B"), false),
            ("query { a(b: \"\"\" } mutation { pay } \"\"\") }", None, true),
            ("query { a(b: \"\\\" } mutation { pay }\") }", None, true),
            ("query { a } type T { b: Int }", None, false),
            ("query { a", None, false),
            ("query { a } }", None, false),
            ("query { }", None, false),
            ("Query { a }", None, false),
            ("fragment F on T { c }", None, false),
            ("", None, false),
            (&deep, None, false),
            (&long, None, false),
        ] {
            assert_eq!(operation_only_reads(document, name), reads, "{document:.80} {name:?}");
        }
    }

    /// A batch of so many documents, each of a few tokens.
    fn batch_of(documents: usize) -> String {
        format!("[{}]", vec![r#"{"query":"{ a }"}"#; documents].join(","))
    }

    #[test]
    fn a_body_counts_only_if_every_server_reads_the_same_operation_in_it() {
        for (body, reads) in [
            (r#"{"query":"{ a }"}"#, true),
            (r#"{"query":"{ a }","operationName":null,"variables":{"query":"mutation"},"extensions":{}}"#, true),
            (r#"{"query":"query A { a } mutation B { b }","operationName":"A"}"#, true),
            (r#"{"query":"query A { a } mutation B { b }","operationName":"B"}"#, false),
            (r#"{"query":"{ a }","query":"mutation { b }"}"#, false),
            (r#"{"query":"{ a }","Query":"mutation { b }"}"#, false),
            (r#"{"query":"query A { a } mutation B { b }","operationName":"A","operationname":"B"}"#, false),
            (r#"{"query":"{ a }","id":"pay"}"#, false),
            (r#"{"query":"{ a }","variables":{},"Variables":{}}"#, false),
            (r#"[{"query":"{ a }"},{"query":"{ b }","documentId":"pay"}]"#, false),
            (r#"{"query":1}"#, false),
            (r#"{"query":null}"#, false),
            (r#"{"extensions":{"persistedQuery":{"version":1,"sha256Hash":"ab"}}}"#, false),
            (r#"{"documentId":"ab"}"#, false),
            (r#"[{"query":"{ a }"},{"query":"{ b }"}]"#, true),
            (r#"[{"query":"{ a }"},{"query":"mutation { b }"}]"#, false),
            (r#"[{"query":"{ a }","query":"mutation { b }"}]"#, false),
            (r#"[["mutation { b }","A",null]]"#, false),
            (" \t\r\n[ {\"query\":\"{ a }\"} ] ", true),
            (" \t\r\n{\"query\":\"{ a }\"} ", true),
            (r#"[{"query":"{ a }"},]"#, false),
            (r#"[{"query":"{ a }"}]]"#, false),
            (r#"[{"query":"{ a }"},{"query":"{ b }""#, false),
            (r#"[{"query":"{ a }"},null]"#, false),
            (r#"[{"query":"{ a }"},{}]"#, false),
            (&batch_of(100), true),
            (&batch_of(TOKENS_MAX), false),
            ("[]", false),
            (r#""{ a }""#, false),
            ("", false),
        ] {
            assert_eq!(only_reads(body.as_bytes()), reads, "{body:.80}");
        }
    }
}
