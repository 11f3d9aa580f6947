//! Asks a service whether a caller may still read a stored response, before each replay.
//!
//! A replay skips the service's own check of its caller. A route with `replay.authorize` has the check done by a
//! service of the operator's, as the forward-auth services of other proxies do it: a GET with the caller's credentials
//! and with the method, the host and the target of the request. The permission of one caller never counts for another.

use std::sync::Arc;
use std::time::Duration;

use http::header::{AUTHORIZATION, COOKIE, HOST, HeaderName, HeaderValue};
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, request};
use http_body_util::{BodyExt, Limited};
use sha2::{Digest, Sha256};
use tokio::time::{Instant, timeout_at};

use crate::instance::replay_permissions::{QuestionDigest, ReplayPermissions};
use oncegate_http::body::Body;
use oncegate_http::protocol::fields::{self, RequestOrigin};
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::upstream::UpstreamClient;
use oncegate_settings::{AuthorizeConfig, Route};
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::CertificateName;

/// The time limit of one question. The client waits for it.
const TIME_MAX: Duration = Duration::from_secs(10);

/// The longest body of a denial that is passed on: a problem document is shorter.
const DENIAL_BYTES_MAX: usize = 64 * 1024;

const X_FORWARDED_METHOD: HeaderName = HeaderName::from_static("x-forwarded-method");
const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

/// One worker's connections to a route's authorizing service.
pub struct Authorizer {
    pub(super) config: Arc<AuthorizeConfig>,
    pub(super) client: UpstreamClient,
    pub(super) permissions: Arc<ReplayPermissions>,
}

/// A question about one caller and one request.
pub(super) struct ReplayQuestion {
    headers: HeaderMap,
    /// SHA-256 of the route's name, the service that is asked, the certificate's name, the host and the fields, each
    /// length-prefixed.
    digest: QuestionDigest,
}

impl ReplayQuestion {
    pub(super) fn new(head: &request::Parts, route: &Route, origin: &RequestOrigin) -> Self {
        let mut headers = HeaderMap::new();
        for name in [&AUTHORIZATION, &COOKIE].into_iter().chain(route.scope.header_names()) {
            // The scope may read the same fields.
            if !headers.contains_key(name) {
                headers.extend(head.headers.get_all(name).iter().map(|value| (name.clone(), value.clone())));
            }
        }
        let target = head.uri.path_and_query().map_or("/", |target| target.as_str());
        let method = HeaderValue::from_str(head.method.as_str()).expect("a method is a token");
        let target = HeaderValue::from_str(target).expect("a target has no control characters");
        headers.insert(X_FORWARDED_METHOD, method);
        headers.insert(X_FORWARDED_URI, target);
        // A permission does not outlive a reload with another service, nor one with another time.
        let asked = route.options.replay.authorize.as_ref();
        let asked =
            asked.map_or_else(String::new, |asked| format!("{} {} {:?}", asked.upstream, asked.target, asked.cache));
        let mut digest = Sha256::new();
        let fields = headers.iter().flat_map(|(name, value)| [name.as_str().as_bytes(), value.as_bytes()]);
        // The service does not see it. The permission of one caller must not count for another all the same.
        let certificate = origin.certificate.as_deref().map_or(&[][..], CertificateName::as_bytes);
        let host = fields::forwarded_host(&head.headers, origin);
        let host_bytes = host.map_or(&[][..], HeaderValue::as_bytes);
        for part in [route.name.as_bytes(), asked.as_bytes(), certificate, host_bytes].into_iter().chain(fields) {
            digest.update((part.len() as u64).to_be_bytes());
            digest.update(part);
        }
        // After the digest: it replaces the client's own field, which may be a part of the scope.
        match host {
            Some(host) => drop(headers.insert(fields::X_FORWARDED_HOST, host.clone())),
            None => drop(headers.remove(fields::X_FORWARDED_HOST)),
        }
        Self { headers, digest: digest.finalize().into() }
    }
}

impl Authorizer {
    /// Asks whether the caller may read the response. Returns the service's own answer where that denies it.
    ///
    /// # Errors
    /// The service gave no usable answer.
    pub(super) async fn ask(&self, question: ReplayQuestion) -> Result<Option<Response<Body>>, Refusal> {
        let ReplayQuestion { headers, digest } = question;
        if self.permissions.is_granted(&digest) {
            return Ok(None);
        }
        let asked_at = Instant::now();
        let mut request = Request::new(Body::empty());
        *request.method_mut() = Method::GET;
        *request.uri_mut() = Uri::from(self.config.target.clone());
        *request.headers_mut() = headers;
        let host = HeaderValue::from_str(self.config.upstream.host()).expect("a host is visible ASCII");
        request.headers_mut().insert(HOST, host);
        fields::request_identity_encoding(request.headers_mut());
        let unavailable = |cause: &str| {
            tracing::warn!(service = %self.config.upstream, cause, "the authorizing service gave no usable answer; nothing is replayed");
            Refusal::AuthorizeUnavailable
        };
        let deadline = asked_at + TIME_MAX;
        let response = match timeout_at(deadline, self.client.call(&mut request)).await {
            Ok(Ok(response)) => response,
            Ok(Err(error)) => {
                return Err(unavailable(&format!("{error}: {}", error_causes(&error).unwrap_or_default())));
            }
            Err(_) => return Err(unavailable("it did not answer in time")),
        };
        match response.status() {
            status if status.is_success() => {
                if !self.config.cache.is_zero() {
                    self.permissions.grant(digest, asked_at + self.config.cache);
                }
                Ok(None)
            }
            StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN | StatusCode::NOT_FOUND => {
                self.permissions.withdraw(&digest);
                let (mut head, body) = response.into_parts();
                let body = timeout_at(deadline, Limited::new(body, DENIAL_BYTES_MAX).collect()).await;
                let Ok(Ok(body)) = body else { return Err(unavailable("its answer broke off, or is too large")) };
                fields::prepare_for_client(&mut head.headers);
                Ok(Some(Response::from_parts(head, Body::whole(body.to_bytes()))))
            }
            status => Err(unavailable(status.as_str())),
        }
    }
}
