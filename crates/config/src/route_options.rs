//! The options of a route.

use std::sync::Arc;
use std::time::Duration;

use http::uri::Authority;
use http::{HeaderName, HeaderValue, StatusCode};

use super::cors::CorsOptions;
use super::fingerprint::FingerprintOptions;
use super::key::{self, KeyOptions, parse_forward_key};
use super::key_doc::KeyDoc;
use super::limits::CallerLimitOptions;
use super::options::options;
use super::outcome::{self, OutcomeOptions};
use super::reader::Section;
use super::reconcile::ReconcileOptions;
use super::replay::ReplayOptions;
use super::retry::RetryOptions;
use super::upstream_tls::UpstreamTlsOptions;
use super::value_parsers::{header_name, is_of_connection, is_of_name, name, not_empty};
use super::warnings::Lint;
use super::{methods, refusals, replay, retry, scope, webhook};
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::lookup::LOOKUPS_MAX;
use oncegate_domain::place::Place;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::route_table::Spelling;
use oncegate_settings::{
    BODY_BYTES_MAX, DeliveryMode, Dialect, InFlightPolicy, KeySpace, OnClientGone, RouteKind, RouteMode, RouteOptions,
    SameBodyPolicy, StoreDownPolicy, StreamMode, Vendor, WebhookSender, Word, parse_duration, parse_size, parse_ttl,
    show_duration, words,
};

words! {
    /// The response to a retry past the TTL.
    pub enum AfterTtl {
        /// Another execution.
        Forget = "forget",
        /// 410.
        Refuse = "refuse",
    }
}

