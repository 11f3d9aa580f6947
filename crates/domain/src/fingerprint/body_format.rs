//! The formats of bodies that are compared by their content, and their media types.

use crate::media_type::{essence, is_form, is_json};
use crate::place::protobuf::is_protobuf;

/// A format whose bodies are compared by their content.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyFormat {
    Cbor,
    Form,
    Json,
    Multipart,
    Protobuf,
    Xml,
}

impl BodyFormat {
    pub(super) fn of(content_type: &[u8]) -> Option<Self> {
        if is_json(content_type) {
            return Some(Self::Json);
        } else if is_form(content_type) {
            return Some(Self::Form);
        }
        let essence = essence(content_type).to_ascii_lowercase();
        match &*essence {
            b"application/cbor" => Some(Self::Cbor),
            b"application/xml" | b"text/xml" => Some(Self::Xml),
            // Structured suffixes (RFC 6839).
            other if is_suffixed(other, b"+xml") => Some(Self::Xml),
            other if is_suffixed(other, b"+cbor") => Some(Self::Cbor),
            other if other.starts_with(b"multipart/") => Some(Self::Multipart),
            other if is_protobuf(other) => Some(Self::Protobuf),
            _ => None,
        }
    }

    /// The name, as `oncegate explain` shows it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Cbor => "cbor",
            Self::Form => "form",
            Self::Json => "json",
            Self::Multipart => "multipart",
            Self::Protobuf => "protobuf",
            Self::Xml => "xml",
        }
    }
}

/// Whether a media type has a suffix, behind a type.
fn is_suffixed(essence: &[u8], suffix: &[u8]) -> bool {
    essence.strip_suffix(suffix).is_some_and(|kind| kind.contains(&b'/'))
}
