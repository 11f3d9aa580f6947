//! The conventions of known APIs. The form of Oncegate's own answers in a dialect is
//! [`AnswerShape`](oncegate_http::protocol::answer_shape::AnswerShape).

use http::HeaderName;

use crate::words;
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
        /// The REST catalog of Apache Iceberg.
        Iceberg = "iceberg",
        /// x402 with its extension `payment-identifier`.
        X402 = "x402",
    }
}

impl Dialect {
    /// The naming of the operation in the body of a JSON-RPC request; `None` where no request is one.
    pub fn rpc_naming(self) -> Option<RpcNaming> {
        match self {
            Self::A2a | Self::Jsonrpc => Some(RpcNaming::Method),
            Self::Mcp => Some(RpcNaming::MethodAndTool),
            Self::Ucp => Some(RpcNaming::DeclaredMethodAndTool),
            Self::Acp
            | Self::Graphql
            | Self::Iceberg
            | Self::Ietf
            | Self::Repeatability
            | Self::Stripe
            | Self::X402 => None,
        }
    }

    /// Whether the clients of the convention take a status for "not executed", and so send the operation anew, under
    /// another key too. These are the statuses that a route releases by default, and 402, after which a client pays.
    pub fn means_not_executed(self, status: u16) -> bool {
        match (self, status) {
            // The REST catalog's specification: after all others the commit has failed.
            (Self::Iceberg, status) => !matches!(status, 500 | 502 | 504),
            // In these protocols 503 says that the same request with the same key comes later, and 409 that the key was
            // used for another one.
            (Self::Ucp | Self::X402, 409) => true,
            (Self::Ucp | Self::X402, 503) => false,
            (_, 401..=403 | 407 | 408 | 412 | 417 | 421 | 423 | 425 | 426 | 428 | 429 | 431 | 451 | 503) => true,
            _ => false,
        }
    }

    /// Whether the clients of the convention make the operation anew also where they read that it runs, or that nobody
    /// could say whether it has run.
    pub fn reads_pending_as_failed(self) -> bool {
        matches!(self, Self::Iceberg | Self::Ucp | Self::X402)
    }

    /// Whether a request may be one of JSON-RPC, whose body has the operation.
    pub fn is_jsonrpc(self) -> bool {
        self.rpc_naming().is_some()
    }

    /// Whether the `name` in the parameters of a JSON-RPC request is a part of its operation.
    pub fn names_tools(self) -> bool {
        self.rpc_naming().is_some_and(|naming| naming != RpcNaming::Method)
    }
}
