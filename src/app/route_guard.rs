//! Which requests a route guards: all that decides it, in the form in which configurations are compared and remembered.

use std::fmt;

use serde::{Deserialize, Serialize};

use oncegate_domain::jsonrpc::RpcNaming;
use oncegate_domain::route_table::Spelling;
use oncegate_settings::{Dialect, Route, RouteMode};

/// The requests that a route guards, of those that it matches.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
pub(super) struct RouteGuard {
    pub(super) bodies: GuardedBodies,
    /// Whether a request without a key is refused. It passes unguarded otherwise.
    pub(super) requires_key: bool,
    /// Whether other spellings of the path are refused or guarded. They pass unguarded otherwise.
    pub(super) covers_spellings: bool,
    /// Whether requests pass unguarded while the store is away.
    pub(super) bypasses: bool,
}

/// The bodies of the requests that a route guards.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum GuardedBodies {
    /// All bodies.
    All,
    /// All but documents of GraphQL that only read.
    GraphqlWrites,
    /// The calls of these operations, or of all where none is listed, and whatever is no message of JSON-RPC.
    RpcCalls { naming: RpcNaming, operations: Vec<String> },
}

impl fmt::Display for GuardedBodies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::GraphqlWrites => f.write_str("all but GraphQL that only reads"),
            Self::RpcCalls { naming, operations } if operations.is_empty() => write!(f, "all calls by {naming}"),
            Self::RpcCalls { naming, operations } => write!(f, "{} by {naming}", operations.join(", ")),
        }
    }
}

impl RouteGuard {
    /// The guard of a route; `None` where it guards nothing.
    pub(super) fn of_route(route: &Route) -> Option<Self> {
        let bodies = match (route.options.dialect, route.options.dialect.rpc_naming()) {
            (_, Some(naming)) => GuardedBodies::RpcCalls { naming, operations: route.options.operations.clone() },
            (Dialect::Graphql, None) => GuardedBodies::GraphqlWrites,
            (_, None) => GuardedBodies::All,
        };
        (route.options.mode == RouteMode::Enforce).then(|| Self {
            bodies,
            requires_key: route.options.key.required,
            covers_spellings: route.guarded_spelling() != Spelling::Pass,
            bypasses: route.bypasses(),
        })
    }

    /// The parts by which `now` guards less, as `key: required -> optional`; `None` if it does not.
    pub(super) fn describe_narrowing(&self, now: &Self) -> Option<String> {
        let Self { bodies, requires_key, covers_spellings, bypasses } = self;
        let narrowed = [
            (!now.bodies.cover(bodies)).then(|| format!("operations: {bodies} -> {}", now.bodies)),
            (*requires_key && !now.requires_key).then(|| "key: required -> optional".to_owned()),
            (*covers_spellings && !now.covers_spellings).then(|| "spelling: refused or guarded -> pass".to_owned()),
            (!bypasses && now.bypasses).then(|| "store_down: reject -> bypass".to_owned()),
        ];
        let narrowed: Vec<_> = narrowed.into_iter().flatten().collect();
        (!narrowed.is_empty()).then(|| narrowed.join("; "))
    }
}

impl GuardedBodies {
    /// Whether a body that is among `before` is among these too.
    fn cover(&self, before: &Self) -> bool {
        match (before, self) {
            (_, Self::All) => true,
            (
                Self::RpcCalls { naming: before_naming, operations: before },
                Self::RpcCalls { naming, operations: now },
            ) => {
                // What a naming does not read as a call is guarded, and each of the three takes fewer bodies for calls
                // than the one before.
                let is_named_alike = naming >= before_naming;
                // Without names, `METHOD NAME` guards all calls of the method.
                let guarded = |entry: &'_ String, naming: &RpcNaming| match entry.split_once(' ') {
                    Some((method, _)) if *naming == RpcNaming::Method => (method.to_owned(), None),
                    Some((method, name)) => (method.to_owned(), Some(name.to_owned())),
                    None => (entry.clone(), None),
                };
                let is_listed = |entry: &String| {
                    let (method, name) = guarded(entry, before_naming);
                    let mut listed = now.iter().map(|entry| guarded(entry, naming));
                    listed.any(|(other, tool)| other == method && (tool.is_none() || tool == name))
                };
                is_named_alike && (now.is_empty() || !before.is_empty() && before.iter().all(is_listed))
            }
            (before, now) => before == now,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guard_is_narrower_where_a_body_passes_that_was_guarded() {
        let calls = |naming, operations: &[&str]| GuardedBodies::RpcCalls {
            naming,
            operations: operations.iter().map(|entry| (*entry).to_owned()).collect(),
        };
        let tools = |operations: &[&str]| calls(RpcNaming::MethodAndTool, operations);
        let declared = |operations: &[&str]| calls(RpcNaming::DeclaredMethodAndTool, operations);
        let (all, graphql) = (GuardedBodies::All, GuardedBodies::GraphqlWrites);
        for (before, now, is_covered) in [
            (all.clone(), all.clone(), true),
            (all.clone(), graphql.clone(), false),
            (all.clone(), tools(&[]), false),
            (graphql.clone(), all.clone(), true),
            (graphql.clone(), graphql.clone(), true),
            (graphql.clone(), tools(&[]), false),
            (tools(&["a"]), all, true),
            (tools(&["a"]), graphql, false),
            (tools(&["a"]), tools(&["b", "a"]), true),
            (tools(&["a"]), tools(&[]), true),
            (tools(&[]), tools(&["a"]), false),
            (tools(&["a", "b"]), tools(&["a"]), false),
            (tools(&["a x"]), tools(&["a"]), true),
            (tools(&["a"]), tools(&["a x"]), false),
            (tools(&["a"]), declared(&["a"]), true),
            (declared(&["a"]), tools(&["a"]), false),
            (tools(&["a x"]), calls(RpcNaming::Method, &["a x"]), false),
            (calls(RpcNaming::Method, &["a"]), tools(&["a"]), true),
            (calls(RpcNaming::Method, &["a x"]), tools(&["a x"]), false),
            (calls(RpcNaming::Method, &["a x"]), tools(&["a"]), true),
            (calls(RpcNaming::Method, &["a x"]), calls(RpcNaming::Method, &["a y"]), true),
        ] {
            assert_eq!(now.cover(&before), is_covered, "{before} -> {now}");
        }
    }
}