options! {
    /// The options of `[[routes]]`. Their fields and the settings that they are part of are in `oncegate-settings`.
    struct RouteKeys for RouteOptions {
        /// names the route in logs, metrics and the operators' tools
        name: Text;
        /// earlier names of the route, the oldest first, whose stored keys it takes over
        was: Texts = [];
        /// `{name}` is one segment, `{*rest}` the rest; the most specific route wins
        path: Path;
        /// the name of its service; without one, the only service of its file, or that at the top
        service: Text = "";
        /// the methods that are guarded
        methods: Texts = ["POST", "PATCH"] => made(methods::read);
        /// another spelling of the route's path, such as `//` for `/`: answer 400, guard it alike, or let it pass
        spelling: Choice(Spelling::WORDS) = "refuse" => choice();
        /// `observe` neither refuses nor delays because of a key, and counts what `enforce` would do
        mode: Choice(RouteMode::WORDS) = "enforce" => choice();
        /// a preset of other keys: `money` requires keys, and no 5xx counts as "not executed"; the key of `token` is a
        /// token that is used up; `webhook` takes the events of a `sender`
        kind: Choice(RouteKind::WORDS) = "standard" => choice();
        /// for `kind = "webhook"`: who sends the events; a preset of the other keys, and how they are signed
        sender: Choice(WebhookSender::WORDS) = "none" => choice();
        /// for calls to another's API: the vendor, a preset of other keys with what it promises about keys; `none` for
        /// one without keys
        vendor: Choice(Vendor::WORDS) = "off" => choice();
        /// how the signature of a webhook is verified
        signature: Table(webhook::Options::KEYS) = {};
        /// the convention of an API: a preset of the other keys, and the form of Oncegate's own answers
        dialect: Choice(Dialect::WORDS) = "ietf" => choice();
        /// the statuses and documents of Oncegate's own errors, by a code such as `in-flight`, a next step such as
        /// `retry:reconcile`, a status, `4xx`, `5xx` or `*`
        refusals: Named(refusals::Options::KEYS) = {} => made(refusals::read);
        /// for JSON-RPC: the operations that are guarded, each `METHOD`, or `METHOD NAME` for one tool; empty for all
        operations: Texts = [] => made(read_operations);
        /// the place and the syntax of a request's key
        key: Table(KeyOptions::KEYS) = {} => inner(key::read);
        /// the places of values by which operators look keys up (`keys list --where`), such as `json:/order_id`; only
        /// salted hashes are kept; at most 4
        index: Places(&[]) = [] => made(read_index);
        /// whether record and span have the address of the newest attempt's client, for operators: personal data
        keep_client_address: Boolean = false => boolean();
        /// the parts of a request that identify its caller: authorization, jwt:CLAIM, client-cert, a place such as
        /// header:NAME or cookie:NAME, or none; `?` marks optional ones
        scope: Places(&scope::WORDS) = ["authorization?", "header:x-api-key?"];
        /// the `WWW-Authenticate` of a 401 to a keyed request without credentials; empty for 400
        challenge: Concealed = "";
        /// the space in which a key is unique
        space: Choice(KeySpace::WORDS) = "path" => choice();
        /// what makes two requests the same
        fingerprint: Table(FingerprintOptions::KEYS) = {};
        /// the response to a duplicate while the first attempt runs: 409, that attempt's response, or 202
        in_flight: Choice(InFlightPolicy::WORDS) = "conflict" => choice();
        /// for `wait`, and the ceiling of a client's `Prefer: wait=N`
        wait_timeout: Duration = "10s" => duration_above_zero();
        /// a request that equals one of the same caller under another key: allow it, count and log it, or answer 409
        same_body: Choice(SameBodyPolicy::WORDS) = "warn" => choice();
        /// the time for which an instance remembers requests for `same_body`
        same_body_window: Duration = "10m" => duration_above_zero();
        /// TLS towards the route's services; keys that it lacks are the top's
        upstream_tls: Table(UpstreamTlsOptions::KEYS) = {};
        /// the time limit for connecting to the upstream
        connect_timeout: Duration = "2s" => made(read_connect_timeout);
        /// the time limit for the upstream's whole response; for one that streams, until its beginning
        upstream_timeout: Duration = "30s" => duration_above_zero();
        /// how long an unused connection to the upstream is kept
        upstream_idle_timeout: Duration = "2s" => duration_above_zero();
        /// the first client reads while the response is being stored: event streams and other streams, and what has no
        /// length and takes long; all responses; or none
        stream: Choice(StreamMode::WORDS) = "auto" => choice();
        /// how long a service may send nothing within a response that streams
        stream_idle_timeout: Duration = "60s" => duration_above_zero();
        /// the time limit for a whole response that streams
        stream_timeout: Duration = "1h" => duration_above_zero();
        /// when the client leaves: let the attempt run on, or close the connection to the service, which makes the key
        /// unknown
        on_client_gone: Choice(OnClientGone::WORDS) = "continue" => choice();
        /// responses that are stored and replayed
        store_statuses: Texts = ["2xx", "3xx", "4xx"];
        /// responses after which a retry is executed again
        release_statuses: Texts = ["307", "308", "401", "403", "407", "408", "412", "417", "421", "423", "425", "426",
            "428", "429", "431", "451", "5xx"];
        /// responses after which it is not known whether the request was executed
        unknown_statuses: Texts = ["424", "499", "502", "504", "520", "522", "524"];
        /// what a JSON body means; the first rule that matches decides
        outcome: Tables(OutcomeOptions::KEYS) = [] => made(outcome::read);
        /// the response to a retry of an unknown outcome: a refusal, or the next attempt
        on_unknown: Choice(OnUnknown::WORDS) = "hold" => choice();
        /// how long a key is remembered from its completion
        ttl: Duration = "24h" => made(read_ttl);
        /// the response to a retry past the ttl: another execution, or 410
        after_ttl: Choice(AfterTtl::WORDS) = "forget";
        /// for `refuse`: how long past the ttl a key is remembered
        remember: Duration = "30d" => made(read_remember);
        /// a larger request is refused
        max_request_body: Size = "1MiB" => parsed(parse_body_size);
        /// a larger response reaches the first client and is not kept
        max_response_body: Size = "1MiB" => parsed(parse_body_size);
        /// for a request whose key the store cannot reserve: answer 503, or forward it unguarded
        store_down: Choice(StoreDownPolicy::WORDS) = "reject" => choice();
        /// refuse requests whose Repeatability-First-Sent or Date is older; empty for any
        max_age: Text = "" => optional(parse_duration);
        /// the key towards the service: `same`, `none` or `derive:STEP`
        forward_key: Text = "same" => parsed(parse_forward_key);
        /// fields that each request has on the way out, such as the credential of a vendor; they replace the client's
        set_headers: Fields = {} => made(read_set_headers);
        /// answer at once, or accept with 202 and deliver later: always, or for clients that send
        /// `Prefer: respond-async`
        delivery: Choice(DeliveryMode::WORDS) = "sync" => choice();
        /// for `async`: the list of a batch, such as `json:/*`; each element is accepted as a batch of one, with the
        /// key of that, such as `json:/0/id`
        split: Place(&[]) = "" => optional(BatchPlace::parse);
        /// the status of the answer to a request that is accepted for later
        accepted: Integer = 202 => made(read_accepted);
        /// how often, and how long, an accepted request is tried
        retry: Table(RetryOptions::KEYS) = {} => inner(retry::read);
        /// the new keys of each caller
        limits: Table(CallerLimitOptions::KEYS) = {} => inner(CallerLimitOptions::read);
        /// the content of a replay
        replay: Table(ReplayOptions::KEYS) = {} => inner(ReplayOptions::read);
        /// the origins whose pages may read refusals and replays
        cors: Table(CorsOptions::KEYS) = {};
        /// how the service is asked about an unknown outcome
        reconcile: Table(ReconcileOptions::KEYS) = {};
        /// the warnings about the route that are meant, by their names
        allow: Texts = [] => made(read_allowed);
    }
}

