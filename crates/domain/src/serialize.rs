//! JSON of the types that have a text: the text.

use serde::{Serialize, Serializer};

use crate::ids::{InstanceId, RecordId};
use crate::scope::Scope;
use crate::state::StateKind;
use crate::unknown_cause::UnknownCause;

macro_rules! serialize_as_text {
    ($($type:ty),+) => {$(
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    )+};
}

serialize_as_text!(InstanceId, RecordId, Scope, StateKind, UnknownCause);
