//! The vocabulary: what the rest of Oncegate talks about.
//!
//! Pure values and pure functions. Nothing in here does I/O, waits, logs or looks at a clock, and nothing in here
//! knows another module of this crate.

pub mod attempt;
pub mod canonical_json;
pub mod filled_path;
pub mod fingerprint;
pub mod job;
pub mod key;
pub mod operation;
pub mod path;
pub mod pattern;
pub mod phase;
pub mod policy;
pub mod probe;
pub mod record;
pub mod recovery;
pub mod response;
pub mod rfc3339;
pub mod route_table;
pub mod scope;
pub mod sealed;
pub mod template;
pub mod testimony;
