//! JSON bodies.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::HeaderMap;
use serde_json::{Map, Value};

use super::{
    KeySelection, add_condition, build_response, check_note, check_status, check_typed_headers, parse_headers,
};
use crate::admin::key_admin::AdminMethod;
use crate::admin::key_admin::problem::{ApiProblem, ProblemCode};
use crate::domain::response::StoredResponse;
use crate::protocol::fields;
use crate::store::admin::{KeyFilter, OperatorAction, OperatorDecision};

/// The fields of a JSON object.
pub struct JsonFields(Map<String, Value>);

impl JsonFields {
    /// Reads a body; an empty body is an object without fields.
    ///
    /// # Errors
    /// [`ApiProblem`], where it is not a JSON object.
    pub fn parse(body: &[u8]) -> Result<Self, ApiProblem> {
        if body.trim_ascii().is_empty() {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(ApiProblem::bad("body", "is JSON, but not an object")),
            Err(error) => {
                let at = format!("line {}, column {}", error.line(), error.column());
                Err(ApiProblem::new(ProblemCode::BadRequest, format!("the body is not JSON: {at}")))
            }
        }
    }

    /// Takes a text; `None` where it is missing or null.
    ///
    /// # Errors
    /// [`ApiProblem`], where it is something else.
    pub fn take_text(&mut self, name: &str) -> Result<Option<String>, ApiProblem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(ApiProblem::bad(name, "is not text")),
        }
    }

    pub(super) fn take_number(&mut self, name: &str) -> Result<Option<u64>, ApiProblem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| ApiProblem::bad(name, "is not a whole number")),
        }
    }

    fn take_flag(&mut self, name: &str) -> Result<bool, ApiProblem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| ApiProblem::bad(name, "is neither `true` nor `false`")),
        }
    }

    /// Takes `ids` or `filter`. All keys need `"all": true`: an empty filter is more likely a mistake.
    pub(super) fn take_selection(&mut self) -> Result<KeySelection, ApiProblem> {
        let (ids, filter, all) = (self.take_texts("ids")?, self.take_filter()?, self.take_flag("all")?);
        let is_empty = filter.as_ref().is_none_or(|filter| *filter == KeyFilter::default());
        match (ids, filter) {
            (Some(_), Some(_)) => Err(ApiProblem::bad("filter", "cannot be combined with `ids`")),
            (Some(_), None) if all => Err(ApiProblem::bad("all", "cannot be combined with `ids`")),
            (_, Some(_)) if all && !is_empty => Err(ApiProblem::bad("all", "cannot be combined with a filter")),
            (Some(ids), None) => Ok(KeySelection::ByIds(ids)),
            (None, filter) if all || !is_empty => Ok(KeySelection::ByFilter(Box::new(filter.unwrap_or_default()))),
            (None, Some(_)) => Err(ApiProblem::bad("filter", "is empty: say which keys, or `\"all\": true`")),
            (None, None) => Err(ApiProblem::bad("filter", "is missing: `filter` or `ids` say which keys")),
        }
    }

    fn take_texts(&mut self, name: &str) -> Result<Option<Vec<String>>, ApiProblem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(list)) => {
                let text = |value: Value| match value {
                    Value::String(text) => Ok(text),
                    _ => Err(ApiProblem::bad(name, "is not a list of texts")),
                };
                list.into_iter().map(text).collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Err(ApiProblem::bad(name, "is not a list of texts")),
        }
    }

    fn take_filter(&mut self) -> Result<Option<KeyFilter>, ApiProblem> {
        let conditions = match self.0.remove("filter") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(conditions)) => conditions,
            Some(_) => return Err(ApiProblem::bad("filter", "is not an object")),
        };
        let mut filter = KeyFilter::default();
        for (name, value) in conditions {
            let Value::String(text) = value else { return Err(ApiProblem::bad(&name, "is not text")) };
            if !add_condition(&mut filter, &name, text.as_bytes())? {
                return Err(ApiProblem::bad(&name, "is not a condition of a filter"));
            }
        }
        Ok(Some(filter))
    }

    /// Takes the decision that `method` asks for.
    pub(super) fn take_decision(
        &mut self,
        method: AdminMethod,
        actor: String,
        accept_risk: bool,
    ) -> Result<OperatorDecision, ApiProblem> {
        let change = match method {
            AdminMethod::Purge => OperatorAction::Purge,
            AdminMethod::Release => OperatorAction::Release,
            AdminMethod::Requeue => OperatorAction::Requeue,
            _ => self.take_outcome()?,
        };
        let accept_risk = self.take_flag("accept_risk")? || accept_risk;
        let note = check_note(self.take_text("note")?.unwrap_or_default())?;
        Ok(OperatorDecision { change, actor, note, accept_risk })
    }

    fn take_outcome(&mut self) -> Result<OperatorAction, ApiProblem> {
        match self.take_text("outcome")?.as_deref() {
            Some("completed") => self.take_response().map(|response| OperatorAction::Complete(response.into())),
            Some("not_executed") => Ok(OperatorAction::NotExecuted),
            Some(_) => Err(ApiProblem::bad("outcome", "is neither `completed` nor `not_executed`")),
            None => Err(ApiProblem::bad("outcome", "is missing: `completed` or `not_executed`")),
        }
    }

    /// Takes the response that a service reports for its own attempt. Header fields are filtered as in any stored
    /// response.
    ///
    /// # Errors
    /// [`ApiProblem`] names the field that is missing or wrong.
    pub fn take_service_response(&mut self) -> Result<StoredResponse, ApiProblem> {
        let mut headers = parse_headers(self.take_headers()?)?;
        fields::prepare_for_client(&mut headers);
        self.take_response_with(headers)
    }

    fn take_response(&mut self) -> Result<StoredResponse, ApiProblem> {
        let headers = check_typed_headers(parse_headers(self.take_headers()?)?)?;
        self.take_response_with(headers)
    }

    fn take_response_with(&mut self, headers: HeaderMap) -> Result<StoredResponse, ApiProblem> {
        let status = self.take_number("status")?.ok_or_else(|| ApiProblem::bad("status", "is missing"))?;
        let status = check_status(status)?;
        let body = match (self.take_text("body")?, self.take_text("body_base64")?) {
            (Some(_), Some(_)) => return Err(ApiProblem::bad("body_base64", "cannot be combined with `body`")),
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => {
                let decoded = BASE64_STANDARD.decode(text);
                Bytes::from(decoded.map_err(|_| ApiProblem::bad("body_base64", "is not base64 with its padding"))?)
            }
            (None, None) => Bytes::new(),
        };
        build_response(status, headers, body)
    }

    /// Takes `{"name": "value"}`, or `[["name", "value"], …]` where a name comes more than once.
    fn take_headers(&mut self) -> Result<Vec<(String, String)>, ApiProblem> {
        let wrong = || ApiProblem::bad("headers", "is neither an object of texts nor a list of [name, value]");
        let pair = |name: String, value: &Value| Ok((name, value.as_str().ok_or_else(wrong)?.to_owned()));
        match self.0.remove("headers") {
            None | Some(Value::Null) => Ok(Vec::new()),
            Some(Value::Object(fields)) => fields.into_iter().map(|(name, value)| pair(name, &value)).collect(),
            Some(Value::Array(list)) => {
                let of_two = |two: &Value| match two.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => pair(name.clone(), value),
                    _ => Err(wrong()),
                };
                list.iter().map(of_two).collect()
            }
            Some(_) => Err(wrong()),
        }
    }

    /// Refuses fields that nothing has taken.
    ///
    /// # Errors
    /// [`ApiProblem`] names one of them.
    pub fn finish(&self) -> Result<(), ApiProblem> {
        self.0.keys().next().map_or(Ok(()), |name| Err(ApiProblem::bad(name, "is not a field here")))
    }
}
