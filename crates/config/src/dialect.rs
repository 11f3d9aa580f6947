//! Dialects: the conventions of known APIs, each a preset of a route's fields.
//!
//! A preset stands directly behind the table that names its dialect: keys that are written beside `dialect` overrule it, and it
//! overrules tables that come after. The form of Oncegate's own answers in a dialect is
//! [`AnswerShape`](oncegate_http::protocol::answer_shape::AnswerShape).

use std::sync::LazyLock;

use http::HeaderName;
use toml::Spanned;
use toml::de::DeTable;

use super::reader::Section;
use super::words::{Word, words};

/// The time at which the client first sent the request, as the client says (OASIS Repeatable Requests 1.0).
pub const FIRST_SENT: HeaderName = HeaderName::from_static("repeatability-first-sent");

words! {
    /// The convention by which a route's clients send keys and read answers.
    pub enum Dialect {
        /// The IETF's draft, and problem documents.
        Ietf = "ietf",
        /// Stripe's API and its SDKs.
        Stripe = "stripe",
        /// OASIS Repeatable Requests 1.0.
        Repeatability = "repeatability",
        /// The Agentic Commerce Protocol, version 2026-04-17.
        Acp = "acp",
        /// GraphQL over HTTP: its queries are not guarded.
        Graphql = "graphql",
    }
}

impl Dialect {
    /// The preset, as the table of a route would have it.
    pub fn preset(self) -> &'static str {
        match self {
            // The protocol compares the bodies alone.
            Self::Acp => {
                r#"
                key = { required = true }
                fingerprint = { body = "json", query = false }
                "#
            }
            // GraphQL, section 7.1: after an error of the request there is no `data`, because nothing was executed. After an error of a
            // field there is, perhaps null, and other fields may have been executed. A 4xx comes before the execution too (GraphQL over
            // HTTP, section 6.4.2); not all servers write it in JSON.
            Self::Graphql => {
                r#"
                fingerprint = { body = "graphql" }
                store_statuses = ["2xx", "3xx"]
                release_statuses = ["307", "308", "4xx", "5xx"]
                outcome = [
                    { pointer = "/errors/0", without = "/data", is = "release" },
                    { pointer = "/errors/0", is = "unknown" },
                ]
                "#
            }
            Self::Ietf => "",
            Self::Repeatability => {
                r#"
                key = { header = "Repeatability-Request-ID", syntax = "uuid" }
                fingerprint = { headers = ["Repeatability-First-Sent"] }
                "#
            }
            // Stripe stores the result of each execution, a 500 too, and no result of a request that was not executed.
            Self::Stripe => {
                r#"
                key = { syntax = "opaque" }
                space = "service"
                in_flight = "wait"
                wait_timeout = "10s"
                store_statuses = ["2xx", "3xx", "4xx", "5xx"]
                release_statuses = ["307", "308", "401", "403", "407", "408", "412", "417", "421", "423", "425", "426", "428", "429", "431", "451", "503"]
                unknown_statuses = ["424", "499", "502", "504", "520", "522", "524"]
                "#
            }
        }
    }

    fn preset_table(self) -> &'static DeTable<'static> {
        static TABLES: LazyLock<Vec<Spanned<DeTable<'static>>>> = LazyLock::new(|| {
            let presets = Dialect::VALUES.iter().map(|dialect| dialect.preset());
            presets.map(|preset| DeTable::parse(preset).expect("a preset is TOML")).collect()
        });
        let index = Self::VALUES.iter().position(|dialect| *dialect == self).expect("all are listed");
        TABLES[index].get_ref()
    }
}

/// Puts the preset of a route's dialect behind the table that names it.
pub(super) fn with_preset(section: Section<'_>) -> Section<'_> {
    let dialect: Dialect = section.choice("dialect");
    section.with_preset("dialect", dialect.preset_table())
}
