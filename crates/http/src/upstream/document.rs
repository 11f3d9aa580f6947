//! Reads a document of a service: the keys of an issuer of tokens, its description, or a token.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::header::{ACCEPT, HOST, HeaderValue, USER_AGENT};
use http::uri::PathAndQuery;
use http::{Request, StatusCode, Uri};
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use super::UpstreamClient;
use super::connection_slots::UpstreamSlots;
use crate::body::Body;
use crate::protocol::fields;
use oncegate_settings::{UpstreamTarget, UpstreamTlsConfig};
use oncegate_telemetry::logs::error_causes;
use oncegate_trust::tls::Trust;

/// The time limit of one read. Requests and people may wait for it.
pub const READ_TIMEOUT: Duration = Duration::from_secs(5);

/// The time for which the connection is kept: a sign-in asks for two documents, and the next read comes after minutes.
const IDLE: Duration = Duration::from_secs(1);

/// Sends a request to a service, and returns the status and the whole body of its response, which has `bytes_max` bytes at most.
/// Redirections are not followed: they may lead to a host that the configuration does not name.
///
/// # Errors
/// The problem.
pub async fn read_document(
    upstream: &Arc<UpstreamTarget>,
    target: PathAndQuery,
    mut request: Request<Body>,
    bytes_max: usize,
    trust: &Trust,
    slots: &UpstreamSlots,
) -> Result<(StatusCode, Bytes), String> {
    let tls = UpstreamTlsConfig::with_trust(trust.clone());
    let client = UpstreamClient::new(upstream, READ_TIMEOUT, IDLE, &tls, slots);
    *request.uri_mut() = Uri::from(target);
    let headers = request.headers_mut();
    headers.insert(HOST, HeaderValue::from_str(upstream.host()).expect("a host is visible ASCII"));
    headers.entry(ACCEPT).or_insert(HeaderValue::from_static("application/json"));
    headers.insert(USER_AGENT, HeaderValue::from_static(concat!("oncegate/", env!("CARGO_PKG_VERSION"))));
    fields::request_identity_encoding(headers);
    let read = async {
        let response = client
            .call(&mut request)
            .await
            .map_err(|error| format!("{error}: {}", error_causes(&error).unwrap_or_default()))?;
        let status = response.status();
        let body = Limited::new(response.into_body(), bytes_max).collect().await;
        let body = body.map_err(|_| format!("the answer broke off, or is larger than {} KiB", bytes_max >> 10))?;
        Ok((status, body.to_bytes()))
    };
    timeout(READ_TIMEOUT, read).await.unwrap_or_else(|_| Err("no answer in time".into()))
}
