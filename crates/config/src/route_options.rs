//! The options of a route.

use std::sync::Arc;
use std::time::Duration;

use http::Method;
use http::uri::Authority;

use super::authorize::ReplayOptions;
use super::cors::CorsOptions;
use super::delivery::{self, DeliveryMode, RetryOptions};
use super::dialect::{self, Dialect};
use super::fingerprint::FingerprintOptions;
use super::key::{self, ForwardKey, KeyOptions, KeyRule, parse_forward_key};
use super::key_doc::KeyDoc;
use super::kind::RouteKind;
use super::limits::CallerLimits;
use super::lint::Lint;
use super::options::options;
use super::outcome::{self, OutcomeOptions};
use super::problem::ParseResult;
use super::reader::Section;
use super::reconcile::ReconcileOptions;
use super::upstream_tls::UpstreamTlsOptions;
use super::words::{Word, words};
use super::{methods, units};
use oncegate_domain::outcome_rules::OutcomeRules;
use oncegate_domain::response_policy::OnUnknown;
use oncegate_domain::retry::RetryPolicy;
use oncegate_domain::route_table::Spelling;

/// Many bodies are in memory at once, and each is written to a database.
pub const BODY_BYTES_MAX: usize = 64 << 20;

/// With a shorter one, a retry would find its key forgotten.
const TTL_MIN: Duration = Duration::from_secs(1);

/// A year and its leap day: a longer one only makes the store larger.
const TTL_MAX: Duration = Duration::from_secs(366 * 86_400);

words! {
    /// The space in which a key is unique.
    pub enum KeySpace {
        /// The method and the path, however it is spelled, without the query.
        Path = "path",
        /// The route.
        Route = "route",
        /// The whole service.
        Service = "service",
    }
}

words! {
    /// Whether a route guards.
    pub enum RouteMode {
        /// It guards.
        Enforce = "enforce",
        /// It forwards, and counts what guarding would have done.
        Observe = "observe",
        /// It forwards its requests as streams.
        Off = "off",
    }
}

impl RouteMode {
    /// The name in the configuration.
    pub fn name(self) -> &'static str {
        self.word()
    }
}

words! {
    /// The response to a duplicate while the first attempt runs.
    pub enum InFlightPolicy {
        /// 409.
        Conflict = "conflict",
        /// The first attempt's answer, if it comes in time.
        Wait = "wait",
        /// 202.
        Accepted = "accepted",
    }
}

words! {
    /// The handling of a request whose key the store cannot reserve.
    pub enum StoreDownPolicy {
        /// 503.
        Reject = "reject",
        /// It is forwarded unguarded.
        Bypass = "bypass",
    }
}

words! {
    /// The handling of a request that equals an earlier one of the same caller under another key.
    pub enum SameBodyPolicy {
        /// Nothing is noted.
        Allow = "allow",
        /// A metric, a log line and a line on the page.
        Warn = "warn",
        /// 409, until the client confirms that it is another operation.
        Refuse = "refuse",
    }
}

words! {
    /// The response to a retry past the TTL.
    pub enum AfterTtl {
        /// Another execution.
        Forget = "forget",
        /// 410.
        Refuse = "refuse",
    }
}

words! {
    /// Whether the first client gets the bytes of a response before the response is stored.
    pub enum StreamMode {
        /// Responses that are streams by their media type, and slow ones without a length.
        Auto = "auto",
        /// All responses.
        Always = "always",
        /// No response that can be stored.
        Never = "never",
    }
}

words! {
    /// The end of an attempt whose client has left.
    pub enum OnClientGone {
        /// It runs on, and its response is stored.
        Continue = "continue",
        /// The connection to the service is closed, and the key is unknown.
        Cancel = "cancel",
    }
}

