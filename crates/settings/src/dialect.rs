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
}
