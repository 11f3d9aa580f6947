//! The keys that a change of several is about, as addresses and forms name them, and the page with what happened to
//! each.

use askama::Template;
use http::StatusCode;

use super::format::{KeyTexts, Shown, ShownTime};
use super::list_pages::FilterForm;
use super::text::{ActionTexts, explain_refusal};
use super::{FormParams, Frame, PageAnswer, Visit, render_page};
use crate::key_admin::changes::LISTED_MAX;
use crate::key_admin::dto::BulkChange;
use crate::key_admin::params::{ChosenKey, KeySelection};
use crate::key_admin::problem::{ApiProblem, ProblemCode};
use oncegate_domain::execution_risk::ActionKind;
use oncegate_store::admin::{KeyEntry, KeyFilter};

/// The parameter of a checked box: `ID.VERSION` of a key.
const CHOSEN: &str = "chosen";

/// The keys of a change as they were chosen: one by one, or else all that fit the filter.
pub struct SelectionForm {
    pub filter: FilterForm,
    pub chosen: Vec<String>,
}

impl SelectionForm {
    pub fn from_params(params: &FormParams) -> Self {
        Self { filter: FilterForm::from_params(params), chosen: params.all(CHOSEN).map(str::to_owned).collect() }
    }

    pub fn fields(&self) -> Vec<(&'static str, &str)> {
        let conditions = self.filter.conditions.iter().map(|(name, text)| (*name, &**text));
        conditions.chain(self.chosen.iter().map(|chosen| (CHOSEN, &**chosen))).collect()
    }

    pub fn to_key_selection(&self) -> Result<KeySelection, ApiProblem> {
        let filter = self.filter.to_key_filter()?;
        if !self.chosen.is_empty() {
            let wrong = || ApiProblem::bad(CHOSEN, "is not a key from a list of this page");
            let key = |text: &String| -> Result<_, ApiProblem> {
                let (id, seen) = text.split_once('.').ok_or_else(wrong)?;
                Ok(ChosenKey { id: id.to_owned(), seen: Some(seen.to_owned()) })
            };
            return Ok(KeySelection::ByIds(self.chosen.iter().map(key).collect::<Result<_, _>>()?));
        }
        // A change of all keys at once needs the command line: a link without a filter is more likely a mistake.
        if filter == KeyFilter::default() {
            return Err(ApiProblem::bad("chosen", "is empty: choose keys in the list, or say which by a filter"));
        }
        Ok(KeySelection::ByFilter(filter))
    }
}

/// The address of the page with the result of a change: repeating the request for it changes nothing.
pub fn result_address(action: ActionKind, change: &BulkChange) -> String {
    let mut address = format!(
        "/keys/changed?done={}&changed={}&refused={}&behind={}",
        action.text().name,
        change.changed,
        change.refused_count,
        change.instances_behind.unwrap_or(0),
    );
    for id in &change.changed_keys {
        address.push_str(&format!("&key={}", id.short_id()));
    }
    for refused in &change.refused {
        address.push_str(&format!("&key={}.{}", refused.id.short_id(), refused.problem.code.name()));
    }
    address
}

/// Returns the keys of such an address, each with the reason why it was not changed.
pub fn read_results(query: &FormParams) -> impl Iterator<Item = (&str, Option<ProblemCode>)> {
    let result = |text| match str::split_once(text, '.') {
        Some((id, code)) => (id, Some(ProblemCode::parse(code).unwrap_or(ProblemCode::BadRequest))),
        None => (text, None),
    };
    // As many as `result_address` writes: each costs the store a lookup.
    query.all("key").take(2 * LISTED_MAX).map(result)
}

struct KeyResult {
    /// The first digits of its id.
    id: String,
    refusal: Option<&'static str>,
    /// The key as it is now; `None` where it is gone.
    now: Option<KeyEntry>,
}

#[derive(Template)]
#[template(path = "bulk_result.html")]
struct BulkResultPage {
    frame: Frame,
    results: Vec<KeyResult>,
    more: u64,
}

impl Visit<'_> {
    /// Shows what a change has done to each key, and the state that the key is in now.
    pub(super) async fn show_bulk_result(&self) -> PageAnswer {
        let mut results = Vec::new();
        for (id, refusal) in read_results(&self.query) {
            let now = match self.key_admin().find_entry(id).await {
                Ok(entry) => Some(entry),
                Err(problem) if problem.code == ProblemCode::NoSuchKey => None,
                Err(problem) => return Err(problem),
            };
            results.push(KeyResult { id: id.to_owned(), refusal: refusal.map(explain_refusal), now });
        }
        let count = |name: &str| self.query.get(name).parse::<u64>().unwrap_or(0);
        let more = count("changed").saturating_add(count("refused")).saturating_sub(results.len() as u64);
        Ok(render_page(StatusCode::OK, &BulkResultPage { frame: self.build_frame().await, results, more }))
    }
}
