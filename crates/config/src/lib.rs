//! The reader of the configuration: the file, read and checked, and its documents, schema and warnings.
//!
//! [`load()`] finds every problem of a file in one go and reports each with file, line, column, key and a remedy. Each
//! option is declared once, by `options!`. Nothing here opens a socket or a database: whether the store and the
//! upstream are reachable is checked elsewhere.

pub use check_report::{describe, describe_in_short};
pub use environment::{Environment, ProcessEnvironment, WithoutSecrets};
pub use events::parse_sink_name;
pub use file_access::has_written_secret;
pub use file_options::TOP;
pub use key_doc::{KeyDoc, ValueKind};
pub use load::{admin_listen, admin_token, dialect_refusals, load, service_names};
pub use messages::nearest;
pub use problem::{ConfigProblem, ConfigProblems};
pub use readable_data::{StartExposure, start_exposure};
pub use schema::{SCHEMA_ID, schema};

mod admin;
mod challenge;
mod check_report;
mod consumers;
mod cors;
mod environment;
mod events;
mod file_access;
mod file_options;
mod fingerprint;
mod interpolate;
mod jwt;
mod kafka;
mod kafka_cluster;
mod key;
mod key_doc;
mod limits;
mod load;
mod messages;
mod methods;
mod oidc;
mod options;
mod outcome;
mod policy;
mod presets;
mod problem;
mod readable_data;
mod reader;
mod reconcile;
mod refusals;
mod replay;
mod retry;
mod route_options;
mod routes;
mod schema;
mod scope;
mod secrets;
mod services;
mod source_texts;
mod statuses;
mod store;
mod telemetry;
mod tls;
mod upstream_tls;
mod value_parsers;
mod vendor;
mod warnings;
mod webhook;
mod written_options;

/// The values of command-line flags, which overrule the file; the comments are their help.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct Overrides {
    /// Where clients connect, e.g. 127.0.0.1:8080 [env: ONCEGATE_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub listen: Option<String>,
    /// The service, e.g. http://127.0.0.1:3000 [env: ONCEGATE_UPSTREAM]
    #[arg(long, value_name = "URL")]
    pub upstream: Option<String>,
    /// sqlite:PATH, postgres://USER@HOST/DB or memory: [env: ONCEGATE_STORE_URL]
    #[arg(long, value_name = "URL")]
    pub store: Option<String>,
    /// Where operators and probes connect [env: ONCEGATE_ADMIN_LISTEN]
    #[arg(long, value_name = "ADDR")]
    pub admin: Option<String>,
    /// Accepts one change of how stored keys are found, by the digest that the refusal of the start names
    #[arg(long, value_name = "DIGEST")]
    pub accept_route_changes: Option<String>,
    /// The parts of a request that identify its caller, e.g. authorization,header:x-tenant, or none: all callers share
    /// their keys. For each route without a scope of its own
    #[arg(long, value_name = "PARTS")]
    pub scope: Option<String>,
}

/// The name of the configuration where no file was read.
pub const NO_FILE: &str = "no file: defaults";

#[cfg(test)]
mod tests;