options! {
    /// The options of `[[routes]]`. The setting that an option is part of is described in `route_settings`.
    #[derive(Clone, Debug)]
    pub struct RouteOptions {
        /// names the route in logs, metrics and the operators' tools
        name: Text;
        /// earlier names of the route, the oldest first, whose stored keys it takes over
        was: Texts = [] as "was";
        /// `{name}` is one segment, `{*rest}` the rest; the most specific route wins
        path: Text as "matches";
        /// the methods that are guarded
        methods: Texts = ["POST", "PATCH"] as "matches" => Vec<Method>, made(methods::read);
        /// requests for this host only; empty for every host
        host: Text = "" as "matches" => Option<Box<str>>, optional(parse_host);
        /// another spelling of the route's path, such as `//` for `/`: answer 400, guard it alike, or let it pass
        spelling: Choice(Spelling::WORDS) = "refuse" as "spelling" => Spelling, choice();
        /// `observe` neither refuses nor delays because of a key, and counts what `enforce` would do
        mode: Choice(RouteMode::WORDS) = "enforce" as "mode" => RouteMode, choice();
        /// the service of the requests that the route matches, by method too; empty for the one at the top
        upstream: Text = "" as "upstream";
        /// what an execution costs: `money` requires keys, and no 5xx counts as "not executed"; a preset of other keys
        kind: Choice(RouteKind::WORDS) = "standard" as "kind" => RouteKind, choice();
        /// the convention of an API: a preset of the other keys, and the form of Oncegate's own answers
        dialect: Choice(Dialect::WORDS) = "ietf" as "dialect" => Dialect, choice();
        /// for JSON-RPC: the operations that are guarded, each `METHOD`, or `METHOD NAME` for one tool; empty for all
        operations: Texts = [] as "operations" => Vec<String>, made(dialect::read_operations);
        /// the place and the syntax of a request's key
        key: Table(KeyOptions::KEYS) = {} as "key" => KeyRule, inner(key::read);
        /// the parts of a request that identify its caller: authorization, jwt:CLAIM, client-cert, header:NAME,
        /// cookie:NAME, query:NAME or none; `?` marks optional ones
        scope: Texts = ["authorization?", "header:x-api-key?"] as "scope";
        /// the `WWW-Authenticate` of a 401 to a keyed request without credentials; empty for 400
        challenge: Text = "" as "challenge";
        /// the space in which a key is unique
        space: Choice(KeySpace::WORDS) = "path" as "space" => KeySpace, choice();
        /// what makes two requests the same
        fingerprint: Table(FingerprintOptions::KEYS) = {} as "fingerprint";
        /// the response to a duplicate while the first attempt runs: 409, that attempt's response, or 202
        in_flight: Choice(InFlightPolicy::WORDS) = "conflict" as "in flight" => InFlightPolicy, choice();
        /// for `wait`, and the ceiling of a client's `Prefer: wait=N`
        wait_timeout: Duration = "10s" as "in flight" => Duration, duration_above_zero();
        /// a request that equals one of the same caller under another key: allow it, count and log it, or answer 409
        same_body: Choice(SameBodyPolicy::WORDS) = "warn" as "same body" => SameBodyPolicy, choice();
        /// the time for which an instance remembers requests for `same_body`
        same_body_window: Duration = "10m" as "same body" => Duration, duration_above_zero();
        /// TLS towards the route's services; keys that it lacks are the top's
        upstream_tls: Table(UpstreamTlsOptions::KEYS) = {} as "upstream tls";
        /// the time limit for connecting to the upstream
        connect_timeout: Duration = "2s" as "timeouts" => Duration, made(read_connect_timeout);
        /// the time limit for the upstream's whole response; for one that streams, until its beginning
        upstream_timeout: Duration = "30s" as "timeouts" => Duration, duration_above_zero();
        /// how long an unused connection to the upstream is kept
        upstream_idle_timeout: Duration = "2s" as "timeouts" => Duration, duration_above_zero();
        /// the first client reads while the response is being stored: event streams and other streams, and what has no
        /// length and takes long; all responses; or none
        stream: Choice(StreamMode::WORDS) = "auto" as "stream" => StreamMode, choice();
        /// how long a service may send nothing within a response that streams
        stream_idle_timeout: Duration = "60s" as "stream" => Duration, duration_above_zero();
        /// the time limit for a whole response that streams
        stream_timeout: Duration = "1h" as "stream" => Duration, duration_above_zero();
        /// when the client leaves: let the attempt run on, or close the connection to the service, which makes the key
        /// unknown
        on_client_gone: Choice(OnClientGone::WORDS) = "continue" as "stream" => OnClientGone, choice();
        /// responses that are stored and replayed
        store_statuses: Texts = ["2xx", "3xx", "4xx"] as "stored";
        /// responses after which a retry is executed again
        release_statuses: Texts = ["307", "308", "401", "403", "407", "408", "412", "417", "421", "423", "425", "426",
            "428", "429", "431", "451", "5xx"] as "released";
        /// responses after which it is not known whether the request was executed
        unknown_statuses: Texts = ["424", "499", "502", "504", "520", "522", "524"] as "unknown";
        /// what a JSON body means; the first rule that matches decides
        outcome: Tables(OutcomeOptions::KEYS) = [] as "outcome" => Arc<OutcomeRules>, made(outcome::read);
        /// the response to a retry of an unknown outcome: a refusal, or the next attempt
        on_unknown: Choice(OnUnknown::WORDS) = "hold" as "on unknown" => OnUnknown, choice();
        /// how long a key is remembered from its completion
        ttl: Duration = "24h" as "ttl" => Duration, parsed(parse_ttl);
        /// the response to a retry past the ttl: another execution, or 410
        after_ttl: Choice(AfterTtl::WORDS) = "forget" as "ttl";
        /// for `refuse`: how long past the ttl a key is remembered
        remember: Duration = "30d" as "ttl" => Option<Duration>, made(read_remember);
        /// a larger request is refused
        max_request_body: Size = "1MiB" as "bodies" => usize, parsed(parse_body_size);
        /// a larger response reaches the first client and is not kept
        max_response_body: Size = "1MiB" as "bodies" => usize, parsed(parse_body_size);
        /// for a request whose key the store cannot reserve: answer 503, or forward it unguarded
        store_down: Choice(StoreDownPolicy::WORDS) = "reject" as "store down" => StoreDownPolicy, choice();
        /// refuse requests whose Repeatability-First-Sent or Date is older; empty for any
        max_age: Text = "" as "ttl" => Option<Duration>, optional(units::parse_duration);
        /// the key towards the service: `same`, `none` or `derive:STEP`
        forward_key: Text = "same" as "forwarded as" => ForwardKey, parsed(parse_forward_key);
        /// answer at once, or accept with 202 and deliver later: always, or for clients that send
        /// `Prefer: respond-async`
        delivery: Choice(DeliveryMode::WORDS) = "sync" as "delivered" => DeliveryMode, choice();
        /// how often, and how long, an accepted request is tried
        retry: Table(RetryOptions::KEYS) = {} as "delivered" => RetryPolicy, inner(delivery::read);
        /// the new keys of each caller
        limits: Table(CallerLimits::KEYS) = {} => CallerLimits, inner(CallerLimits::read);
        /// the content of a replay
        replay: Table(ReplayOptions::KEYS) = {} => ReplayOptions, inner(ReplayOptions::read);
        /// the origins whose pages may read refusals and replays
        cors: Table(CorsOptions::KEYS) = {} as "cors";
        /// how the service is asked about an unknown outcome
        reconcile: Table(ReconcileOptions::KEYS) = {};
        /// the warnings about the route that are meant, by their names
        allow: Texts = [] as "allowed" => Vec<Lint>, choices();
    }
}

