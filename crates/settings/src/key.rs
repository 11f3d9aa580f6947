//! The place and the syntax of a request's key.

use canonical_json::Pointer;
use http::HeaderName;

use oncegate_domain::key::{KeyLimits, KeySyntax};

/// The place and the syntax of a request's key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRule {
    /// The places to look; the first that is present counts. At least one.
    pub sources: Vec<KeySource>,
    /// Refuse a request without a key, rather than pass it unguarded.
    pub required: bool,
    /// The syntax of a key.
    pub syntax: KeySyntax,
    /// The shortest and the longest key.
    pub limits: KeyLimits,
}

/// A place where a key may be.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
pub enum KeySource {
    /// A value of a JSON body.
    #[display("{_0} of a JSON body")]
    Body(Pointer),
    /// A field of a form body.
    #[display("field {_0} of a form")]
    Form(Box<str>),
    /// A request field.
    #[display("{_0}")]
    Header(HeaderName),
    /// A value of the JSON document whose base64 is a request field.
    #[display("{_1} of the JSON in {_0}")]
    Payload(HeaderName, Pointer),
    /// A query parameter.
    #[display("query parameter {_0}")]
    Query(Box<str>),
}

impl KeyRule {
    /// The request fields that may carry the key, the first that counts before the others.
    pub fn headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.sources.iter().filter_map(|source| match source {
            KeySource::Header(name) => Some(name),
            KeySource::Body(_) | KeySource::Form(_) | KeySource::Payload(..) | KeySource::Query(_) => None,
        })
    }

    /// The request fields in whose documents the key may be.
    pub fn payload_headers(&self) -> impl Iterator<Item = &HeaderName> {
        self.sources.iter().filter_map(|source| match source {
            KeySource::Payload(name, _) => Some(name),
            KeySource::Body(_) | KeySource::Form(_) | KeySource::Header(_) | KeySource::Query(_) => None,
        })
    }

    /// The places in a JSON body where the key may be.
    pub fn body_places(&self) -> impl Iterator<Item = &Pointer> {
        self.sources.iter().filter_map(|source| match source {
            KeySource::Body(pointer) => Some(pointer),
            KeySource::Form(_) | KeySource::Header(_) | KeySource::Payload(..) | KeySource::Query(_) => None,
        })
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
