//! An issuer of tokens, as it describes itself (OpenID Connect Discovery 1.0, or RFC 8414).

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::timeout;

use super::UpstreamClient;
use super::connection_slots::UpstreamSlots;
use crate::body::Body;
use crate::protocol::fields;
use oncegate_settings::{UpstreamTarget, UpstreamTlsConfig, parse_issuer_url};
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::Trust;

/// The time limit of one read. Requests and people may wait for it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for which the connection is kept: a sign-in asks for two documents, and the next read comes after minutes.
const IDLE: Duration = Duration::from_secs(1);

/// The largest description. They have some kilobytes.
const DESCRIPTION_BYTES_MAX: usize = 1 << 20;

/// The beginning of another issuer's address that an error shows, in characters: longer than any in use.
const ISSUER_SHOWN_MAX: usize = 200;

#[derive(Clone, Debug)]
pub struct IssuerEndpoint {
    pub service: Arc<UpstreamTarget>,
    pub target: PathAndQuery,
}

impl IssuerEndpoint {
    /// Reads a URL. An error is the problem, beginning with a verb.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (service, target) = parse_issuer_url(url)?;
        Ok(Self { service: Arc::new(service), target })
    }

    /// Sends a request there, and returns the status and the whole body of its response, which has `bytes_max` bytes at
    /// most. Redirections are not followed: they may lead to a host that the configuration does not name.
    pub async fn read(
        &self,
        mut request: Request<Body>,
        bytes_max: usize,
        trust: &Trust,
        slots: &UpstreamSlots,
    ) -> Result<(StatusCode, Bytes), String> {
        let tls = UpstreamTlsConfig::with_trust(trust.clone());
        let client = UpstreamClient::new(&self.service, READ_TIMEOUT, IDLE, &tls, slots);
        *request.uri_mut() = Uri::from(self.target.clone());
        let headers = request.headers_mut();
        headers.insert(HOST, HeaderValue::from_str(self.service.host()).expect("a host is visible ASCII"));
        headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
        headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
        fields::request_identity_encoding(headers);
        let read = async {
            let sent = client.call(&mut request).await;
            let response = sent.map_err(|error| format!("{error}: {}", error_causes(&error).unwrap_or_default()))?;
            let status = response.status();
            let body = Limited::new(response.into_body(), bytes_max).collect().await;
            let body = body.map_err(|_| format!("the answer broke off, or is larger than {} KiB", bytes_max >> 10))?;
            Ok((status, body.to_bytes()))
        };
        timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| Err("no answer in time".into()))
    }

    fn is_https(&self) -> bool {
        matches!(*self.service, UpstreamTarget::Https(..))
    }
}

/// The description of an issuer, as far as it is used. One that signs nobody in has no page.
#[derive(Deserialize)]
pub struct IssuerDescription {
    issuer: String,
    jwks_uri: String,
    #[serde(default)]
    pub authorization_endpoint: String,
    #[serde(default)]
    pub token_endpoint: String,
    #[serde(default)]
    pub token_endpoint_auth_methods_supported: Vec<String>,
    #[serde(default)]
    pub authorization_response_iss_parameter_supported: bool,
    #[serde(default)]
    pub scopes_supported: Vec<String>,
}

impl IssuerDescription {
    /// Reads the description of an issuer: by OpenID Connect, or where there is none by RFC 8414, which puts the path
    /// of the issuer behind the well-known one.
    pub async fn read(issuer: &str, trust: &Trust, slots: &UpstreamSlots) -> Result<Self, String> {
        let IssuerEndpoint { service, target } = IssuerEndpoint::parse(issuer)?;
        let path = target.path().trim_end_matches('/');
        let read = async |target: String| {
            let place = format!("{service}{target}");
            let target = PathAndQuery::try_from(target).map_err(|_| format!("{place} is no address"))?;
            let endpoint = IssuerEndpoint { service: Arc::clone(&service), target };
            let answer = endpoint.read(Request::new(Body::empty()), DESCRIPTION_BYTES_MAX, trust, slots).await;
            let is_absent = answer.as_ref().is_ok_and(|(status, _)| status.is_client_error());
            let found =
                answer.and_then(parse_document).and_then(|found: Self| found.check_issuer(issuer).map(|()| found));
            Ok::<_, String>((found.map_err(|problem| format!("its description at {place}: {problem}")), is_absent))
        };
        match read(format!("{path}/.well-known/openid-configuration")).await? {
            (Err(problem), true) => {
                let (found, is_absent) = read(format!("/.well-known/oauth-authorization-server{path}")).await?;
                if is_absent { Err(problem) } else { found }
            }
            (found, _) => found,
        }
    }

    /// Checks whose description it is (OpenID Connect Discovery section 4.3, RFC 8414 section 3.3): the same text.
    fn check_issuer(&self, issuer: &str) -> Result<(), String> {
        if self.issuer == issuer {
            return Ok(());
        }
        let named: String = self.issuer.chars().take(ISSUER_SHOWN_MAX).collect();
        Err(format!("it describes the issuer `{named}`, which is not the one of the configuration"))
    }

    /// The endpoint at an address in it. An error: the address is none, or has no TLS although the issuer has.
    pub fn endpoint(&self, name: &str, url: &str) -> Result<IssuerEndpoint, String> {
        match IssuerEndpoint::parse(url) {
            Ok(place) if IssuerEndpoint::parse(&self.issuer)?.is_https() && !place.is_https() => {
                Err(format!("its `{name}` has no TLS, and the issuer has"))
            }
            place => place.map_err(|why| format!("its `{name}` {why}")),
        }
    }

    pub fn keys(&self) -> Result<IssuerEndpoint, String> {
        self.endpoint("jwks_uri", &self.jwks_uri)
    }
}

/// Reads a document of JSON.
pub fn parse_document<T: DeserializeOwned>((status, text): (StatusCode, Bytes)) -> Result<T, String> {
    if status != StatusCode::OK {
        return Err(format!("the answer has status {}", status.as_u16()));
    }
    serde_json::from_slice(&text).map_err(|error| {
        // The error's own text may quote the answer, and with it a token.
        let (class, line, column) = (error.classify(), error.line(), error.column());
        format!("the answer cannot be read ({class:?} error at line {line}, column {column})")
    })
}
