//! Places: where in a request a value is. A place is a text `KIND:NAME`, the same for keys, scopes, fingerprints and
//! messages.
//!
//! `reader` reads a place of a request. Below it, each format that is not the project's own subject has a file:
//! [`form`], [`multipart`], [`cbor`], [`xml`], [`protobuf`] and [`graphql`]. Each of them reads one value, and makes
//! the [`BodyPart`]s by which a body of its format is compared.

use canonical_json::Pointer;
use http::HeaderName;

pub use graphql::Directive;
pub use protobuf::FieldPath;
pub use reader::{RequestPlaces, read_body_place};
pub use value::{BodyPart, PlaceError, PlaceSelection, PlaceValue};
pub use xml::XmlPath;

pub mod cbor;
pub mod form;
mod form_fields;
pub mod graphql;
pub mod multipart;
pub mod protobuf;
mod reader;
mod value;
pub mod xml;

/// Where in a request a value is. It is written as `KIND:NAME`, and displayed as it is written.
#[derive(Clone, Debug, PartialEq, Eq, Hash, derive_more::Display)]
pub enum Place {
    /// A value of a CBOR body (RFC 8949).
    #[display("cbor:{_0}")]
    Cbor(Pointer),
    #[display("cookie:{_0}")]
    Cookie(Box<str>),
    /// A field of a form, urlencoded or multipart; with a pointer, a value of the JSON in it.
    #[display("form:{_0}{}", fragment(_1.as_ref()))]
    Form(Box<str>, Option<Pointer>),
    /// An argument of a directive in the GraphQL document that is executed.
    #[display("graphql:{_0}")]
    Graphql(Directive),
    /// A field; with a pointer, a value of the JSON whose base64 is in it.
    #[display("header:{_0}{}", fragment(_1.as_ref()))]
    Header(HeaderName, Option<Pointer>),
    /// A value of a JSON body. `*` in the pointer is any member or element.
    #[display("json:{_0}")]
    Json(Pointer),
    /// The segment `{NAME}` of the route's path, decoded.
    #[display("path:{_0}")]
    Path(Box<str>),
    /// A field of a message of protobuf, of gRPC or Connect.
    #[display("protobuf:{_0}")]
    Protobuf(FieldPath),
    /// A parameter of the query.
    #[display("query:{_0}")]
    Query(Box<str>),
    /// An element or an attribute of an XML body.
    #[display("xml:{_0}")]
    Xml(XmlPath),
}

fn fragment(pointer: Option<&Pointer>) -> String {
    pointer.map_or_else(String::new, |pointer| format!("#{pointer}"))
}

impl Place {
    /// The kinds, as a message names them.
    pub const KINDS: &str = "`header:NAME`, `query:NAME`, `path:NAME`, `cookie:NAME`, `form:NAME`, `json:/POINTER`, \
                             `cbor:/POINTER`, `xml:/PATH`, `protobuf:NUMBER` or `graphql:@DIRECTIVE(ARGUMENT)`";

    /// The kinds by their words.
    pub const WORDS: [&str; 10] =
        ["cbor", "cookie", "form", "graphql", "header", "json", "path", "protobuf", "query", "xml"];

    /// Whether a text begins with the kind of a place and a colon.
    pub fn has_kind(text: &str) -> bool {
        text.split_once(':').is_some_and(|(kind, _)| Self::WORDS.contains(&kind))
    }

    /// Reads a place. The error is the problem, beginning with a verb. It shows nothing of the text, which a caller may
    /// have filled in with a secret.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some((kind, name)) = text.split_once(':') else {
            return Err(format!("is no place of a request: write {}", Self::KINDS));
        };
        if name.is_empty() {
            return Err(format!("lacks the name: write {}", Self::KINDS));
        }
        Ok(match kind {
            "cbor" => Self::Cbor(parse_pointer(name)?),
            // A cookie's name is a token (RFC 6265, section 4.1.1), as a field's name is.
            "cookie" if name.parse::<HeaderName>().is_ok() => Self::Cookie(name.into()),
            "cookie" => return Err("names a cookie that HTTP does not allow".into()),
            "form" => {
                let (name, pointer) = split_fragment(name)?;
                Self::Form(name.into(), pointer)
            }
            "graphql" => Self::Graphql(Directive::parse(name)?),
            "header" => {
                let (name, pointer) = split_fragment(name)?;
                let name = name.parse().map_err(|_| "names a field that HTTP does not allow")?;
                Self::Header(name, pointer)
            }
            "json" => Self::Json(parse_pointer(name)?),
            "path" => Self::Path(name.into()),
            "protobuf" => Self::Protobuf(FieldPath::parse(name)?),
            "query" => Self::Query(name.into()),
            "xml" => Self::Xml(XmlPath::parse(name)?),
            _ => return Err(format!("has no kind of place that is known here: write {}", Self::KINDS)),
        })
    }

    /// Whether the value is in the body.
    pub fn is_in_body(&self) -> bool {
        match self {
            Self::Cbor(_) | Self::Form(..) | Self::Graphql(_) | Self::Json(_) | Self::Protobuf(_) | Self::Xml(_) => {
                true
            }
            Self::Cookie(_) | Self::Header(..) | Self::Path(_) | Self::Query(_) => false,
        }
    }

    /// Whether each byte of the body takes about ten times as long to read as one of JSON.
    pub fn is_slow(&self) -> bool {
        matches!(self, Self::Graphql(_) | Self::Xml(_))
    }

    /// Whether it may stand for several values.
    pub fn is_pattern(&self) -> bool {
        match self {
            Self::Cbor(pointer) | Self::Json(pointer) => pointer.is_pattern(),
            Self::Form(_, pointer) | Self::Header(_, pointer) => pointer.as_ref().is_some_and(Pointer::is_pattern),
            Self::Cookie(_) | Self::Graphql(_) | Self::Path(_) | Self::Protobuf(_) | Self::Query(_) | Self::Xml(_) => {
                false
            }
        }
    }

    /// The field that the value is in, where that is one.
    pub fn field(&self) -> Option<&HeaderName> {
        match self {
            Self::Header(name, _) => Some(name),
            Self::Cookie(_) => Some(&http::header::COOKIE),
            Self::Cbor(_)
            | Self::Form(..)
            | Self::Graphql(_)
            | Self::Json(_)
            | Self::Path(_)
            | Self::Protobuf(_)
            | Self::Query(_)
            | Self::Xml(_) => None,
        }
    }
}

fn split_fragment(text: &str) -> Result<(&str, Option<Pointer>), String> {
    match text.split_once('#') {
        None => Ok((text, None)),
        Some(("", _)) => Err("lacks the name before its `#`".into()),
        Some((name, pointer)) => Ok((name, Some(parse_pointer(pointer)?))),
    }
}

fn parse_pointer(text: &str) -> Result<Pointer, String> {
    match Pointer::parse(text) {
        Ok(_) if text.is_empty() => Err("is the whole document: write a JSON Pointer like `/order/id`".into()),
        Ok(pointer) => Ok(pointer),
        Err(_) => Err("has no JSON Pointer: write one like `/order/id`, `~1` for a `/` in a name".into()),
    }
}
