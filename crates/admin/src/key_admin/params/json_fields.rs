//! JSON bodies.

use std::collections::BTreeMap;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{Request, request};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    HASHED_CONDITIONS, KeySelection, add_condition, build_response, check_note, check_typed_headers, has_name,
    parse_headers,
};
use crate::key_admin::AdminMethod;
use crate::key_admin::inputs::{CONDITIONS, Input};
use crate::key_admin::problem::{ApiProblem, ProblemCode};
use crate::key_admin::request_hashes::RequestHashes;
use oncegate_domain::response::StoredResponse;
use oncegate_store::admin::{KeyFilter, OperatorAction, OperatorDecision};

/// `{"name": "value"}`, or `[["name", "value"], …]` where a name comes more than once.
#[derive(Deserialize)]
#[serde(untagged)]
enum HeaderFields {
    ByName(BTreeMap<String, String>),
    Pairs(Vec<(String, String)>),
}

const NOT_A_FIELD: &str = "is not a field here";

pub struct JsonFields(Map<String, Value>);

impl JsonFields {
    /// Reads a body, which has none but these members; an empty body is an object without members.
    pub fn parse(body: &[u8], inputs: &[&[Input]]) -> Result<Self, ApiProblem> {
        if body.trim_ascii().is_empty() {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => match fields.keys().find(|name| !has_name(inputs, name)) {
                Some(name) => Err(ApiProblem::bad(name, NOT_A_FIELD)),
                None => Ok(Self(fields)),
            },
            Ok(_) => Err(ApiProblem::bad("body", "is JSON, but not an object")),
            Err(error) => {
                let at = format!("line {}, column {}", error.line(), error.column());
                Err(ApiProblem::new(ProblemCode::BadRequest, format!("the body is not JSON: {at}")))
            }
        }
    }

    /// Takes a value; `None` where it is missing or null. `why` completes the sentence about a value of another type.
    fn take<T: DeserializeOwned>(&mut self, name: &str, why: &str) -> Result<Option<T>, ApiProblem> {
        let value = self.0.remove(name).unwrap_or_default();
        serde_json::from_value(value).map_err(|_| ApiProblem::bad(name, why))
    }

    pub fn take_text(&mut self, name: &str) -> Result<Option<String>, ApiProblem> {
        self.take(name, "is not text")
    }

    pub fn take_number(&mut self, name: &str) -> Result<Option<u64>, ApiProblem> {
        self.take(name, "is not a whole number")
    }

    fn take_flag(&mut self, name: &str) -> Result<bool, ApiProblem> {
        Ok(self.take(name, "is neither `true` nor `false`")?.unwrap_or_default())
    }

    /// Whether a condition of the filter is of a caller or a value, which the store has as hashes.
    pub fn has_hashed_condition(&self) -> bool {
        let filter = self.0.get("filter").and_then(Value::as_object);
        filter.is_some_and(|filter| HASHED_CONDITIONS.iter().any(|name| filter.contains_key(*name)))
    }

    /// Takes `ids` or `filter`. All keys need `"all": true`: an empty filter is more likely a mistake.
    pub fn take_selection(&mut self, hashes: Option<&RequestHashes>) -> Result<KeySelection, ApiProblem> {
        let ids: Option<Vec<String>> = self.take("ids", "is not a list of texts")?;
        let (filter, all) = (self.take_filter(hashes)?, self.take_flag("all")?);
        let is_empty = filter.as_ref().is_none_or(|filter| *filter == KeyFilter::default());
        match (ids, filter) {
            (Some(_), Some(_)) => Err(ApiProblem::bad("filter", "cannot be combined with `ids`")),
            (Some(_), None) if all => Err(ApiProblem::bad("all", "cannot be combined with `ids`")),
            (_, Some(_)) if all && !is_empty => Err(ApiProblem::bad("all", "cannot be combined with a filter")),
            (Some(ids), None) => Ok(KeySelection::ByIds(ids.into_iter().map(Into::into).collect())),
            (None, filter) if all || !is_empty => Ok(KeySelection::ByFilter(filter.unwrap_or_default())),
            (None, Some(_)) => Err(ApiProblem::bad("filter", "is empty: say which keys, or `\"all\": true`")),
            (None, None) => Err(ApiProblem::bad("filter", "is missing: `filter` or `ids` say which keys")),
        }
    }

    fn take_filter(&mut self, hashes: Option<&RequestHashes>) -> Result<Option<KeyFilter>, ApiProblem> {
        let Some(mut conditions) = self.take::<Map<_, _>>("filter", "is not an object")? else { return Ok(None) };
        let mut filter = KeyFilter::default();
        for Input { name, .. } in CONDITIONS {
            let Some(value) = conditions.remove(name) else { continue };
            let Value::String(text) = value else { return Err(ApiProblem::bad(name, "is not text")) };
            if text.is_empty() {
                // A shell variable that is not set leaves an empty value, which must not widen a change.
                return Err(ApiProblem::bad(name, "is empty: give a value, or leave it out"));
            }
            add_condition(&mut filter, name, text.as_bytes(), hashes)?;
        }
        match conditions.keys().next() {
            None => Ok(Some(filter)),
            Some(name) => Err(ApiProblem::bad(name, "is not a condition of a filter")),
        }
    }

