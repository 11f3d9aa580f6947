//! Explains how the gate would treat a request: `oncegate explain`.

use std::borrow::Cow;
use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use data_encoding::HEXLOWER;
use futures_util::FutureExt;
use http::request;
use sha2::{Digest, Sha256};

use super::arrival::{Arrival, ArrivedRequest, BodySource, KeyedRequest};
use super::body_operation;
use super::caller_token::{CallerToken, TokenSource};
use super::fingerprinting::fingerprint_input;
use super::guarded_request::key_document_fields;
use super::identity::RequestIdentity;
use super::incoming::{Incoming, Realm, request_origin};
use super::route_search::{EvadedRoute, NO_SERVICE, RouteSearch, check_path, find_route};
use super::rules;
use super::scope::ScopeParts;
use crate::gate::routing::Router;
use crate::instance::instance_salt::InstanceSalts;
use crate::instance::latency::RouteLatencies;
use crate::instance::metrics::Metrics;
use oncegate_domain::differing_parts::DifferingParts;
use oncegate_domain::fingerprint::{Fingerprint, FingerprintInput, IncludedBody, IncludedContent, Recipe};
use oncegate_domain::ids::RecordId;
use oncegate_domain::normal_path::RequestPath;
use oncegate_domain::part_bits::{PartBits, PartKey, compare_parts};
use oncegate_domain::request_part::RequestPart;
use oncegate_domain::scope::{Salt, Scope};
use oncegate_http::downstream::client::ClientConnection;
use oncegate_http::protocol::answer_shape::{AnswerShape, RequestFormat};
use oncegate_http::protocol::fields::RequestOrigin;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::{Config, Route, RouteMode};
use oncegate_store::metrics::StoreMetrics;
use oncegate_trust::tls::CertificateName;

/// The route, key, scope and fingerprint of a request.
pub struct Explained {
    /// The route that guards the request; without one, the other fields are empty.
    pub route: Option<String>,
    /// The route's mode.
    pub mode: &'static str,
    /// The key, unquoted.
    pub key: Option<String>,
    /// The scope's parts. A value is shown as the beginning of its SHA-256; the proxy hashes it with its store's salt.
    pub scope: Vec<(String, Option<String>)>,
    /// The caller's hash and the record's id as the store has them, where its salt is known and the request has a key.
    pub stored: Option<(Scope, RecordId)>,
    /// The comparison with a record, where one was asked for.
    pub compared: Option<ComparedRequest>,
    /// The space in which the key is unique.
    pub space: String,
    /// The recipe of the fingerprint.
    pub recipe: String,
    /// The body as it enters the fingerprint.
    pub body: IncludedBody<'static>,
    /// The parts that count, by which a refused retry is told where it differs.
    pub parts: Vec<RequestPart<'static>>,
    key_fields: Vec<String>,
    /// The fingerprint, which a retry must have too.
    pub fingerprint: Option<Fingerprint>,
}

/// A request that a record was made for, as the store has it.
pub struct StoredRequest {
    /// The rules by which its fingerprint was made.
    pub recipe: Recipe,
    /// Its fingerprint.
    pub fingerprint: Fingerprint,
    /// The bits of its parts, where they are stored, and their key.
    pub parts: Option<(PartBits, PartKey)>,
}

/// A request beside the one that a record was made for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ComparedRequest {
    /// The secret of the record's fingerprint is gone.
    Impossible,
    /// The fingerprints are equal.
    Same,
    /// They differ, in these parts; `None` where the record has no bits of them.
    Different(Option<DifferingParts>),
}

impl Explained {
    /// The refusal of a retry under the same key; `None` where it is the same request.
    pub fn refuse_retry(&self, retry: &Self) -> Option<Refusal> {
        let holds_key = |part: &RequestPart<'_>| self.key_fields.contains(&part.place());
        let differing = || compare_parts(&self.parts, retry.parts.iter().cloned(), holds_key);
        (self.fingerprint != retry.fingerprint).then(|| Refusal::KeyReused(differing()))
    }
}

