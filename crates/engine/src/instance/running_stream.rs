//! The response of a running attempt while it streams, which duplicates of its request can join.

use http::{HeaderMap, HeaderValue, StatusCode};

use oncegate_domain::attempt::ReserveRequest;
use oncegate_domain::fingerprint::{Fingerprint, Recipe};
use oncegate_http::body::stream::{BodyProgress, StreamSource};
use oncegate_http::protocol::event_stream;

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
    /// The body's progress, and the number of its events where it is a stream of events that is kept. Reads through the
    /// body.
    pub fn progress(&self) -> (BodyProgress, Option<usize>) {
        let body = event_stream::is_event_stream(&self.headers).then(|| self.body.kept()).flatten();
        (self.body.progress(), body.map(|body| event_stream::count_events(&body)))
    }

    /// Whether it answers this request. The key may have been purged and used for another request since the record was
    /// compared.
    pub fn answers(&self, request: &ReserveRequest) -> bool {
        self.recipe == request.recipe && self.fingerprint == request.fingerprint
    }
}
