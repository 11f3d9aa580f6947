//! The space: the set of requests in which a key is unique, as a hash.

use std::borrow::Cow;

use http::Method;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::jsonrpc::{RpcNaming, RpcOperation};
use super::macros::hex_bytes;

/// The parts that a route's spaces are made of. Requests are identified by it, and configurations are compared by it,
/// so that no part can be missing in one of them.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SpaceParts<'a> {
    /// The request's method and path.
    Path {
        /// The naming of the operation in the body, in JSON-RPC.
        operation: Option<RpcNaming>,
    },
    /// The route, by its oldest name.
    Route(Cow<'a, str>),
    /// Nothing: the whole service is one space.
    Service,
}

impl SpaceParts<'_> {
    /// The space of a request: the text that is hashed. `operation` is the one that the request's body names.
    pub fn space_of(&self, method: &Method, path: &str, operation: Option<&RpcOperation>) -> String {
        match self {
            Self::Path { operation: naming } => {
                let operation = naming.and(operation).map(RpcOperation::space_text).unwrap_or_default();
                [method.as_str(), " ", path, &operation].concat()
            }
            Self::Route(name) => ["route ", name].concat(),
            Self::Service => "service".to_owned(),
        }
    }
}

hex_bytes! {
    /// SHA-256 of the set of requests in which a key is unique: method and path, route, or the whole service.
    ///
    /// It has 32 bytes whatever the client's path is, so that a record's size does not depend on it.
    pub struct SpaceHash;
}

impl SpaceHash {
    /// Hashes the description of a space.
    pub fn from_text(text: &str) -> Self {
        Self(Sha256::digest(text).into())
    }

    /// Reads the stored bytes. Versions before 0.1.0 stored the text: any other length is hashed.
    pub fn from_stored_or_text(bytes: &[u8]) -> Self {
        Self::from_stored(bytes).unwrap_or_else(|| Self(Sha256::digest(bytes).into()))
    }
}