    pub fn take_action(&mut self) -> Result<AdminMethod, ApiProblem> {
        match self.take_text("action")?.as_deref() {
            Some("purge") => Ok(AdminMethod::Purge),
            Some("redact") => Ok(AdminMethod::Redact),
            Some("release") => Ok(AdminMethod::Release),
            Some("requeue") => Ok(AdminMethod::Requeue),
            Some("resolve") => Ok(AdminMethod::Resolve),
            Some(_) => {
                Err(ApiProblem::bad("action", "is none of `resolve`, `release`, `requeue`, `redact` and `purge`"))
            }
            None => Err(ApiProblem::bad("action", "is missing")),
        }
    }

    pub fn take_decision(
        &mut self,
        method: AdminMethod,
        actor: String,
        accept_risk: bool,
    ) -> Result<OperatorDecision, ApiProblem> {
        let is_given = |name| self.0.get(name).is_some_and(|value| !value.is_null());
        let means_empty_body = is_given("body") || is_given("body_base64");
        let change = match method {
            AdminMethod::Purge => OperatorAction::Purge,
            AdminMethod::Redact => OperatorAction::Redact,
            AdminMethod::Release => OperatorAction::Release,
            AdminMethod::Requeue => OperatorAction::Requeue,
            _ => self.take_outcome()?,
        };
        let accept_risk = self.take_flag("accept_risk")? || accept_risk;
        let note = check_note(self.take_text("note")?.unwrap_or_default())?;
        Ok(OperatorDecision { change, actor, note, accept_risk, means_empty_body })
    }

    fn take_outcome(&mut self) -> Result<OperatorAction, ApiProblem> {
        match self.take_text("outcome")?.as_deref() {
            Some("completed") => {
                let response = self.take_response()?;
                check_typed_headers(&response)?;
                Ok(match self.take_flag("replace")? {
                    true => OperatorAction::Replace(response.into()),
                    false => OperatorAction::Complete(response.into()),
                })
            }
            Some("not_executed") => Ok(OperatorAction::NotExecuted),
            Some(_) => Err(ApiProblem::bad("outcome", "is neither `completed` nor `not_executed`")),
            None => Err(ApiProblem::bad("outcome", "is missing: `completed` or `not_executed`")),
        }
    }

    /// Takes a response with all the header fields that it names.
    pub fn take_response(&mut self) -> Result<StoredResponse, ApiProblem> {
        let headers = self.take_headers()?;
        let status = self.take_number("status")?.ok_or_else(|| ApiProblem::bad("status", "is missing"))?;
        build_response(status, headers, self.take_body()?)
    }

    /// Takes a request of a client.
    pub fn take_request(&mut self) -> Result<(request::Parts, Bytes), ApiProblem> {
        let mut request = Request::new(());
        let method = self.take_text("method")?.and_then(|method| method.parse().ok());
        *request.method_mut() = method.ok_or_else(|| ApiProblem::bad("method", "is no method"))?;
        let target = self.take_text("target")?.and_then(|target| target.parse().ok());
        *request.uri_mut() = target.ok_or_else(|| ApiProblem::bad("target", "is no target of a request"))?;
        *request.headers_mut() = parse_headers(self.take_headers()?)?;
        Ok((request.into_parts().0, self.take_body()?))
    }

    fn take_headers(&mut self) -> Result<Vec<(String, String)>, ApiProblem> {
        Ok(match self.take("headers", "is neither an object of texts nor a list of [name, value]")? {
            None => Vec::new(),
            Some(HeaderFields::ByName(fields)) => fields.into_iter().collect(),
            Some(HeaderFields::Pairs(pairs)) => pairs,
        })
    }

    fn take_body(&mut self) -> Result<Bytes, ApiProblem> {
        Ok(match (self.take_text("body")?, self.take_text("body_base64")?) {
            (Some(_), Some(_)) => return Err(ApiProblem::bad("body_base64", "cannot be combined with `body`")),
            (text, None) => Bytes::from(text.unwrap_or_default()),
            (None, Some(text)) => {
                let decoded = BASE64_STANDARD.decode(text);
                Bytes::from(decoded.map_err(|_| ApiProblem::bad("body_base64", "is not base64 with its padding"))?)
            }
        })
    }

    /// Refuses members that are not for what the other ones ask: a response of a request that was not executed.
    pub fn finish(&self) -> Result<(), ApiProblem> {
        self.0.keys().next().map_or(Ok(()), |name| Err(ApiProblem::bad(name, NOT_A_FIELD)))
    }
}
