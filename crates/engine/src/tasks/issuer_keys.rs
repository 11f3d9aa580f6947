//! Reads the keys of the issuer of callers' tokens again and again.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HeaderValue};
use http::{HeaderMap, Request, StatusCode};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::gate::admit::caller_token::{CallerToken, verify_token};
use crate::instance::Instance;
use crate::instance::metrics::IssuerTable;
use crate::instance::token_verifier::TokenVerifier;
use oncegate_http::body::Body;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_http::upstream::issuer::{IssuerDescription, IssuerEndpoint, READ_TIMEOUT};
use oncegate_settings::{Config, IssuerKeys};
use oncegate_trust::jwt::{KEY_SET_BYTES_MAX, TokenFault};
use oncegate_trust::tls::Trust;

/// The time between two reads. Issuers publish a key hours before they sign with it.
const READ_EVERY: Duration = Duration::from_secs(300);

/// The pauses between two tries while there are no keys at all: doubled each time, so that an issuer that starts is not
/// kept busy.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_CAP: Duration = Duration::from_secs(30);

/// The task that reads the keys of the configured issuer.
pub struct IssuerKeysReader {
    instance: Arc<Instance>,
    /// The configuration as of the last reload.
    live: watch::Receiver<Arc<Config>>,
    /// Whether the last read failed, so that it is logged once.
    is_failing: bool,
}

/// Verifies a request's token once, with the keys as they are now. Also returns why they could not be read.
pub async fn verify_now(config: &Config, headers: &HeaderMap) -> (Result<CallerToken, Refusal>, Option<String>) {
    let Some(jwt) = config.jwt.as_ref().filter(|jwt| !jwt.rules.claims.is_empty()) else {
        return (Ok(CallerToken::Absent), None);
    };
    let verifier = TokenVerifier::new(Arc::clone(jwt));
    let keys = read_keys(&jwt.keys, &config.trust, &UpstreamSlots::new(1)).await;
    let problem = verifier.note_read(keys).err().map(|problem| format!("jwt.jwks: {}: {problem}", jwt.keys));
    // The keys are those of now: a token with an unknown `kid` causes no second read.
    let verified = timeout(Duration::ZERO, verify_token(&verifier, headers)).await;
    (verified.unwrap_or(Err(Refusal::TokenInvalid(TokenFault::UnknownKey))), problem)
}

impl IssuerKeysReader {
    /// Creates the task.
    pub fn new(instance: Arc<Instance>, live: watch::Receiver<Arc<Config>>) -> Self {
        Self { instance, live, is_failing: false }
    }

    /// Reads the keys once, if the configuration names an issuer.
    pub async fn read(&mut self) {
        let config = Arc::clone(&self.live.borrow_and_update());
        let unreachable = &self.instance.observability.metrics.issuer_unreachable;
        let Some(jwt) = config.jwt.as_ref() else { return unreachable.set(IssuerTable::Jwt, false) };
        let verifier = self.instance.token_verifiers.for_config(jwt);
        let text = read_keys(&jwt.keys, &config.trust, &self.instance.upstream_slots).await;
        let read = verifier.note_read(text);
        unreachable.set(IssuerTable::Jwt, read.is_err());
        let was_failing = std::mem::replace(&mut self.is_failing, read.is_err());
        match read {
            Ok(()) if was_failing => tracing::info!(jwks = %jwt.keys, "the issuer's keys can be read again"),
            Err(problem) if !was_failing => {
                let effect = match verifier.has_keys() {
                    true => "the earlier ones stay in use",
                    false => "keyed requests with its tokens are refused until they can be",
                };
                tracing::warn!(jwks = %jwt.keys, problem, "the issuer's keys cannot be read; {effect}");
            }
            Ok(()) | Err(_) => {}
        }
    }

    /// Reads the keys every 5 minutes, after each reload, and when a token names an unknown key, until `stop`.
    pub async fn run(mut self, stop: CancellationToken) {
        let mut pause = PAUSE_FIRST;
        loop {
            let verifier = self.live.borrow().jwt.as_ref().map(|jwt| self.instance.token_verifiers.for_config(jwt));
            let wait = match &verifier {
                Some(verifier) if !verifier.has_keys() => pause,
                Some(_) | None => READ_EVERY,
            };
            pause = if wait == pause { (pause * 2).min(PAUSE_CAP) } else { PAUSE_FIRST };
            let is_requested = async {
                match &verifier {
                    Some(verifier) => verifier.read_requested().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = stop.cancelled() => return,
                changed = self.live.changed() => if changed.is_err() { return },
                () = is_requested => {}
                () = tokio::time::sleep(wait) => {}
            }
            self.read().await;
        }
    }
}

/// Reads the text of a key set.
pub async fn read_keys(keys: &IssuerKeys, trust: &Trust, slots: &UpstreamSlots) -> Result<Bytes, String> {
    match keys {
        IssuerKeys::File { path, .. } => read_key_file(path),
        IssuerKeys::Url { upstream, target } => {
            let endpoint = IssuerEndpoint { service: Arc::clone(upstream), target: target.clone() };
            read_key_set(&endpoint, trust, slots).await
        }
        IssuerKeys::Described { issuer, .. } => {
            let read = async {
                let description = IssuerDescription::read(issuer, trust, slots).await?;
                let endpoint = description.keys()?;
                let keys = read_key_set(&endpoint, trust, slots).await;
                keys.map_err(|problem| format!("its keys at {}/…: {problem}", endpoint.service))
            };
            // Of all documents together: requests wait for them.
            timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| Err("no answer in time".into()))
        }
    }
}

async fn read_key_set(endpoint: &IssuerEndpoint, trust: &Trust, slots: &UpstreamSlots) -> Result<Bytes, String> {
    let mut request = Request::new(Body::empty());
    let accepted = HeaderValue::from_static("application/jwk-set+json, application/json");
    request.headers_mut().insert(ACCEPT, accepted);
    match endpoint.read(request, KEY_SET_BYTES_MAX, trust, slots).await? {
        (StatusCode::OK, keys) => Ok(keys),
        (status, _) => Err(format!("the answer has status {}", status.as_u16())),
    }
}

fn read_key_file(path: &Path) -> Result<Bytes, String> {
    let mut text = Vec::new();
    // One byte more than is allowed: the key set's own check says that it is too large.
    let read = File::open(path).and_then(|file| file.take(KEY_SET_BYTES_MAX as u64 + 1).read_to_end(&mut text));
    read.map(|_| Bytes::from(text)).map_err(|error| error.to_string())
}
