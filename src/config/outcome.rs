//! Reads a route's rules about the bodies of responses.

use serde_json::Value;

use super::reader::Section;
use super::value_parsers::json_pointer;
use crate::domain::outcome_rules::{OutcomeRule, OutcomeRules};
use crate::domain::response_policy::ResponseVerdict;

/// Reads `outcome`.
pub(super) fn read(section: &Section<'_>) -> Option<OutcomeRules> {
    let rules: Vec<_> = section.tables("outcome", &section.empty()).iter().map(read_rule).collect();
    rules.into_iter().collect::<Option<_>>().map(OutcomeRules::new)
}

fn read_rule(section: &Section<'_>) -> Option<OutcomeRule> {
    let pointer = section.parsed("pointer", |text| match text {
        "" => Err("is the whole body: write a JSON Pointer like `/errors/0`".to_owned()),
        text => json_pointer(text),
    });
    let equals = section.scalar("equals");
    let without = section.parsed("without", |text| match text {
        "" => Ok(None),
        text => json_pointer(text).map(Some),
    });
    let verdict = section.choice("is", |word| match word {
        "store" => Some(ResponseVerdict::Store),
        "release" => Some(ResponseVerdict::Release),
        "unknown" => Some(ResponseVerdict::Unknown),
        _ => None,
    });
    Some(OutcomeRule {
        pointer: pointer?.value,
        equals: Some(equals?.value).filter(|value| *value != Value::String(String::new())),
        without: without?.value,
        verdict: verdict?.value,
    })
}
