//! JSON of the types that have a text: the text, and its schema.

use std::borrow::Cow;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};

use crate::ids::{InstanceId, RecordId};
use crate::scope::Scope;
use crate::space::SpaceHash;
use crate::state::StateKind;
use crate::unknown_cause::UnknownCause;

macro_rules! serialize_as_text {
    ($($type:ident: $schema:tt,)+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl JsonSchema for $type {
            fn schema_name() -> Cow<'static, str> {
                stringify!($type).into()
            }

            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                json_schema!($schema)
            }
        }
    )+};
}

// Names that may become more are examples and no `enum`: a generated client refuses a value that its `enum` lacks.
serialize_as_text! {
    InstanceId: { "type": "string", "description": "The id of an instance: 16 hexadecimal digits." },
    RecordId: { "type": "string", "description": "The id of a key: 64 hexadecimal digits." },
    Scope: { "type": "string", "description": "The hash of a caller: 64 hexadecimal digits." },
    SpaceHash: { "type": "string", "description": "The hash of the set of requests in which the key is unique." },
    StateKind: {
        "type": "string",
        "description": "The state of a key.",
        "examples": StateKind::ALL.map(StateKind::name),
    },
    UnknownCause: {
        "type": "string",
        "description": "The cause of an unknown outcome.",
        "examples": ["body", "broken", "broken:4096", "cancelled", "crashed", "grpc:INTERNAL", "service", "status:500", "store",
                     "timeout"],
    },
}
