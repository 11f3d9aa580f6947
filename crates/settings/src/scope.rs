//! The parts of a request that tell callers apart.

use std::sync::Arc;

use http::HeaderName;

use oncegate_domain::acting_for;
use oncegate_domain::place::Place;

/// The parts of a request that tell callers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopeRule {
    /// Empty for `none`: all callers share their keys.
    pub parts: Vec<ScopePart>,
    /// Whether these are the parts of the default. Under it, a keyed request that has a Cookie and neither of the two
    /// default fields is refused: the cookie identifies its caller, and this scope does not read it.
    pub is_default: bool,
}

impl ScopeRule {
    /// Whether a part is a claim of a token.
    pub fn reads_token(&self) -> bool {
        self.parts.iter().any(|part| matches!(part.source, ScopeSource::Jwt { .. }))
    }

    /// Whether a part is the credentials of `Authorization`, unread.
    pub fn reads_authorization(&self) -> bool {
        self.parts.iter().any(|part| part.source == ScopeSource::Authorization)
    }

    /// Whether a part is in the body.
    pub fn reads_body(&self) -> bool {
        self.places().any(Place::is_in_body)
    }

    /// Whether a caller has to show something that others do not have: a proof, a cookie, or a field, which counts from
    /// trusted proxies alone. What stands in the path, the query or the body is known to many.
    pub fn keeps_callers_apart(&self) -> bool {
        let is_secret = |place: &Place| matches!(place, Place::Cookie(_) | Place::Header(..));
        self.parts.iter().any(|part| part.source.is_proof()) || self.places().any(is_secret)
    }

    /// The parts that are places, in their order.
    pub fn places(&self) -> impl Iterator<Item = &Place> {
        self.parts.iter().filter_map(|part| match &part.source {
            ScopeSource::Place(place) => Some(place),
            ScopeSource::Authorization | ScopeSource::ClientCertificate | ScopeSource::Jwt { .. } => None,
        })
    }

    /// The names of the fields that its parts are in.
    pub fn header_names(&self) -> impl Iterator<Item = &HeaderName> {
        self.parts.iter().filter_map(|part| match &part.source {
            ScopeSource::Authorization | ScopeSource::Jwt { .. } => Some(&http::header::AUTHORIZATION),
            ScopeSource::ClientCertificate => None,
            ScopeSource::Place(place) => place.field(),
        })
    }
}

/// One part of a request that tells callers apart.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScopePart {
    /// Its place in a request.
    pub source: ScopeSource,
    /// Whether a request may lack it.
    pub optional: bool,
    /// The part as it is written, without `?`, a field's name in lower case. It is part of the scope's hash.
    pub name: Box<str>,
}

impl ScopePart {
    /// Whether the service itself tells callers apart by it: their credential, or the account that they act for.
    pub fn is_credential(&self) -> bool {
        match &self.source {
            ScopeSource::Authorization => true,
            ScopeSource::Place(Place::Header(name, None)) => name == "x-api-key" || acting_for::is_acting_for(name),
            ScopeSource::Place(_) | ScopeSource::ClientCertificate | ScopeSource::Jwt { .. } => false,
        }
    }
}

/// The source of a part of the scope: a place of the request, or a proof of who sends it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ScopeSource {
    /// The `Authorization` field.
    Authorization,
    /// The verified certificate of the connection.
    ClientCertificate,
    /// A claim of the verified token.
    Jwt {
        /// The claim's name.
        claim: Box<str>,
        /// The token's issuer: the same name from two issuers is two callers.
        issuer: Arc<str>,
    },
    /// A place of the request. A field that names the caller alone counts from trusted proxies only.
    Place(Place),
}

impl ScopeSource {
    /// Whether it proves who the caller is: the service, or Oncegate, verifies it.
    pub fn is_proof(&self) -> bool {
        match self {
            Self::Authorization | Self::ClientCertificate | Self::Jwt { .. } => true,
            Self::Place(_) => false,
        }
    }
}