/// The refusal of an explained request.
pub struct ExplainedRefusal {
    /// Why the request is refused.
    pub refusal: Refusal,
    /// The form of the answer: the route's own, where one was found.
    pub answer_shape: AnswerShape,
}

impl From<Refusal> for ExplainedRefusal {
    /// The refusal of a request without a route.
    fn from(refusal: Refusal) -> Self {
        Self { refusal, answer_shape: AnswerShape::default() }
    }
}

/// The proofs of the caller's identity, which the command line gives.
pub struct ExplainedCaller {
    /// The request's token, verified, or the refusal of a request whose scope reads it.
    pub token: Result<CallerToken, Refusal>,
    /// The name in the client's certificate.
    pub certificate: Option<CertificateName>,
}

/// Explains a request as a proxy with this configuration would treat it, coming from a trusted peer.
///
/// # Errors
/// The refusal that the proxy would answer with before it asks the store.
pub fn explain(
    (only, config): (Option<&Arc<str>>, &Config),
    head: &request::Parts,
    body: &[u8],
    caller: ExplainedCaller,
    store: (Option<&Salt>, Option<&StoredRequest>),
) -> Result<Explained, ExplainedRefusal> {
    let router = Router::new(
        config,
        &RouteLatencies::default(),
        &Metrics::new(&StoreMetrics::default(), ""),
        &UpstreamSlots::new(1),
        &InstanceSalts::provisional([0; 32]),
        &Default::default(),
        None,
    );
    let client = ClientConnection::new(Ipv4Addr::LOCALHOST.into(), false);
    let certificate = caller.certificate.map(Arc::new);
    let origin = RequestOrigin { trusted: true, certificate, ..request_origin(head, &client, config) };
    let path = RequestPath::new(head.uri.path());
    check_path(path.sent())?;
    let refused = |(active, refusal): EvadedRoute<'_>| ExplainedRefusal {
        refusal,
        answer_shape: AnswerShape::of_route(&active.route, RequestFormat::of(&head.headers)),
    };
    // The operator asks about one service: another one's routes are not theirs to see.
    let service_router =
        router.service_of(origin.host_name()).filter(|found| only.is_none_or(|only| found.is_named(only)));
    let service_router = service_router.ok_or(NO_SERVICE)?;
    let RouteSearch { found, foretold } = find_route(head, &path, (service_router, &router));
    // Explained as if an observed route enforced.
    if let Some(foretold) = foretold {
        return Err(refused(foretold));
    }
    let found = found.map_err(refused)?;
    if let Some(active) = found.or_else(|| service_router.find_beside(&head.method, &path)) {
        rules::check_path_of(&active.route, head, found.is_some()).map_err(|refusal| refused((active, refusal)))?;
    }
    let Some(active) = found else {
        rules::check_unguarded(head, false, config)?;
        return Ok(Explained {
            route: None,
            mode: "off",
            key: None,
            scope: Vec::new(),
            stored: None,
            compared: None,
            space: String::new(),
            recipe: String::new(),
            body: IncludedBody {
                form: "raw",
                is_decoded: false,
                content: IncludedContent::Bytes(Cow::Owned(body.to_vec())),
            },
            parts: Vec::new(),
            key_fields: Vec::new(),
            fingerprint: None,
        });
    };
    explain_on_route(config, (head, &path), body, &origin, &active.route, &caller.token, store)
        .map_err(|refusal| refused((active, refusal)))
}

