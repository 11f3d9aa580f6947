//! The vocabulary: the values that the rest of Oncegate works with.
//!
//! Pure values and pure functions. Nothing in here does I/O, waits, logs or reads a clock, and nothing in here uses
//! another module of this crate. Inside this folder, files use each other in one direction only:
//! `delivery → attempt → record → state, ids` and `execution_risk → record`.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

pub mod acting_for;
pub mod attempt;
pub mod auth_scheme;
pub mod batch;
pub mod decision;
pub mod delivery;
pub mod differing_parts;
pub mod execution_risk;
pub mod fingerprint;
mod foreign_path;
pub mod graphql;
pub mod grpc_status;
pub mod ids;
pub mod inquiry;
pub mod json_members;
pub mod jsonrpc;
pub mod kept_path;
pub mod key;
pub mod key_holder;
pub mod key_rate;
pub mod lookup;
pub mod macros;
pub mod media_type;
pub mod message_path;
pub mod normal_path;
pub mod operation;
pub mod outcome_rules;
pub mod part_bits;
pub mod path_pattern;
pub mod path_samples;
pub mod path_template;
mod path_tree;
pub mod peer_network;
pub mod percent;
pub mod place;
pub mod placeholders;
pub mod quantity;
pub mod record;
pub mod recovery;
pub mod request_part;
pub mod response;
pub mod response_policy;
pub mod retry;
pub mod rfc3339;
pub mod route_table;
pub mod scope;
pub mod sealed;
pub mod sealed_response;
mod serialize;
pub mod service_report;
pub mod space;
pub mod state;
pub mod stored_salt;
pub mod unknown_cause;
pub mod urlencoded;