/// The options of `[defaults]`: those of a route but `name`, `was` and `path`, which make a route itself.
pub(super) const DEFAULTS: &[KeyDoc] = RouteOptions::KEYS.split_at(3).1;

/// Reads `connect_timeout`. As a default it gives way to a short `upstream_timeout`.
fn read_connect_timeout(section: &Section<'_>) -> Duration {
    let [connect, whole] = ["connect_timeout", "upstream_timeout"].map(|name| section.duration_above_zero(name));
    if connect >= whole && section.position("connect_timeout").is_written() {
        let (connect, whole) = (units::show_duration(connect), units::show_duration(whole));
        let message = format!(
            "`connect_timeout` ({connect}) must be shorter than `upstream_timeout` ({whole}): if both ran out at once, it \
             would not be known whether the request was sent"
        );
        section.conflict(&["connect_timeout", "upstream_timeout"], message);
    }
    connect.min(whole.mul_f64(0.9))
}

/// Reads for how long past its TTL a completed key is remembered, to refuse late retries; `None` to forget it.
fn read_remember(section: &Section<'_>) -> Option<Duration> {
    let (after_ttl, remember) = (section.choice::<AfterTtl>("after_ttl"), section.duration_above_zero("remember"));
    (after_ttl == AfterTtl::Refuse).then_some(remember)
}

/// Parses how long a key is remembered: from a second to a year.
pub fn parse_ttl(text: &str) -> ParseResult<Duration> {
    match units::parse_duration(text)? {
        ttl if ttl < TTL_MIN => Err("is too short: a retry would find its key forgotten; write `1s` at least".into()),
        ttl if ttl > TTL_MAX => Err("is too long: write `366d` at most".into()),
        ttl => Ok(ttl),
    }
}

/// Parses a host, in lower case and without a dot at its end. Requests are matched without their port.
pub(super) fn parse_host(text: &str) -> Result<Box<str>, String> {
    let name = text.strip_suffix('.').unwrap_or(text);
    match text.parse::<Authority>() {
        Ok(authority) if authority.host() == text && !name.is_empty() => Ok(name.to_ascii_lowercase().into()),
        _ => Err("is no host: write `api.example.com`, without a port".into()),
    }
}

pub(super) fn parse_name(text: &str) -> Result<Arc<str>, String> {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte);
    if (1..=64).contains(&text.len()) && text.bytes().all(word) {
        return Ok(text.into());
    }
    Err("is no name: write 1 to 64 letters, digits, `_`, `.` and `-`, as in `create-payment`".into())
}

fn parse_body_size(text: &str) -> Result<usize, String> {
    match units::parse_size(text)? {
        0 => Err("leaves no room for any body".into()),
        bytes if bytes > BODY_BYTES_MAX as u64 => {
            Err("is too much: bodies are held in memory and stored whole; write `64MiB` at most".into())
        }
        bytes => usize::try_from(bytes).map_err(|_| "is more than this machine can address".into()),
    }
}
