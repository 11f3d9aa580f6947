//! The response of a running attempt while it streams, which duplicates of its request can join.

use http::{HeaderMap, HeaderValue, StatusCode};

use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::fingerprint::{Fingerprint, Recipe};
use oncegate_http::body::shared::StreamSource;

/// A response that streams.
#[derive(Debug)]
pub struct RunningStream {
    /// The recipe of the attempt's request.
    pub recipe: Recipe,
    /// The fingerprint of the attempt's request.
    pub fingerprint: Fingerprint,
    /// The response's status.
    pub status: StatusCode,
    /// Its fields, as a replay has them.
    pub headers: HeaderMap,
    /// The service's `Trailer` field.
    pub announced_trailers: Option<HeaderValue>,
    /// Its body.
    pub body: StreamSource,
}

impl RunningStream {
    /// Whether it answers this request. The key may have been purged and used for another request since the record was compared.
    pub fn answers(&self, request: &ReserveRequest) -> bool {
        self.recipe == request.recipe && self.fingerprint == request.fingerprint
    }
}
