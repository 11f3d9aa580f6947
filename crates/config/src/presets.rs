//! Presets of a route's options: the conventions of a dialect, and those of a kind.
//!
//! A preset stands directly behind the table that names it: keys that are written beside `dialect` or `kind` overrule
//! it, and it overrules tables that come after. That of the kind comes before that of the dialect.

use std::collections::HashMap;
use std::sync::LazyLock;

use toml::Spanned;
use toml::de::DeTable;

use super::reader::Section;
use super::{vendor, webhook};
use oncegate_settings::{Dialect, RouteKind, Word};

/// A service may charge and then answer 500, or a gateway before it may answer 503. So no 5xx is released.
const MONEY: &str = r#"
key = { required = true }
store_statuses = ["2xx", "3xx", "4xx"]
release_statuses = ["401", "403", "408", "412", "417", "425", "429"]
unknown_statuses = ["424", "499", "5xx"]
replay = { until = "" }
"#;

/// A refresh of a session, whose token can be used once. The token is the proof of its caller, so that there is no
/// scope, and the rest of the body is equal for many callers. Each try may send another proof of the client beside it.
/// What the service refuses was not executed, and its reason may be gone in the retry (DPoP, RFC 9449, section 8). A
/// second rotation harms the session alone: the service takes the second use for a thief's. So a refresh that nobody
/// answered is sent again.
const TOKEN: &str = r#"
key = { from = ["form:refresh_token", "json:/refresh_token"], hash = true, required = false, syntax = "ietf" }
scope = ["none"]
challenge = ""
fingerprint = { exclude = ["form:client_assertion", "json:/client_assertion"] }
same_body = "allow"
in_flight = "wait"
store_statuses = ["2xx", "3xx"]
release_statuses = ["307", "308", "4xx", "5xx"]
unknown_statuses = ["424", "499", "502", "504", "520", "522", "524"]
on_unknown = "retry-when-quiet"
delivery = "sync"
ttl = "30s"
replay = { drop_headers = [], until = "" }
"#;

/// A sender repeats an event until the answer is a success, which a redirection is not. It has no credentials but its
/// signature, which differs with each delivery. What `[defaults]` has for clients does not count. Nobody
/// sends an accepted event again: it is tried for the whole time of `give_up_after`.
const WEBHOOK: &str = r#"
key = { required = true, syntax = "opaque" }
scope = ["none"]
challenge = ""
same_body = "allow"
in_flight = "wait"
store_statuses = ["2xx"]
release_statuses = ["3xx", "4xx", "5xx"]
unknown_statuses = ["424", "499", "502", "504", "520", "522", "524"]
on_unknown = "hold"
delivery = "sync"
accepted = 200
replay = { until = "" }
retry = { max_attempts = 1000 }
"#;

/// The members of a problem document (RFC 9457), in reading order.
macro_rules! problem {
    () => {
        r#""type":"{type}","title":"{title}","status":"{status}","detail":"{detail}","code":"{code}","retry":"{retry}","differs":"{differs}""#
    };
}

/// An error of JSON-RPC 2.0 with this id.
macro_rules! rpc_error {
    ($id:literal) => {
        concat!(
            r#"{"jsonrpc":"2.0","id":""#,
            $id,
            r#"","error":{"code":"{error_code}","message":"{detail}","data":{"code":"{code}","differs":"{differs}","retry":"{retry}","retry_after":"{retry_after}","type":"{type}"}}}"#
        )
    };
}

/// The errors of JSON-RPC. MCP and A2A keep -32099 to -32000 for errors of their own, and clients act on some of them:
/// there `range` is outside of JSON-RPC's reserved one. Clients of JSON-RPC, MCP and A2A take another status than 200
/// for a failure of the connection, and do not read the error: so what is said about the call's key is 200. What the
/// connection, the caller or the moment is to blame for keeps its status, by which gateways and clients act.
macro_rules! rpc_refusals {
    ($id:literal, $range:literal) => {
        concat!(
            "[refusals]\n'*' = { error_code = ",
            $range,
            "000, body = '",
            rpc_error!($id),
            "' }\nin-flight = { error_code = ",
            $range,
            "009, call_status = 200 }\nkey-reused = { error_code = ",
            $range,
            "022, call_status = 200 }\n'retry:reconcile' = { error_code = ",
            $range,
            r#"050, call_status = 200 }
            bad-request = { error_code = -32600 }
            path-ambiguous = { error_code = -32600 }
            key-invalid = { error_code = -32602, call_status = 200 }
            key-missing = { error_code = -32602, call_status = 200 }
            response-corrupt = { error_code = -32603 }
            duplicate-suspected = { call_status = 200 }
            key-expired = { call_status = 200 }
            "#
        )
    };
}

