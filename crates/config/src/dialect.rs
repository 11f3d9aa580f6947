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
use oncegate_domain::jsonrpc::RpcNaming;

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
        /// JSON-RPC 2.0 over HTTP.
        Jsonrpc = "jsonrpc",
        /// The Model Context Protocol over streamable HTTP: calls of tools are guarded.
        Mcp = "mcp",
        /// The Agent2Agent Protocol over JSON-RPC: messages are guarded, by their `messageId`.
        A2a = "a2a",
        /// The Universal Commerce Protocol, over REST and over MCP.
        Ucp = "ucp",
        /// x402 with its extension `payment-identifier`.
        X402 = "x402",
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
            // HTTP, section 6.4.2); not all servers write it in JSON, so that the usual ones are named.
            Self::Graphql => {
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
            Self::Jsonrpc => {
                r#"
                key = { header = "Idempotency-Key" }
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
            // After -32020 to -32022 and -32042 the client sends the same call again, with other metadata or after a step of the user;
            // beside a result they say nothing. An error of the tool is a result with `isError`.
            Self::Mcp => {
                r#"
                key = { header = "Idempotency-Key", body = ["/params/_meta/idempotencyKey", "/params/idempotencyKey"] }
                operations = ["tools/call"]
                fingerprint = { body = "jsonrpc", exclude = ["/params/idempotencyKey"] }
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
            // The names of the methods in versions 0.3 and 1.0. The errors -32001 to -32009 come before the execution, but for
            // -32006, an invalid answer of the agent.
            Self::A2a => {
                r#"
                key = { header = "Idempotency-Key", body = "/params/message/messageId" }
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
            Self::Ietf => "",
            Self::Repeatability => {
                r#"
                key = { header = "Repeatability-Request-ID", syntax = "uuid" }
                fingerprint = { headers = ["Repeatability-First-Sent"] }
                "#
            }
            // Keys are remembered for 48 hours, as the specification recommends. What it calls `meta` has the key and the agent's profile.
            Self::Ucp => {
                r#"
                methods = ["POST", "PUT", "PATCH"]
                key = { header = "Idempotency-Key", body = "/params/arguments/meta/idempotency-key" }
                operations = ["tools/call"]
                fingerprint = { body = "jsonrpc", exclude = ["/params/arguments/meta"] }
                in_flight = "wait"
                ttl = "48h"
                "#
            }
            // A resend has the identical payment, which is a part of the fingerprint: only who has it gets the response. So no caller
            // has to be known.
            Self::X402 => {
                r#"
                methods = ["GET", "POST", "PUT", "PATCH", "DELETE"]
                scope = ["none"]
                in_flight = "wait"
                release_statuses = ["307", "308", "401", "402", "403", "407", "408", "412", "417", "421", "423", "425", "426", "428", "429", "431", "451", "5xx"]

                [key]
                payload = [
                    "PAYMENT-SIGNATURE#/extensions/payment-identifier/info/id",
                    "X-PAYMENT#/extensions/payment-identifier/info/id",
                ]
                syntax = "opaque"
                min_length = 16
                max_length = 128

                [fingerprint]
                headers = ["PAYMENT-SIGNATURE", "X-PAYMENT"]
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

    /// The naming of the operation in the body of a JSON-RPC request; `None` where no request is one.
    pub fn rpc_naming(self) -> Option<RpcNaming> {
        match self {
            Self::A2a | Self::Jsonrpc => Some(RpcNaming::Method),
            Self::Mcp => Some(RpcNaming::MethodAndTool),
            Self::Ucp => Some(RpcNaming::DeclaredMethodAndTool),
            Self::Acp | Self::Graphql | Self::Ietf | Self::Repeatability | Self::Stripe | Self::X402 => None,
        }
    }

    /// Whether a request may be one of JSON-RPC, whose body has the operation.
    pub fn is_jsonrpc(self) -> bool {
        self.rpc_naming().is_some()
    }

    /// Whether the `name` in the parameters of a JSON-RPC request is a part of its operation.
    pub fn names_tools(self) -> bool {
        self.rpc_naming().is_some_and(|naming| naming != RpcNaming::Method)
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

/// Reads the operations that a route guards. Without JSON-RPC, the method and the path are the operation.
pub(super) fn read_operations(section: &Section<'_>) -> Vec<String> {
    let operations = section.values("operations", |text| match text {
        "" => Err("is empty: write the name of a method, like `tools/call`".to_owned()),
        text => Ok(text.to_owned()),
    });
    if !operations.is_empty() && !section.choice::<Dialect>("dialect").is_jsonrpc() {
        let message = "counts only in a dialect of JSON-RPC: `jsonrpc`, `mcp`, `a2a` or `ucp`";
        section.conflict(&["operations", "dialect"], message);
    }
    operations
}

/// Puts the preset of a route's dialect behind the table that names it.
pub(super) fn with_preset(section: Section<'_>) -> Section<'_> {
    let dialect: Dialect = section.choice("dialect");
    section.with_preset("dialect", dialect.preset_table())
}
