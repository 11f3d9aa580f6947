//! All keys of the file: the only place that has each key's name, kind, default and meaning.
//!
//! The reader and the JSON Schema take the keys and their defaults from here. To add a key, add a line here and read it
//! where its table is read; the tests below fail until both are done.

/// A key of a table.
#[derive(Clone, Copy, Debug)]
pub struct KeyDoc {
    /// The name in the file.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: ValueKind,
    /// The default, as TOML; `None` for a key that must be written.
    pub default: Option<&'static str>,
    /// Its meaning, in one line.
    pub about: &'static str,
}

/// The kind of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text such as `30s`.
    Duration,
    /// A whole number.
    Integer,
    /// A text, a number or a boolean.
    Scalar,
    /// A text such as `64KiB`.
    Size,
    /// A table with these keys.
    Table(&'static [KeyDoc]),
    /// Any number of tables with these keys.
    Tables(&'static [KeyDoc]),
    /// A text whose form `about` describes.
    Text,
    /// A list of such texts.
    Texts,
    /// Such a text, or a list of them.
    TextOrTexts,
}

impl KeyDoc {
    const fn new(name: &'static str, kind: ValueKind, default: &'static str, about: &'static str) -> Self {
        Self { name, kind, default: Some(default), about }
    }

    const fn required(name: &'static str, kind: ValueKind, about: &'static str) -> Self {
        Self { name, kind, default: None, about }
    }
}

use ValueKind::{Boolean, Choice, Duration, Integer, Scalar, Size, Table, Tables, Text, TextOrTexts, Texts};

/// The keys of the file itself.
pub const TOP: &[KeyDoc] = &[
    KeyDoc::new("listen", Text, r#""127.0.0.1:8080""#, "address and port for clients"),
    KeyDoc::required(
        "upstream",
        Text,
        "the service, as `http://host:port` or `https://host:port` (or `--upstream`, or ONCEGATE_UPSTREAM)",
    ),
    KeyDoc::new("service", Text, r#""default""#, "keeps services that share a database apart; part of every key"),
    KeyDoc::new(
        "secret",
        Text,
        r#""${ONCEGATE_SECRET:-}""#,
        "keys the fingerprints' HMAC and encrypts the salt of the scopes; empty for neither",
    ),
    KeyDoc::new("previous_secrets", Texts, "[]", "earlier secrets, still read while keys made under them live"),
    KeyDoc::new(
        "trusted_proxies",
        Texts,
        r#"["127.0.0.0/8", "::1"]"#,
        "networks whose forwarding fields and `header:` scope parts are believed",
    ),
    KeyDoc::new(
        "unguarded",
        Choice(&["pass", "refuse"]),
        r#""pass""#,
        "state-changing requests that no route guards: let them through, or answer 403",
    ),
    KeyDoc::new("drain_delay", Duration, r#""0s""#, "between failing /readyz and closing the listener"),
    KeyDoc::new("drain_timeout", Duration, r#""40s""#, "how long running attempts may take to finish at shutdown"),
    KeyDoc::new("problem_base", Text, r#""/.oncegate/problems/""#, "the URI before the slug in a problem's `type`"),
    KeyDoc::new("cors", Table(CORS), "{}", "the origins whose pages may read answers that no route owns"),
    KeyDoc::new("tls", Table(TLS), "{}", "TLS towards clients; absent for cleartext"),
    KeyDoc::new("upstream_tls", Table(UPSTREAM_TLS), "{}", "TLS towards `https://` services"),
    KeyDoc::new("jwt", Table(JWT), "{}", "the issuer of callers' tokens, for `jwt:CLAIM` parts of scopes"),
    KeyDoc::new("limits", Table(LIMITS), "{}", "the bounds on what clients can hold"),
    KeyDoc::new("admin", Table(ADMIN), "{}", "the operators' listener"),
    KeyDoc::new("store", Table(STORE), "{}", "where keys are kept"),
    KeyDoc::new("cache", Table(CACHE), "{}", "completed responses outside the store, for replays"),
    KeyDoc::new("telemetry", Table(TELEMETRY), "{}", "logs and traces of the proxy itself"),
    KeyDoc::new("defaults", Table(DEFAULTS), "{}", "fields for each route that does not write them itself"),
    KeyDoc::new("routes", Tables(ROUTE), "[]", "which requests are guarded, and how"),
    KeyDoc::new("consumers", Tables(CONSUMER), "[]", "queues whose messages are requests of a route"),
];

/// The keys of `cors`.
pub const CORS: &[KeyDoc] = &[
    KeyDoc::new("origins", Texts, "[]", "origins as `https://shop.example`, or `*` for any"),
    KeyDoc::new("credentials", Boolean, "false", "whether pages of these origins may send cookies"),
];

/// The keys of `[tls]`.
pub const TLS: &[KeyDoc] = &[
    KeyDoc::new("certificate", Text, r#""""#, "a PEM file: the certificate, and behind it those up to its authority"),
    KeyDoc::new("key", Text, r#""""#, "a PEM file: the certificate's private key"),
    KeyDoc::new(
        "client_ca",
        Text,
        r#""""#,
        "a PEM file: the authorities of clients' certificates; empty to ask for none",
    ),
    KeyDoc::new(
        "client",
        Choice(&["required", "optional"]),
        r#""required""#,
        "a client without a certificate: refuse its connection, or serve it",
    ),
];

/// The keys of `upstream_tls`.
pub const UPSTREAM_TLS: &[KeyDoc] = &[
    KeyDoc::new("ca", Text, r#""""#, "a PEM file: the authorities of services' certificates; empty for the system's"),
    KeyDoc::new("certificate", Text, r#""""#, "a PEM file: the certificate that is shown to services, and its chain"),
    KeyDoc::new("key", Text, r#""""#, "a PEM file: that certificate's private key"),
    KeyDoc::new(
        "server_name",
        Text,
        r#""""#,
        "the name that a service's certificate must be for; empty for the URL's host",
    ),
];

/// The keys of `[jwt]`.
pub const JWT: &[KeyDoc] = &[
    KeyDoc::new("issuer", Text, r#""""#, "the `iss` of the tokens; part of the scope"),
    KeyDoc::new("audience", TextOrTexts, "[]", "the `aud` of the tokens: one of these"),
    KeyDoc::new("jwks", Text, r#""""#, "the issuer's keys (RFC 7517): a file, or a URL that is read every 5 minutes"),
    KeyDoc::new(
        "algorithms",
        Texts,
        r#"["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "EdDSA"]"#,
        "the `alg` that tokens may have",
    ),
    KeyDoc::new("leeway", Duration, r#""30s""#, "how far the issuer's clock may be from this machine's"),
];

/// The keys of `[limits]`.
pub const LIMITS: &[KeyDoc] = &[
    KeyDoc::new("connections", Integer, "8192", "connections of clients; fewer where file descriptors are short"),
    KeyDoc::new("connections_per_peer", Integer, "0", "connections of one peer address; 0 for no limit"),
    KeyDoc::new(
        "held_bodies",
        Size,
        r#""96MiB""#,
        "bodies in memory, and as much again for responses that clients have not read; beyond it, requests get 503 overloaded",
    ),
    KeyDoc::new("body_rate", Size, r#""512B""#, "a second, over any 10 s; a slower request body is refused"),
    KeyDoc::new("upstream_connections", Integer, "512", "connections to one upstream; beyond, requests wait"),
];

/// The keys of `[admin]`.
pub const ADMIN: &[KeyDoc] = &[
    KeyDoc::new("listen", Text, r#""127.0.0.1:8081""#, "address and port for operators and probes"),
    KeyDoc::new("token", Text, r#""""#, "the token that operators present; needed unless the listener is loopback"),
    KeyDoc::new("read_token", Text, r#""""#, "a token that may look and not change"),
    KeyDoc::new("token_file", Text, r#""""#, "the file for a token that the first start draws, if there is no `token`"),
    KeyDoc::new("open", Boolean, "false", "ask for no token: everybody on this machine is an operator"),
];

/// The keys of `[store]`.
pub const STORE: &[KeyDoc] = &[
    KeyDoc::new("url", Text, r#""sqlite:oncegate.db""#, "`sqlite:PATH`, `postgres://…` or `memory:`"),
    KeyDoc::new("max_connections", Integer, "8", "the most connections to PostgreSQL"),
    KeyDoc::new("timeout", Duration, r#""2s""#, "for any one store operation"),
    KeyDoc::new("migrate", Boolean, "true", "bring an old schema up to date at start, rather than refuse it"),
    KeyDoc::new("distribute", Boolean, "false", "distribute the keys of a new store over the nodes of a Citus cluster"),
    KeyDoc::new("encrypt", Boolean, "false", "encrypt stored responses with `secret`"),
    KeyDoc::new("lease", Table(LEASE), "{}", "an instance's right to run attempts"),
    KeyDoc::new("sweep_every", Duration, r#""5s""#, "how often lapsed leases are looked for"),
    KeyDoc::new("reap_every", Duration, r#""60s""#, "how often keys past their ttl are deleted"),
];

/// The keys of `store.lease`.
pub const LEASE: &[KeyDoc] = &[
    KeyDoc::new("heartbeat", Duration, r#""2s""#, "how often an instance renews its lease"),
    KeyDoc::new("expiry", Duration, r#""10s""#, "how long a lease lives without being renewed"),
];

/// The keys of `[cache]`.
pub const CACHE: &[KeyDoc] = &[
    KeyDoc::new(
        "memory",
        Size,
        r#""64MiB""#,
        "how much of them is kept, so that a replay need not read the store; `0B` keeps none",
    ),
    KeyDoc::new(
        "redis",
        Text,
        r#""""#,
        "a Redis or Valkey server that shares them between instances, as `redis://user:password@host:6379/0`, or `rediss://` \
         for TLS; empty for none",
    ),
];

/// The keys of `[telemetry]`.
pub const TELEMETRY: &[KeyDoc] = &[
    KeyDoc::new("log", Text, r#""info""#, "the events that are logged: a level, or `info,oncegate=debug`"),
    KeyDoc::new("format", Choice(&["auto", "text", "json"]), r#""auto""#, "`auto` is text on a terminal, else json"),
    KeyDoc::new("otlp", Text, r#""""#, "an OpenTelemetry collector: `http://host:4317`, or a path behind it for HTTP"),
];

/// The keys of `[[routes]]`.
pub const ROUTE: &[KeyDoc] = &[
    KeyDoc::required("name", Text, "names the route in logs, metrics and the operators' tools"),
    KeyDoc::new("was", Texts, "[]", "earlier names of the route, the oldest first, whose stored keys it takes over"),
    KeyDoc::required("path", Text, "`{name}` is one segment, `{*rest}` the rest; the most specific route wins"),
    KeyDoc::new("methods", Texts, r#"["POST", "PATCH"]"#, "the methods that are guarded"),
    KeyDoc::new("host", Text, r#""""#, "requests for this host only; empty for every host"),
    KeyDoc::new(
        "spelling",
        Choice(&["refuse", "same", "pass"]),
        r#""refuse""#,
        "another spelling of the route's path, such as `//` for `/`: answer 400, guard it alike, or let it pass",
    ),
    KeyDoc::new(
        "mode",
        Choice(&["enforce", "observe", "off"]),
        r#""enforce""#,
        "`observe` neither refuses nor delays because of a key, and counts what `enforce` would do",
    ),
    KeyDoc::new("upstream", Text, r#""""#, "the route's own service; empty for the one at the top"),
    KeyDoc::new(
        "dialect",
        Choice(&["ietf", "stripe", "repeatability", "acp", "graphql"]),
        r#""ietf""#,
        "the convention of an API: a preset of the other keys, and the form of Oncegate's own answers",
    ),
    KeyDoc::new("key", Table(KEY), "{}", "the place and the syntax of a request's key"),
    KeyDoc::new(
        "scope",
        Texts,
        r#"["authorization?", "header:x-api-key?"]"#,
        "the parts of a request that identify its caller: authorization, jwt:CLAIM, client-cert, header:NAME, cookie:NAME, query:NAME or none; `?` marks optional ones",
    ),
    KeyDoc::new(
        "challenge",
        Text,
        r#""""#,
        "the `WWW-Authenticate` of a 401 to a keyed request without credentials; empty for 400",
    ),
    KeyDoc::new("space", Choice(&["path", "route", "service"]), r#""path""#, "the space in which a key is unique"),
    KeyDoc::new("fingerprint", Table(FINGERPRINT), "{}", "what makes two requests the same"),
    KeyDoc::new(
        "in_flight",
        Choice(&["conflict", "wait", "accepted"]),
        r#""conflict""#,
        "the response to a duplicate while the first attempt runs: 409, that attempt's response, or 202",
    ),
    KeyDoc::new("wait_timeout", Duration, r#""10s""#, "for `wait`, and the ceiling of a client's `Prefer: wait=N`"),
    KeyDoc::new(
        "upstream_tls",
        Table(UPSTREAM_TLS),
        "{}",
        "TLS towards the route's services; keys that it lacks are the top's",
    ),
    KeyDoc::new("connect_timeout", Duration, r#""2s""#, "the time limit for connecting to the upstream"),
    KeyDoc::new("upstream_timeout", Duration, r#""30s""#, "the time limit for the upstream's whole response"),
    KeyDoc::new("upstream_idle_timeout", Duration, r#""2s""#, "how long an unused connection to the upstream is kept"),
    KeyDoc::new("store_statuses", Texts, r#"["2xx", "3xx", "4xx"]"#, "responses that are stored and replayed"),
    KeyDoc::new(
        "release_statuses",
        Texts,
        r#"["307", "308", "401", "403", "407", "408", "412", "417", "421", "423", "425", "426", "428", "429", "431", "451", "5xx"]"#,
        "responses after which a retry is executed again",
    ),
    KeyDoc::new(
        "unknown_statuses",
        Texts,
        r#"["424", "499", "502", "504", "520", "522", "524"]"#,
        "responses after which it is not known whether the request was executed",
    ),
    KeyDoc::new("outcome", Tables(OUTCOME), "[]", "what a JSON body means; the first rule that matches decides"),
    KeyDoc::new(
        "on_unknown",
        Choice(&["hold", "retry", "retry-when-quiet"]),
        r#""hold""#,
        "the response to a retry of an unknown outcome: a refusal, or the next attempt",
    ),
    KeyDoc::new("ttl", Duration, r#""24h""#, "how long a key is remembered from its completion"),
    KeyDoc::new(
        "after_ttl",
        Choice(&["forget", "refuse"]),
        r#""forget""#,
        "the response to a retry past the ttl: another execution, or 410",
    ),
    KeyDoc::new("remember", Duration, r#""30d""#, "for `refuse`: how long past the ttl a key is remembered"),
    KeyDoc::new("max_request_body", Size, r#""1MiB""#, "a larger request is refused"),
    KeyDoc::new("max_response_body", Size, r#""1MiB""#, "a larger response reaches the first client and is not kept"),
    KeyDoc::new(
        "store_down",
        Choice(&["reject", "bypass"]),
        r#""reject""#,
        "for a request whose key the store cannot reserve: answer 503, or forward it unguarded",
    ),
    KeyDoc::new(
        "max_age",
        Text,
        r#""""#,
        "refuse requests whose Repeatability-First-Sent or Date is older; empty for any",
    ),
    KeyDoc::new("forward_key", Text, r#""same""#, "the key towards the service: `same`, `none` or `derive:STEP`"),
    KeyDoc::new(
        "delivery",
        Choice(&["sync", "async", "prefer"]),
        r#""sync""#,
        "answer at once, or accept with 202 and deliver later: always, or for clients that send `Prefer: respond-async`",
    ),
    KeyDoc::new("retry", Table(RETRY), "{}", "how often, and how long, an accepted request is tried"),
    KeyDoc::new("limits", Table(KEY_LIMITS), "{}", "the new keys of each caller"),
    KeyDoc::new("replay", Table(REPLAY), "{}", "the content of a replay"),
    KeyDoc::new("cors", Table(CORS), "{}", "the origins whose pages may read refusals and replays"),
    KeyDoc::new("reconcile", Table(RECONCILE), "{}", "how the service is asked about an unknown outcome"),
];

/// The keys of `[defaults]`: those of a route but `name`, `was` and `path`, which make a route itself.
pub const DEFAULTS: &[KeyDoc] = ROUTE.split_at(3).1;

/// The keys of a route's `key`.
pub const KEY: &[KeyDoc] = &[
    KeyDoc::new(
        "header",
        TextOrTexts,
        r#""Idempotency-Key""#,
        "the request field that carries the key; of several, the first that is present",
    ),
    KeyDoc::new("query", Text, r#""""#, "the query parameter that carries the key"),
    KeyDoc::new("form", Text, r#""""#, "the field of a form body that carries the key"),
    KeyDoc::new("body", Text, r#""""#, "the JSON Pointer to the key in a JSON body"),
    KeyDoc::new("required", Boolean, "false", "refuse a request without a key, rather than pass it unguarded"),
    KeyDoc::new("min_length", Integer, "1", "the shortest key, in characters"),
    KeyDoc::new("max_length", Integer, "255", "the longest key, in characters"),
    KeyDoc::new(
        "syntax",
        Choice(&["ietf", "sf-string", "opaque", "uuid"]),
        r#""ietf""#,
        "the syntax of a key: quoted or bare, quoted, any text, or a UUID",
    ),
];

/// The keys of a route's `fingerprint`.
pub const FINGERPRINT: &[KeyDoc] = &[
    KeyDoc::new(
        "body",
        Choice(&["auto", "json", "graphql", "form", "raw", "none"]),
        r#""auto""#,
        "how the body takes part",
    ),
    KeyDoc::new("query", Boolean, "true", "whether the query takes part"),
    KeyDoc::new("headers", Texts, "[]", "request fields that take part"),
    KeyDoc::new(
        "include",
        Texts,
        "[]",
        "JSON Pointers to the values of a JSON body that take part; empty for all; `*` for any",
    ),
    KeyDoc::new("exclude", Texts, "[]", "JSON Pointers to the values that do not take part"),
];

/// The keys of a rule in a route's `outcome`.
pub const OUTCOME: &[KeyDoc] = &[
    KeyDoc::required("pointer", Text, "the JSON Pointer that must lead to a value other than null; `*` for any name"),
    KeyDoc::new("equals", Scalar, r#""""#, "the text, number or boolean that must be there; empty for any value"),
    KeyDoc::new("without", Text, r#""""#, "a JSON Pointer that must lead to nothing, not even null; empty for none"),
    KeyDoc::required("is", Choice(&["store", "release", "unknown"]), "what the response then means for the attempt"),
];

/// The keys of a route's `replay`.
pub const REPLAY: &[KeyDoc] = &[
    KeyDoc::new("drop_headers", Texts, r#"["set-cookie"]"#, "response fields that are not kept for replays"),
    KeyDoc::new("authorize", Text, r#""""#, "a URL that is asked before each replay whether the caller may read it"),
    KeyDoc::new("authorize_cache", Duration, r#""0s""#, "for how long its permission counts"),
];

/// The keys of a route's `limits`.
pub const KEY_LIMITS: &[KeyDoc] = &[
    KeyDoc::new("new_keys_per_second", Integer, "0", "new keys of one caller; 0 for no limit"),
    KeyDoc::new("burst", Integer, "0", "new keys of one caller at once; 0 for those of one second"),
    KeyDoc::new("live_keys", Integer, "0", "live keys of one caller; 0 for no limit"),
];

/// The keys of a route's `retry`.
pub const RETRY: &[KeyDoc] = &[
    KeyDoc::new(
        "max_attempts",
        Integer,
        "10",
        "the number of attempts after which the key is dead: an operator must decide",
    ),
    KeyDoc::new("base", Duration, r#""1s""#, "the pause after the first attempt; doubled after each"),
    KeyDoc::new("cap", Duration, r#""10m""#, "the longest pause"),
    KeyDoc::new("give_up_after", Duration, r#""24h""#, "how long after its acceptance a request is tried"),
];

/// The keys of a route's `reconcile`.
pub const RECONCILE: &[KeyDoc] = &[
    KeyDoc::new(
        "url",
        Text,
        r#""""#,
        "the service's URL for the outcome of a key, with `{id}`, `{key}`, `{scope}`, `{route}`, `{path}`; empty for none",
    ),
    KeyDoc::new("after", Duration, r#""1m""#, "the time past a lease after which an attempt counts as over"),
    KeyDoc::new(
        "every",
        Duration,
        r#""30s""#,
        "the pause between the first two questions; doubled after each, up to an hour",
    ),
    KeyDoc::new("max_attempts", Integer, "10", "questions without a verdict before the key is given up"),
    KeyDoc::new("confirmations", Integer, "2", "how often in a row the service must answer 404 to be believed"),
];

/// The keys of `[[consumers]]`.
pub const CONSUMER: &[KeyDoc] = &[
    KeyDoc::required("amqp", Text, "the broker, as `amqp://user:password@host:5672/vhost`, or `amqps://` for TLS"),
    KeyDoc::required("queue", Text, "the queue whose messages are requests; it must exist"),
    KeyDoc::required(
        "route",
        Text,
        "the name of the route whose policy the messages have; they are posted to its path",
    ),
    KeyDoc::new(
        "key",
        Text,
        r#""header:x-idempotency-key""#,
        "the place of a message's key: `header:NAME` or `message-id`",
    ),
    KeyDoc::new(
        "prefetch",
        Integer,
        "64",
        "how many messages are unacknowledged at once, beside those of unknown outcome",
    ),
    KeyDoc::new(
        "path",
        Text,
        r#""""#,
        "for a route with `{name}` segments: `/orders/{x-order-id}`, by message headers",
    ),
    KeyDoc::new(
        "scope",
        Texts,
        r#"["header:x-tenant?"]"#,
        "the headers that tell callers apart: header:NAME of the message, or none",
    ),
    KeyDoc::new(
        "dead_letter_exchange",
        Text,
        r#""""#,
        "the exchange for messages that will never succeed; empty: they are rejected",
    ),
];

/// The table that has a key of this name, in words, if there is one.
pub(super) fn table_with(name: &str) -> Option<&'static str> {
    let tables = [
        ("at the top of the file, before the first table", TOP),
        ("in `[[routes]]` or `[defaults]`", DEFAULTS),
        ("in `[[routes]]`", ROUTE),
        ("in `[limits]`", LIMITS),
        ("in `[admin]`", ADMIN),
        ("in `[store]`", STORE),
        ("in `lease` of `[store]`", LEASE),
        ("in `[cache]`", CACHE),
        ("in `[telemetry]`", TELEMETRY),
        ("in `cors`", CORS),
        ("in `upstream_tls`", UPSTREAM_TLS),
        ("in a route's `key`", KEY),
        ("in a route's `fingerprint`", FINGERPRINT),
        ("in a rule of a route's `outcome`", OUTCOME),
        ("in a route's `replay`", REPLAY),
        ("in a route's `reconcile`", RECONCILE),
        ("in `[[consumers]]`", CONSUMER),
        ("in a route's `retry`", RETRY),
        ("in a route's `limits`", KEY_LIMITS),
    ];
    tables.into_iter().find(|(_, keys)| keys.iter().any(|key| key.name == name)).map(|(table, _)| table)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::ConfigProblems;
    use crate::config::environment::FakeEnvironment;
    use crate::config::{Overrides, load};

    /// Every key that is no table, with a file that gives it this value.
    fn files_with(value: impl Fn(&KeyDoc) -> Vec<String>) -> Vec<(String, String)> {
        fn walk(before: &str, keys: &[KeyDoc], found: &mut dyn FnMut(String, &KeyDoc)) {
            for key in keys {
                let path = format!("{before}{}", key.name);
                match key.kind {
                    Table(keys) => walk(&format!("{path}."), keys, found),
                    Tables(keys) => walk(&format!("{path}[0]."), keys, found),
                    _ => found(path, key),
                }
            }
        }
        let mut files = Vec::new();
        walk("", TOP, &mut |path, key| {
            for value in value(key) {
                let consumer = "amqp = 'amqp://b'\nqueue = 'q'\nroute = 'r'";
                // A rule is a table in a list, with the keys that it must have.
                let rule = path.split_once("outcome[0].").map(|(before, field)| {
                    let others =
                        [("pointer", "'/a'"), ("is", "'store'")].into_iter().filter(|(name, _)| *name != field);
                    let others: String = others.map(|(name, value)| format!("{name} = {value}, ")).collect();
                    (format!("{before}outcome"), format!("[{{ {others}{field} = {value} }}]"))
                });
                let (of, value) = rule.unwrap_or_else(|| (path.clone(), value));
                let file = match of.strip_prefix("routes[0].").or(of.strip_prefix("consumers[0].")) {
                    Some(field) if path.starts_with("consumers") => {
                        let others = consumer.lines().filter(|line| !line.starts_with(&format!("{field} =")));
                        let others: String = others.map(|line| format!("{line}\n")).collect();
                        let route = "[[routes]]\nname = 'r'\npath = '/'";
                        format!("{route}\n[[consumers]]\n{others}{field} = {value}")
                    }
                    None => format!("{of} = {value}"),
                    Some("name") => format!("[[routes]]\npath = '/'\nname = {value}"),
                    Some("path") => format!("[[routes]]\nname = 'r'\npath = {value}"),
                    Some(field) => format!("[[routes]]\nname = 'r'\npath = '/'\n{field} = {value}"),
                };
                let file = if path == "upstream" { file } else { format!("upstream = 'http://a'\n{file}") };
                // Requests that are stored encrypted need a secret.
                let file = match path.ends_with(".delivery") {
                    true => format!("secret = 'a secret of some length'\n{file}"),
                    false => file,
                };
                files.push((path.clone(), file));
            }
        });
        files
    }

    fn problems(file: &str) -> Option<ConfigProblems> {
        load(Some("f".as_ref()), &Overrides::default(), &FakeEnvironment::default().with_file("f", file)).err()
    }

    #[test]
    fn every_key_is_read_and_its_kind_is_checked() {
        for (path, file) in files_with(|_| vec!["1979-05-27".into()]) {
            let problems = problems(&file).expect(&file);
            assert!(
                problems.iter().any(|problem| problem.path == path && problem.message.starts_with("must be ")),
                "{path}: {problems}"
            );
        }
    }

    #[test]
    fn every_default_and_every_word_of_a_choice_is_accepted() {
        let values = |key: &KeyDoc| match key.kind {
            Choice(words) => words.iter().map(|word| format!("{word:?}")).collect(),
            _ => key.default.map(str::to_owned).into_iter().collect(),
        };
        for (path, file) in files_with(values) {
            assert_eq!(problems(&file), None, "{path}");
        }
    }

    #[test]
    fn defaults_has_every_key_of_a_route_but_its_names_and_path() {
        assert_eq!([ROUTE[0].name, ROUTE[1].name, ROUTE[2].name], ["name", "was", "path"]);
        assert!(ROUTE[3..].iter().map(|key| key.name).eq(DEFAULTS.iter().map(|key| key.name)));
    }
}
