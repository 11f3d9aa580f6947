//! Properties of Oncegate's readers of foreign bytes, each for any bytes at all.
//!
//! Each module has one function `check`, which panics where its property does not hold. libFuzzer searches for such
//! bytes (`make fuzz`, with the programs in `fuzz_targets`), and `tests/corpora.rs` gives each function the inputs in
//! `corpus` again, on the stable compiler. The functions under test are Oncegate's own; the models that they are
//! compared with share no code with them.

pub mod bytes_reader;
pub mod cbor;
pub mod config;
pub mod directive;
pub mod form;
pub mod framing;
pub mod json;
pub mod json_model;
pub mod jwt;
pub mod key;
pub mod message;
pub mod multipart;
pub mod path;
pub mod protobuf;
pub mod requests_model;
pub mod row;
pub mod sealed_response;
pub mod structured_field;
pub mod xml;

/// A function that panics where its property does not hold for an input.
pub type Property = fn(&[u8]);

/// All properties, each by the name of its program and of its corpus.
pub const PROPERTIES: [(&str, Property); 16] = [
    ("cbor", cbor::check),
    ("config", config::check),
    ("directive", directive::check),
    ("form", form::check),
    ("framing", framing::check),
    ("json", json::check),
    ("jwt", jwt::check),
    ("key", key::check),
    ("message", message::check),
    ("multipart", multipart::check),
    ("path", path::check),
    ("protobuf", protobuf::check),
    ("row", row::check),
    ("sealed_response", sealed_response::check),
    ("structured_field", structured_field::check),
    ("xml", xml::check),
];