/// The options of `[defaults]`: those of a route but `name`, `was`, `service` and `path`, which make a route itself.
pub(super) const DEFAULTS: &[KeyDoc] = RouteKeys::KEYS.split_at(4).1;

/// Reads `connect_timeout`. As a default it gives way to a short `upstream_timeout`.
fn read_connect_timeout(section: &Section<'_>) -> Duration {
    let [connect, whole] = ["connect_timeout", "upstream_timeout"].map(|name| section.duration_above_zero(name));
    if connect >= whole && section.position("connect_timeout").is_written() {
        let (connect, whole) = (show_duration(connect), show_duration(whole));
        let message = format!(
            "`connect_timeout` ({connect}) must be shorter than `upstream_timeout` ({whole}): if both ran out at once, it \
             would not be known whether the request was sent"
        );
        section.conflict(&["connect_timeout", "upstream_timeout"], message);
    }
    connect.min(whole.mul_f64(0.9))
}

/// Reads how long a completed key is replayed, which ends at `replay.until` where that is written.
fn read_ttl(section: &Section<'_>) -> Duration {
    let ttl = section.parsed("ttl", parse_ttl);
    replay::read_until(section).unwrap_or(ttl)
}

/// Reads for how long past that it is remembered, to refuse late retries or to tell redeliveries; `None` to forget it.
fn read_remember(section: &Section<'_>) -> Option<Duration> {
    let (after_ttl, remember) = (section.choice::<AfterTtl>("after_ttl"), section.duration_above_zero("remember"));
    let Some(until) = replay::read_until(section) else {
        return (after_ttl == AfterTtl::Refuse).then_some(remember);
    };
    if after_ttl == AfterTtl::Refuse {
        section.problem("after_ttl", "refuses what `replay.until` executes anew: write one of them");
    }
    if section.choice::<Dialect>("dialect") == Dialect::Repeatability {
        section.problem("dialect", "refuses late retries by their dates, so that `replay.until` has no use");
    }
    let ttl = section.parsed("ttl", parse_ttl);
    if until >= ttl {
        let (until, ttl) = (show_duration(until), show_duration(ttl));
        let message =
            format!("`replay.until` ({until}) must be shorter than `ttl` ({ttl}): redeliveries are told until then");
        section.conflict(&["ttl"], message);
    }
    Some(ttl.saturating_sub(until).max(Duration::from_secs(1)))
}

/// Reads the fields that each request has on the way out. Their values are secrets.
fn read_set_headers(section: &Section<'_>) -> Arc<[(HeaderName, HeaderValue)]> {
    let parse = |name: &str, value: &str| {
        let name = header_name(name)?;
        if is_of_connection(&name) || name.as_str().starts_with("oncegate-") {
            return Err("is a field of the connection, or of Oncegate's own".into());
        }
        let mut value = HeaderValue::from_str(value).map_err(|_| "is no value of a field".to_owned())?;
        value.set_sensitive(true);
        Ok((name, value))
    };
    section.fields("set_headers", parse).into()
}