fn explain_on_route(
    config: &Config,
    (head, path): (&request::Parts, &RequestPath<'_>),
    body: &[u8],
    origin: &RequestOrigin,
    route: &Arc<Route>,
    token: &Result<CallerToken, Refusal>,
    (salt, record): (Option<&Salt>, Option<&StoredRequest>),
) -> Result<Explained, Refusal> {
    let operation = body_operation::read_at_once(head, body, route);
    // Without the store's salt, only the parts of the scope are shown.
    let realm = Realm { service: &route.service.name, salt: salt.unwrap_or(&NO_SALT) };
    // As in the proxy: only a scope that reads the token has it verified.
    let token = if route.scope.reads_token() { TokenSource::Verified(token) } else { TokenSource::Unread };
    let incoming = Incoming { token, operation: operation.call(), ..Incoming::new((head, path), origin, route, realm) };
    let (identity, scope, part) = match route.options.mode {
        // Its requests stream through, with or without a key.
        RouteMode::Off => rules::check_unguarded(head, true, config).map(|()| (None, Vec::new(), None)),
        RouteMode::Enforce | RouteMode::Observe => key_and_caller(incoming, body),
    }?;
    let body = part.as_deref().unwrap_or(body);
    let input = fingerprint_input(route, (head, path), body);
    let included = route.recipe.body(&input);
    let parts = route.recipe.parts(&input, &included).map(RequestPart::into_owned).collect();
    let stored = identity.as_ref().zip(salt).map(|(identity, _)| (identity.scope, identity.record_id()));
    let compared = record.map(|record| record.compare(&input, config, &key_document_fields(route)));
    let key = identity.map(|identity| identity.key);
    let IncludedBody { form, is_decoded, content } = included;
    Ok(Explained {
        route: Some(route.name.to_string()),
        mode: route.options.mode.name(),
        key: key.map(|key| match route.options.key.hash {
            // The proxy hashes it with its store's salt.
            true => format!("a secret ({}...)", String::from_utf8_lossy(&key.as_bytes()[..8])),
            false => String::from_utf8_lossy(key.as_bytes()).into_owned(),
        }),
        scope: scope
            .into_iter()
            .map(|(name, value)| (name.to_owned(), value.map(|value| hash_prefix(&value))))
            .collect(),
        stored,
        compared,
        space: incoming.key_space(),
        recipe: route.recipe.to_string(),
        body: IncludedBody { form, is_decoded, content: content.into_owned() },
        parts,
        key_fields: key_document_fields(route),
        fingerprint: route.recipe.fingerprint(&input, &config.secrets),
    })
}

impl StoredRequest {
    /// Compares a request by the record's own rules.
    fn compare(&self, input: &FingerprintInput<'_>, config: &Config, key_fields: &[String]) -> ComparedRequest {
        match self.recipe.fingerprint(input, &config.secrets) {
            None => ComparedRequest::Impossible,
            Some(fingerprint) if fingerprint == self.fingerprint => ComparedRequest::Same,
            Some(_) => ComparedRequest::Different(self.parts.as_ref().map(|(bits, key)| {
                let included = self.recipe.body(input);
                let holds_key = |part: &RequestPart<'_>| key_fields.contains(&part.place());
                bits.compare(key, self.recipe.parts(input, &included), holds_key)
            })),
        }
    }
}

/// The salt where the store's is not known: nothing of it is shown.
const NO_SALT: Salt = Salt::new([0; 32]);

/// The identity and the scope's parts of a request on a route that guards or observes it, and its body. Of a batch,
/// those of its first part.
fn key_and_caller<'a>(
    incoming: Incoming<'a>,
    body: &[u8],
) -> Result<(Option<RequestIdentity>, ScopeParts<'a>, Option<Bytes>), Refusal> {
    let body = BodySource::Whole(Bytes::copy_from_slice(body));
    let mut arrival = Arrival { gate: None, context: None, is_provisional: false, body };
    let explained = async {
        let keyed = match arrival.read(incoming).await? {
            ArrivedRequest::Unkeyed { .. } => None,
            ArrivedRequest::Keyed(keyed) => Some(keyed),
            ArrivedRequest::Batch(parts) => parts.into_iter().next(),
        };
        let Some(KeyedRequest { identity, body, .. }) = keyed else { return Ok((None, Vec::new(), None)) };
        let token = incoming.token.read(&incoming.head.headers).await?;
        let places = incoming.read_scope_places(Some(&body));
        Ok((Some(identity), incoming.identify_caller(&token, places)?, Some(body)))
    };
    explained.now_or_never().expect("the whole request is there, and its token was verified")
}

fn hash_prefix(value: &[u8]) -> String {
    let hash: [u8; 32] = Sha256::digest(value).into();
    HEXLOWER.encode(&hash[..8])
}
