//! The HTTP vocabulary: header fields, directives of services, `Oncegate-Status`, gRPC, JSON-RPC, refusals.

pub mod answer_shape;
pub mod charset;
pub mod cors;
pub mod directives;
pub mod early_hints;
pub mod event_stream;
pub mod fields;
pub mod forwarded_for;
pub mod graphql;
pub mod grpc;
pub mod grpc_web;
pub mod jsonrpc;
pub mod judged_body;
pub mod payment_challenge;
pub mod prefer;
pub mod problem_pages;
pub mod refusal;
pub mod request_codec;
pub mod retry_after;
pub mod status;
pub mod stored_response;
pub mod via;
