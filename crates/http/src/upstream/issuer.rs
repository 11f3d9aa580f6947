//! An issuer of tokens, as it describes itself (OpenID Connect Discovery 1.0, or RFC 8414).

use std::sync::Arc;

use bytes::Bytes;
use http::uri::PathAndQuery;
use http::{Request, StatusCode};
use serde::Deserialize;
use serde::de::DeserializeOwned;

use super::connection_slots::UpstreamSlots;
use super::document::read_document;
use crate::body::Body;
use oncegate_settings::{UpstreamTarget, parse_issuer_url};
use oncegate_trust::tls::Trust;

/// The largest description. They have some kilobytes.
const DESCRIPTION_BYTES_MAX: usize = 1 << 20;

/// The beginning of another issuer's address that an error shows, in characters: longer than any in use.
const ISSUER_SHOWN_MAX: usize = 200;

/// An address of an issuer.
#[derive(Clone, Debug)]
pub struct IssuerEndpoint {
    /// The service.
    pub service: Arc<UpstreamTarget>,
    /// The path and query to ask for.
    pub target: PathAndQuery,
}

impl IssuerEndpoint {
    /// # Errors
    /// The problem, beginning with a verb.
    pub fn parse(url: &str) -> Result<Self, String> {
        let (service, target) = parse_issuer_url(url)?;
        Ok(Self { service: Arc::new(service), target })
    }

    /// Sends a request there, and returns the status and the whole body of its response, which has `bytes_max` bytes at
    /// most.
    ///
    /// # Errors
    /// The problem.
    pub async fn read(
        &self,
        request: Request<Body>,
        bytes_max: usize,
        trust: &Trust,
        slots: &UpstreamSlots,
    ) -> Result<(StatusCode, Bytes), String> {
        read_document(&self.service, self.target.clone(), request, bytes_max, trust, slots).await
    }

    fn is_https(&self) -> bool {
        matches!(*self.service, UpstreamTarget::Https(..))
    }
}

/// The description of an issuer, as far as it is used. One that signs nobody in has no page.
#[derive(Deserialize)]
#[allow(missing_docs, reason = "the names are those of the standards")]
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
    /// Reads the description of an issuer: by OpenID Connect, or where there is none by RFC 8414, which puts the path of
    /// the issuer behind the well-known one.
    ///
    /// # Errors
    /// The problem.
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

    /// The endpoint at an address in it.
    ///
    /// # Errors
    /// The address is none, or has no TLS although the issuer has.
    pub fn endpoint(&self, name: &str, url: &str) -> Result<IssuerEndpoint, String> {
        match IssuerEndpoint::parse(url) {
            Ok(place) if IssuerEndpoint::parse(&self.issuer)?.is_https() && !place.is_https() => {
                Err(format!("its `{name}` has no TLS, and the issuer has"))
            }
            place => place.map_err(|why| format!("its `{name}` {why}")),
        }
    }

    /// The endpoint of its keys.
    ///
    /// # Errors
    /// As of [`endpoint`](Self::endpoint).
    pub fn keys(&self) -> Result<IssuerEndpoint, String> {
        self.endpoint("jwks_uri", &self.jwks_uri)
    }
}

/// Reads a document of JSON.
///
/// # Errors
/// The problem.
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
