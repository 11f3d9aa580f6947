//! What holds for all inputs, tried on many.

#![allow(clippy::unwrap_used)]

mod canonical_json;
