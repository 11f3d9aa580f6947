//! Query strings.

use super::{AuditQuery, CONDITIONS, LIMIT_DEFAULT, LIMIT_MAX, ListQuery, add_condition};
use crate::admin::key_admin::problem::ApiProblem;
use crate::domain::fingerprint::form;
use crate::store::admin::KeyFilter;

/// The parameters of a query string, each at most once.
pub(super) struct QueryParams(Vec<(String, Vec<u8>)>);

impl QueryParams {
    /// Reads a query string without its `?`.
    pub(super) fn parse(query: &str) -> Result<Self, ApiProblem> {
        let mut parameters: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, value) in form::pairs(query.as_bytes()) {
            let name = String::from_utf8_lossy(&name).into_owned();
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(ApiProblem::bad(&name, "is given twice"));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    pub(super) fn take_list_query(&mut self) -> Result<ListQuery, ApiProblem> {
        let filter = self.take_filter()?;
        let limit = self.take_limit()?;
        let cursor = self.take_text("cursor")?.unwrap_or_default();
        ListQuery::new(filter, &cursor, limit)
    }

    pub(super) fn take_audit_query(&mut self) -> Result<AuditQuery, ApiProblem> {
        let limit = self.take_limit()?;
        let id = self.take_text("id")?.unwrap_or_default();
        let cursor = self.take_text("cursor")?.unwrap_or_default();
        AuditQuery::new(&id, &cursor, limit)
    }

    /// Takes the parameters that are conditions of a filter. An empty one is no condition, as nothing is changed by a list.
    pub(super) fn take_filter(&mut self) -> Result<KeyFilter, ApiProblem> {
        let mut filter = KeyFilter::default();
        for (name, value) in std::mem::take(&mut self.0) {
            let is_empty_condition = value.is_empty() && CONDITIONS.contains(&&*name);
            if !is_empty_condition && !add_condition(&mut filter, &name, &value)? {
                self.0.push((name, value));
            }
        }
        Ok(filter)
    }

    pub(super) fn take_limit(&mut self) -> Result<u32, ApiProblem> {
        let Some(text) = self.take_text("limit")? else { return Ok(LIMIT_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| ApiProblem::bad("limit", format!("is not a number from 1 to {LIMIT_MAX}")))
    }

    /// Takes `true` or `false`; a parameter that is missing or empty is `false`.
    pub(super) fn take_flag(&mut self, name: &str) -> Result<bool, ApiProblem> {
        match self.take_text(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(ApiProblem::bad(name, "is neither `true` nor `false`")),
        }
    }

    /// Takes a text; an empty one counts as missing.
    pub(super) fn take_text(&mut self, name: &str) -> Result<Option<String>, ApiProblem> {
        let Some(at) = self.0.iter().position(|(known, _)| known == name) else { return Ok(None) };
        let text = String::from_utf8(self.0.swap_remove(at).1).map_err(|_| ApiProblem::bad(name, "is not text"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Refuses parameters that nothing has taken.
    pub(super) fn finish(&self) -> Result<(), ApiProblem> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(ApiProblem::bad(name, "is not a parameter here")))
    }
}