/// All presets by their texts.
static TABLES: LazyLock<HashMap<&'static str, Spanned<DeTable<'static>>>> = LazyLock::new(|| {
    let presets = Dialect::VALUES.iter().map(|dialect| dialect_preset(*dialect)).chain([MONEY, TOKEN, WEBHOOK]);
    presets.map(|preset| (preset, DeTable::parse(preset).expect("a preset is TOML"))).collect()
});

/// Puts the presets of a route's dialect, its kind and its sender behind the tables that name them.
pub(super) fn with_presets(section: Section<'_>) -> Section<'_> {
    // The vendor's own preset names its dialect, and comes before that of the dialect.
    let dialect = vendor::dialect(&section).unwrap_or_else(|| section.choice("dialect"));
    let section = section.with_preset("dialect", TABLES[dialect_preset(dialect)].get_ref());
    let section = vendor::with_preset(section);
    match section.choice("kind") {
        RouteKind::Money => section.with_preset("kind", TABLES[MONEY].get_ref()),
        RouteKind::Token => section.with_preset("kind", TABLES[TOKEN].get_ref()),
        RouteKind::Webhook => {
            let sender = webhook::preset(section.choice("sender"));
            let section = section.with_preset("kind", TABLES[WEBHOOK].get_ref());
            sender.into_iter().fold(section, |section, preset| section.with_preset("sender", preset))
        }
        RouteKind::Standard => section,
    }
}

/// The preset of a dialect, as the table of a route would have it.
fn dialect_preset(dialect: Dialect) -> &'static str {
    match dialect {
        // The protocol compares the bodies alone. The schema of its errors has no other members: the message names the
        // parts that differ.
        Dialect::Acp => {
            r#"
            key = { required = true }
            fingerprint = { body = "json", query = false }

            [refusals]
            "*" = { error_type = "invalid_request", body = '{"type":"{error_type}","code":"{error_code}","message":"{detail}"}' }
            "5xx" = { error_type = "processing_error" }
            "503" = { error_type = "service_unavailable" }
            "retry:reconcile" = { error_type = "processing_error" }
            key-missing = { error_code = "idempotency_key_required" }
            key-reused = { error_code = "idempotency_conflict" }
            in-flight = { error_code = "idempotency_in_flight" }
            "#
        }
        // GraphQL, section 7.1: after an error of the request there is no `data`, because nothing was executed. After
        // an error of a field there is, perhaps null, and other fields may have been executed. A 4xx comes before the
        // execution too (GraphQL over HTTP, section 6.4.2); not all servers write it in JSON, so that the usual ones
        // are named. The errors are not `application/graphql-response+json`: clients take an error with the older type
        // for one of the connection, and their policies of retries act on it.
        Dialect::Graphql => {
            r#"
            fingerprint = { body = "graphql" }
            store_statuses = ["2xx", "3xx"]
            release_statuses = ["307", "308", "400", "401", "403", "404", "405", "406", "408", "411", "413", "414", "415", "421", "422", "429", "431", "4xx", "5xx"]
            outcome = [
                { pointer = "/errors/0", without = "/data", is = "release" },
                { pointer = "/errors/0", is = "unknown" },
            ]

            [refusals]
            "*" = { body = '{"errors":[{"message":"{detail}","extensions":{"code":"{upper_code}","differs":"{differs}","retry":"{retry}"}}]}' }
            "#
        }
        // The errors -32700 to -32601 come before the execution. An error of the server itself may come within it.
        Dialect::Jsonrpc => {
            concat!(
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
            "#,
                rpc_refusals!("{id_or_null}", "-32")
            )
        }
        // After -32020 to -32022 and -32042 the client sends the same call again, with other metadata or after a step
        // of the user; beside a result they say nothing. An error of the tool is a result with `isError`.
        Dialect::Mcp => {
            concat!(
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
            "#,
                rpc_refusals!("{id}", "-31")
            )
        }
        // The names of the methods in versions 0.3 and 1.0. The errors -32001 to -32009 come before the execution, but
        // for -32006, an invalid answer of the agent.
        Dialect::A2a => {
            concat!(
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
            "#,
                rpc_refusals!("{id_or_null}", "-31")
            )
        }
        // The REST catalog's specification: the key is a UUID. 409 says that a commit has failed, and its client makes
        // it again; after 500, 502 and 504 the state of the commit is unknown, and its client looks. One that takes any
        // other error for a failure deletes the files of the commit, and HTTP layers send again after 502, 503 and
        // 504: so what a retry may answer is 504, and what it cannot answer 500.
        Dialect::Iceberg => {
            r#"
            key = { syntax = "uuid" }
            unknown_statuses = ["424", "499", "500", "502", "504", "520", "522", "524"]

            [refusals]
            "*" = { error_type = "BadRequestException", body = '{"error":{"message":"{detail}","type":"{error_type}","code":"{status}","differs":"{differs}"}}' }
            "401" = { error_type = "NotAuthorizedException" }
            "403" = { error_type = "ForbiddenException" }
            "422" = { error_type = "UnprocessableEntityException" }
            "429" = { error_type = "TooManyRequestsException" }
            "5xx" = { error_type = "CommitStateUnknownException" }
            "503" = { error_type = "CommitStateUnknownException", status = 504 }
            "retry:reconcile" = { error_type = "CommitStateUnknownException", status = 500 }
            duplicate-suspected = { error_type = "CommitStateUnknownException", status = 500 }
            key-expired = { error_type = "CommitStateUnknownException", status = 500 }
            request-too-old = { error_type = "CommitStateUnknownException", status = 500 }
            in-flight = { error_type = "CommitStateUnknownException", status = 504 }
            "#
        }
        Dialect::Ietf => "",
        // OASIS Repeatable Requests 1.0, section 2: 412 outside of the window, 400 for any other fault.
        Dialect::Repeatability => {
            concat!(
                r#"
                key = { from = "header:Repeatability-Request-ID", syntax = "uuid" }
                fingerprint = { headers = ["Repeatability-First-Sent"] }

                [refusals]
                key-reused = { status = 400 }
                key-expired = { status = 412 }
                request-too-old = { status = 412 }
                "#,
                "'*' = { media_type = 'application/problem+json', body = '{",
                problem!(),
                r#","error":{"code":"{code}","message":"{detail}","differs":"{differs}"}}' }"#
            )
        }
        // Keys are remembered for 48 hours, as the specification recommends. What it calls `meta` has the key and the
        // agent's profile. In it and in x402, a 409 says that the key was used for another request: a client that reads
        // one takes a new key. What a later retry may answer is 503.
        Dialect::Ucp => {
            concat!(
                r#"
            methods = ["POST", "PUT", "PATCH"]
            key = { from = ["header:Idempotency-Key", "json:/params/arguments/meta/idempotency-key"] }
            operations = ["tools/call"]
            fingerprint = { body = "jsonrpc", exclude = ["json:/params/arguments/meta"] }
            in_flight = "wait"
            ttl = "48h"

            [refusals]
            bad-request = { error_code = -32600 }
            path-ambiguous = { error_code = -32600 }
            key-invalid = { error_code = -32602 }
            key-missing = { error_code = -32602 }
            response-corrupt = { error_code = -32603 }
            key-reused = { status = 409 }
            duplicate-suspected = { status = 400 }
            in-flight = { status = 503 }
            outcome-unknown = { status = 503 }
            response-not-kept = { status = 500 }
            "#,
                r#""*" = { error_code = -32000, body = '{"code":"{snake_code}","content":"{detail}","differs":"{differs}"}', call_body = '"#,
                rpc_error!("{id_or_null}"),
                "' }"
            )
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

            [refusals]
            key-reused = { status = 409 }
            duplicate-suspected = { status = 400 }
            in-flight = { status = 503 }
            outcome-unknown = { status = 503 }
            response-not-kept = { status = 500 }
            "#
        }
        // One credential of a platform acts for many accounts. Stripe stores the result of each execution, a 500 too,
        // and no result of a request that was not executed. The SDKs choose a
        // class of errors by the status (Python) or by the type (Node). A 400, 401, 403 or 429 has the same class in
        // both; other faults of a request are therefore 400. The field tells them whether to send again, whatever the
        // status.
        Dialect::Stripe => {
            concat!(
                r#"
            key = { syntax = "opaque" }
            scope = ["authorization?", "header:x-api-key?", "header:stripe-account?", "header:stripe-context?"]
            space = "service"
            in_flight = "wait"
            wait_timeout = "10s"
            store_statuses = ["2xx", "3xx", "4xx", "5xx"]
            release_statuses = ["307", "308", "401", "403", "407", "408", "412", "417", "421", "423", "425", "426", "428", "429", "431", "451", "503"]
            unknown_statuses = ["424", "499", "502", "504", "520", "522", "524"]

            [refusals]
            "4xx" = { status = 400, error_type = "invalid_request_error" }
            "401" = { status = 401 }
            "403" = { status = 403 }
            "5xx" = { error_type = "api_error" }
            "retry:same_key" = { headers = ["Stripe-Should-Retry: true"] }
            "retry:reconcile" = { error_type = "api_error" }
            in-flight = { status = 409, error_code = "idempotency_key_in_use" }
            key-expired = { error_type = "idempotency_error" }
            key-reused = { error_type = "idempotency_error" }
            outcome-unknown = { status = 409 }
            response-not-kept = { status = 409 }
            too-many-keys = { status = 429, error_type = "rate_limit_error" }
            "#,
                "'*' = { headers = ['Stripe-Should-Retry: false'], body = '{",
                problem!(),
                r#","error":{"type":"{error_type}","code":"{error_code}","message":"{detail}","differs":"{differs}"}}' }"#
            )
        }
    }
}
