//! Presets of a route's options: the conventions of a dialect, and the caution of the kind `money`.
//!
//! A preset stands directly behind the table that names it: keys that are written beside `dialect` or `kind` overrule
//! it, and it overrules tables that come after. That of the kind comes before that of the dialect.

use std::collections::HashMap;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::DeTable;

use super::reader::Section;
use oncegate_settings::{Dialect, RouteKind, Word};

/// A service may charge and then answer 500, or a gateway before it may answer 503. So no 5xx is released.
const MONEY: &str = r#"
key = { required = true }
store_statuses = ["2xx", "3xx", "4xx"]
release_statuses = ["401", "403", "408", "412", "417", "425", "429"]
unknown_statuses = ["424", "499", "5xx"]
"#;

/// All presets by their texts.
static TABLES: LazyLock<HashMap<&'static str, Spanned<DeTable<'static>>>> = LazyLock::new(|| {
    let presets = Dialect::VALUES.iter().map(|dialect| dialect_preset(*dialect)).chain([MONEY]);
    presets.map(|preset| (preset, DeTable::parse(preset).expect("a preset is TOML"))).collect()
});

/// Puts the presets of a route's dialect and of its kind behind the tables that name them.
pub(super) fn with_presets(section: Section<'_>) -> Section<'_> {
    let dialect = section.choice("dialect");
    let section = section.with_preset("dialect", TABLES[dialect_preset(dialect)].get_ref());
    match section.choice("kind") {
        RouteKind::Money => section.with_preset("kind", TABLES[MONEY].get_ref()),
        RouteKind::Standard => section,
    }
}

/// The preset of a dialect, as the table of a route would have it.
fn dialect_preset(dialect: Dialect) -> &'static str {
    match dialect {
        // The protocol compares the bodies alone.
        Dialect::Acp => {
            r#"
            key = { required = true }
            fingerprint = { body = "json", query = false }
            "#
        }
        // GraphQL, section 7.1: after an error of the request there is no `data`, because nothing was executed. After
        // an error of a field there is, perhaps null, and other fields may have been executed. A 4xx comes before the
        // execution too (GraphQL over HTTP, section 6.4.2); not all servers write it in JSON, so that the usual ones
        // are named.
        Dialect::Graphql => {
            r#"
            fingerprint = { body = "graphql" }
            store_statuses = ["2xx", "3xx"]
            release_statuses = ["307", "308", "400", "401", "403", "404", "405", "406", "408", "411", "413", "414", "415", "421", "422", "429", "431", "4xx", "5xx"]
            outcome = [
                { pointer = "/errors/0", without = "/data", is = "release" },
                { pointer = "/errors/0", is = "unknown" },
            ]
            "#
        }
        // The errors -32700 to -32601 come before the execution. An error of the server itself may come within it.
        Dialect::Jsonrpc => {
            r#"
            key = { from = "header:Idempotency-Key" }
            fingerprint = { body = "jsonrpc" }
            outcome = [
                { pointer = "/error/code", equals = -32700, is = "store" },
                { pointer = "/error/code", equals = -32600, is = "store" },
                { pointer = "/error/code", equals = -32601, is = "store" },
                { pointer = "/error/code", equals = -32602, is = "store" },
                { pointer = "/error", is = "unknown" },
            ]
            "#
        }
        // After -32020 to -32022 and -32042 the client sends the same call again, with other metadata or after a step
        // of the user; beside a result they say nothing. An error of the tool is a result with `isError`.
        Dialect::Mcp => {
            r#"
            key = { from = ["header:Idempotency-Key", "json:/params/_meta/idempotencyKey", "json:/params/idempotencyKey"] }
            operations = ["tools/call"]
            fingerprint = { body = "jsonrpc" }
            outcome = [
                { pointer = "/error/code", equals = -32700, is = "store" },
                { pointer = "/error/code", equals = -32600, is = "store" },
                { pointer = "/error/code", equals = -32601, is = "store" },
                { pointer = "/error/code", equals = -32602, is = "store" },
                { pointer = "/error/code", equals = -32020, without = "/result", is = "release" },
                { pointer = "/error/code", equals = -32021, without = "/result", is = "release" },
                { pointer = "/error/code", equals = -32022, without = "/result", is = "release" },
                { pointer = "/error/code", equals = -32042, without = "/result", is = "release" },
                { pointer = "/error", is = "unknown" },
            ]
            "#
        }
        // The names of the methods in versions 0.3 and 1.0. The errors -32001 to -32009 come before the execution, but
        // for -32006, an invalid answer of the agent.
        Dialect::A2a => {
            r#"
            key = { from = ["header:Idempotency-Key", "json:/params/message/messageId"] }
            operations = ["message/send", "message/stream", "SendMessage", "SendStreamingMessage"]
            fingerprint = { body = "jsonrpc" }
            outcome = [
                { pointer = "/error/code", equals = -32700, is = "store" },
                { pointer = "/error/code", equals = -32600, is = "store" },
                { pointer = "/error/code", equals = -32601, is = "store" },
                { pointer = "/error/code", equals = -32602, is = "store" },
                { pointer = "/error/code", equals = -32001, is = "store" },
                { pointer = "/error/code", equals = -32003, is = "store" },
                { pointer = "/error/code", equals = -32004, is = "store" },
                { pointer = "/error/code", equals = -32005, is = "store" },
                { pointer = "/error/code", equals = -32008, without = "/result", is = "release" },
                { pointer = "/error/code", equals = -32009, without = "/result", is = "release" },
                { pointer = "/error", is = "unknown" },
            ]
            "#
        }
        Dialect::Ietf => "",
        Dialect::Repeatability => {
            r#"
            key = { from = "header:Repeatability-Request-ID", syntax = "uuid" }
            fingerprint = { headers = ["Repeatability-First-Sent"] }
            "#
        }
        // Keys are remembered for 48 hours, as the specification recommends. What it calls `meta` has the key and the
        // agent's profile.
        Dialect::Ucp => {
            r#"
            methods = ["POST", "PUT", "PATCH"]
            key = { from = ["header:Idempotency-Key", "json:/params/arguments/meta/idempotency-key"] }
            operations = ["tools/call"]
            fingerprint = { body = "jsonrpc", exclude = ["json:/params/arguments/meta"] }
            in_flight = "wait"
            ttl = "48h"
            "#
        }
        // A resend has the identical payment, which is a part of the fingerprint: only who has it gets the response. So
        // no caller has to be known.
        Dialect::X402 => {
            r#"
            methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
            scope = ["none"]
            in_flight = "wait"
            release_statuses = ["307", "308", "401", "402", "403", "407", "408", "412", "417", "421", "423", "425", "426", "428", "429", "431", "451", "5xx"]

            [key]
            from = [
                "header:PAYMENT-SIGNATURE#/extensions/payment-identifier/info/id",
                "header:X-PAYMENT#/extensions/payment-identifier/info/id",
            ]
            syntax = "opaque"
            min_length = 16
            max_length = 128

            [fingerprint]
            headers = ["PAYMENT-SIGNATURE", "X-PAYMENT"]
            "#
        }
        // One credential of a platform acts for many accounts. Stripe stores the result of each execution, a 500 too,
        // and no result of a request that was not executed.
        Dialect::Stripe => {
            r#"
            key = { syntax = "opaque" }
            scope = ["authorization?", "header:x-api-key?", "header:stripe-account?", "header:stripe-context?"]
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