/// Reads the status of an accepted request. Senders of webhooks take other successes than 202 for success only.
fn read_accepted(section: &Section<'_>) -> StatusCode {
    let status: u16 = section.integer("accepted", 200..=203, "these are the successes whose answer has a body");
    StatusCode::from_u16(status).expect("these are statuses")
}

/// Reads the places of the values by which keys are looked up.
fn read_index(section: &Section<'_>) -> Vec<Place> {
    let parse = |text: &str| match Place::parse(text)? {
        place if place.is_pattern() => Err("has a `*`: a value is one, in one place".to_owned()),
        place => Ok(place),
    };
    let places: Vec<Place> = section.values("index", parse);
    if places.iter().enumerate().any(|(at, place)| places[..at].contains(place)) {
        section.problem("index", "names a place twice");
    }
    if places.len() > LOOKUPS_MAX {
        section.problem("index", format!("has more than {LOOKUPS_MAX} places: each costs every first attempt"));
    }
    places
}

/// Reads the operations that a route guards. Without JSON-RPC, the method and the path are the operation.
fn read_operations(section: &Section<'_>) -> Vec<String> {
    let empty = "is empty: write the name of a method, like `tools/call`";
    let operations: Vec<String> = section.values("operations", |text| not_empty(text, empty));
    if !operations.is_empty() && !section.choice::<Dialect>("dialect").is_jsonrpc() {
        let message = "counts only in a dialect of JSON-RPC: `jsonrpc`, `mcp`, `a2a` or `ucp`";
        section.conflict(&["operations", "dialect"], message);
    }
    operations
}

/// Reads the names of the warnings that are meant.
pub(super) fn read_allowed(section: &Section<'_>) -> Vec<&'static str> {
    read_lints(section, "allow")
}

/// Reads names of warnings.
pub(super) fn read_lints(section: &Section<'_>, name: &str) -> Vec<&'static str> {
    section.choices::<Lint>(name).into_iter().map(Word::word).collect()
}

/// Parses a host, in lower case and without a dot at its end. Requests are matched without their port.
pub(super) fn parse_host(text: &str) -> Result<Box<str>, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    match text.parse::<Authority>() {
        // The URI grammar has it, and it would be the name of no host.
        _ if text.contains('*') => Err("has a `*`: a host is matched whole, so write each".into()),
        Ok(authority) if authority.host() == text && !name.is_empty() => Ok(name.to_ascii_lowercase().into()),
        _ => Err("is no host: write `api.example.com`, without a port".into()),
    }
}

pub(super) fn parse_name(text: &str) -> Result<Arc<str>, String> {
    let wrong = "is no name: write 1 to 64 letters, digits, `_`, `.` and `-`, as in `create-payment`";
    name(text, 64, is_of_name, wrong)
}

fn parse_body_size(text: &str) -> Result<usize, String> {
    match parse_size(text)? {
        0 => Err("leaves no room for any body".into()),
        bytes if bytes > BODY_BYTES_MAX as u64 => {
            Err("is too much: bodies are held in memory and stored whole; write `64MiB` at most".into())
        }
        bytes => usize::try_from(bytes).map_err(|_| "is more than this machine can address".into()),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::key_doc::ValueKind;
    use oncegate_settings::ROUTE_SETTINGS;

    #[test]
    fn each_key_of_a_route_is_part_of_a_setting() {
        let mut described: BTreeSet<String> = BTreeSet::new();
        for (label, keys, _) in ROUTE_SETTINGS {
            for key in *keys {
                assert!(described.insert((*key).to_owned()), "{label} has `{key}`, which another setting has");
            }
        }
        let mut check = |key: String| assert!(described.remove(&key), "{key} is part of no setting");
        for key in RouteKeys::KEYS.iter().filter(|key| key.name != "name") {
            let is_whole = ROUTE_SETTINGS.iter().any(|(_, keys, _)| keys.contains(&key.name));
            match key.kind {
                ValueKind::Table(keys) if !is_whole => {
                    keys.iter().for_each(|part| check(format!("{}.{}", key.name, part.name)));
                }
                _ => check(key.name.to_owned()),
            }
        }
        // The upstream is a key of the route's service.
        assert_eq!(described.into_iter().collect::<Vec<_>>(), ["upstream"]);
    }
}
