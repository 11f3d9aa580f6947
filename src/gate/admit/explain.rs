//! A request as the gate would see it, for people who want to know why.

use std::time::SystemTime;

use bytes::Bytes;
use http::request;
use sha2::{Digest, Sha256};

use super::{caller, check_nominated, parts, place, space};
use crate::config::{Config, Mode, Route};
use crate::domain::fingerprint::Fingerprint;
use crate::domain::key::Key;
use crate::gate::client::Client;
use crate::gate::meters::{Meters, Verb};
use crate::gate::pace::Paces;
use crate::gate::refuse::Refusal;
use crate::gate::routing::Router;
use crate::store::meters::StoreMeters;

/// What the gate makes of a request.
pub struct Explained {
    /// The route that guards it; all else is empty where none does.
    pub route: Option<String>,
    /// Whether that route is on.
    pub mode: &'static str,
    /// The key, unquoted.
    pub key: Option<String>,
    /// The scope's parts. A value is shown by the beginning of its SHA-256; the proxy hashes it with a salt of its store.
    pub scope: Vec<(String, Option<String>)>,
    /// Within what the key is unique.
    pub space: String,
    /// How the fingerprint is made.
    pub recipe: String,
    /// The body as it goes into the fingerprint, and the name of that form.
    pub body: (&'static str, Bytes),
    /// What a retry must have too.
    pub fingerprint: Option<Fingerprint>,
}

/// Looks at a request as a proxy with this configuration would, its peer taken for a trusted one.
///
/// # Errors
/// What the proxy would answer in its own name, before it asked the store.
pub fn explain(config: &Config, head: &request::Parts, body: &[u8]) -> Result<Explained, Refusal> {
    let router = Router::new(config, &Paces::default(), &Meters::new(&StoreMeters::default()));
    let origin = super::origin(head, &Client::new(std::net::Ipv4Addr::LOCALHOST.into(), false), config);
    let Some(guard) = router.find(&head.method, origin.host_name(), head.uri.path()) else {
        if config.refuse_unguarded && Verb::of(&head.method).changes_state() {
            return Err(Refusal::Unguarded);
        }
        return Ok(Explained {
            route: None,
            mode: "off",
            key: None,
            scope: Vec::new(),
            space: String::new(),
            recipe: String::new(),
            body: ("raw", Bytes::copy_from_slice(body)),
            fingerprint: None,
        });
    };
    let route = &guard.route;
    let (key, scope) = match route.mode {
        // Its requests stream through, whatever they carry.
        Mode::Off => (None, Vec::new()),
        Mode::Enforce | Mode::Observe => caller_and_key(route, head, body)?,
    };
    let seen = parts(head, body);
    let (kind, canonical) = route.recipe.body(&seen);
    Ok(Explained {
        route: Some(route.name.to_string()),
        mode: route.mode.name(),
        key: key.map(|key| String::from_utf8_lossy(key.as_bytes()).into_owned()),
        scope: scope.into_iter().map(|(name, value)| (name.to_owned(), value.map(|value| shown(&value)))).collect(),
        space: String::from_utf8_lossy(&space(route, head)).into_owned(),
        recipe: route.recipe.to_string(),
        body: (kind, Bytes::copy_from_slice(&canonical)),
        fingerprint: route.recipe.fingerprint(&seen, &config.secrets),
    })
}

/// Whose request it is and under which key, or why it is refused.
fn caller_and_key<'a>(
    route: &'a Route,
    head: &request::Parts,
    body: &[u8],
) -> Result<(Option<Key>, caller::Caller<'a>), Refusal> {
    check_nominated(&head.headers, route)?;
    let found = place::in_head(head, &route.key)?;
    let reads_body = found.is_some() || place::may_be_in_body(&route.key);
    let found = match found {
        None => place::in_body(&head.headers, body, route)?,
        some => some,
    };
    let key = found.map(|value| Key::parse(&value, route.key.syntax, route.key.limits)).transpose()?;
    if key.is_none() && route.key.required {
        return Err(Refusal::KeyMissing);
    }
    // Nobody asks whose key it is where there is none.
    let scope = key.as_ref().map(|_| caller::parts(&route.scope, head, true)).transpose()?.unwrap_or_default();
    if let (Some(_), Some(max_age)) = (&key, route.max_age) {
        super::check_age(&head.headers, max_age, SystemTime::now())?;
    }
    if reads_body && body.len() > route.max_request_body {
        return Err(Refusal::RequestTooLarge);
    }
    Ok((key, scope))
}

fn shown(value: &[u8]) -> String {
    let hash: [u8; 32] = Sha256::digest(value).into();
    hash[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}
