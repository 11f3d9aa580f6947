//! Hashes of what an operator knows of a request: its caller, and values by which keys are looked up.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::KeyAdmin;
use super::problem::{ApiProblem, ProblemCode};
use oncegate_domain::lookup::LookupHash;
use oncegate_domain::place::Place;
use oncegate_domain::scope::{Salt, Scope};
use oncegate_domain::stored_salt::StoredSalt;
use oncegate_engine::gate::admit::scope::scope_of;
use oncegate_settings::{Config, Route, ScopeRule, describe_scope};

/// The salt and the rules by which the store's hashes are made.
pub struct RequestHashes {
    service: Arc<str>,
    config: Arc<Config>,
    salt: Salt,
}

impl KeyAdmin<'_> {
    /// Reads the salt of the service's scopes.
    pub(super) async fn read_salt(&self) -> Result<Salt, ApiProblem> {
        let found = self.store.find_salt(self.service()).await?;
        let unhashed =
            |why: &str| ApiProblem::new(ProblemCode::BadRequest, format!("nothing can be hashed here: {why}"));
        let found = found.ok_or_else(|| unhashed("no instance has used this store yet"))?;
        let opened = StoredSalt::decode(&found).and_then(|salt| salt.open(&self.service(), &self.config.secrets));
        opened.map_err(|error| unhashed(&error.to_string()))
    }

    pub async fn request_hashes(&self) -> Result<RequestHashes, ApiProblem> {
        Ok(RequestHashes { service: self.service(), config: Arc::clone(&self.config), salt: self.read_salt().await? })
    }

    /// The hashes for a filter that has a condition of a caller or a value; any other costs no read of the store.
    pub(super) async fn hashes_if(&self, is_needed: bool) -> Result<Option<RequestHashes>, ApiProblem> {
        Ok(if is_needed { Some(self.request_hashes().await?) } else { None })
    }
}

impl RequestHashes {
    /// The hash of `PLACE=VALUE`, a place in the `index` of a route.
    pub fn lookup(&self, text: &str) -> Result<LookupHash, ApiProblem> {
        let bad = |why: String| ApiProblem::bad("where", why);
        let (place, value) = text.split_once('=').ok_or_else(|| bad("is not PLACE=VALUE".into()))?;
        let place = Place::parse(place).map_err(bad)?;
        let has_place = |route: &Arc<Route>| route.options.index.contains(&place);
        if !self.config.routes_of(&self.service).any(has_place) {
            return Err(bad(format!("names `{place}`, which no route has in its `index`")));
        }
        Ok(self.salt.lookup(&self.service, &place, value.as_bytes()))
    }

    /// The scope of a caller: a line `PART=VALUE` for each part that it has, or `none`; `PART:=VALUE` for a claim that
    /// is a number or a boolean.
    ///
    /// Routes and consumers with other scopes have other callers: where several fit, `route` says which is meant.
    pub fn caller(&self, text: &str, route: Option<&str>) -> Result<Scope, ApiProblem> {
        let bad = |why: &str| ApiProblem::bad("caller", why);
        let lines = text.lines().filter(|line| *line != "none");
        let known: Option<Vec<_>> = lines.map(|line| line.split_once('=')).collect();
        let known = known.ok_or_else(|| bad("is not PART=VALUE, with a part of the route's `scope`"))?;
        // An empty one is a shell's variable that is not set, and must not be a caller without the part.
        if known.iter().any(|(_, value)| value.is_empty()) {
            return Err(bad("has a part with an empty value"));
        }
        let names: BTreeSet<_> = known.iter().map(|(name, _)| name.trim_end_matches(':')).collect();
        if names.len() < known.len() {
            return Err(bad("has a part twice"));
        }
        let routes = self.config.routes_of(&self.service).filter(|known| route.is_none_or(|name| known.has_name(name)));
        let of_routes = routes.map(|route| (&*route.name, &route.scope));
        let consumers = self.config.consumers.iter().filter(|_| route.is_none());
        let of_consumers = consumers.map(|consumer| (&*consumer.route, &consumer.scope));
        let mut found: Vec<(Scope, &str, &ScopeRule)> = Vec::new();
        for (name, rule) in of_routes.chain(of_consumers) {
            match scope_of(rule, &self.salt, &known) {
                Some(scope) if found.iter().all(|(other, ..)| *other != scope) => found.push((scope, name, rule)),
                _ => {}
            }
        }
        match &*found {
            [(scope, ..)] => Ok(*scope),
            [] => Err(bad("fits the `scope` of no route: name each part that is not optional")),
            several => {
                let shown = several.iter().map(|(_, name, rule)| format!("{name} ({})", describe_scope(rule)));
                let shown = shown.collect::<Vec<_>>().join("; ");
                Err(bad(&format!("fits several scopes, say which by `route`: {shown}")))
            }
        }
    }
}
