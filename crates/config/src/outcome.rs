//! Reads a route's rules about the bodies of responses.

use std::sync::Arc;

use serde_json::Value;

use super::options::options;
use super::reader::Section;
use super::value_parsers::json_pointer;
use canonical_json::Pointer;
use oncegate_domain::outcome_rules::{OutcomeRule, OutcomeRules};
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_settings::Word;

options! {
    struct OutcomeOptions {
        /// the JSON Pointer that must lead to a value other than null; `*` for any name
        pointer: Text => Option<Pointer>, required(parse_part);
        /// the text, number or boolean that must be there; empty for any value
        equals: Scalar = "" => Value, scalar();
        /// a JSON Pointer that must lead to nothing, not even null; empty for none
        without: Text = "" => Option<Pointer>, optional(json_pointer);
        /// what the response then means for the attempt
        is: Choice(ResponseVerdict::WORDS) => Option<ResponseVerdict>, required_choice();
    }
}

/// Reads the rules that have no problem.
pub(super) fn read(section: &Section<'_>) -> Arc<OutcomeRules> {
    let rules = section.tables("outcome");
    Arc::new(OutcomeRules(rules.iter().filter_map(read_rule).collect()))
}

fn read_rule(section: &Section<'_>) -> Option<OutcomeRule> {
    let OutcomeOptions { pointer, equals, without, is } = OutcomeOptions::read(section);
    let equals = Some(equals).filter(|value| *value != Value::String(String::new()));
    Some(OutcomeRule { pointer: pointer?, equals, without, verdict: is? })
}

fn parse_part(text: &str) -> Result<Pointer, String> {
    match text {
        "" => Err("is the whole body: write a JSON Pointer like `/errors/0`".into()),
        text => json_pointer(text),
    }
}
