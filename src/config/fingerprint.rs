//! What makes two requests the same, from text to recipe.

use super::reader::Section;
use super::routes::{Context, header_name};
use crate::domain::canonical_json::{Pointer, Selection};
use crate::domain::fingerprint::{BodyRule, Plan, Recipe};

pub(super) fn read(section: &Section<'_>, context: &Context) -> Option<Recipe> {
    let body = section.choice("body", |word| match word {
        "auto" => Some(BodyRule::Auto),
        "form" => Some(BodyRule::Form),
        "json" => Some(BodyRule::Json),
        "none" => Some(BodyRule::None),
        "raw" => Some(BodyRule::Raw),
        _ => None,
    });
    let query = section.boolean("query");
    let headers = section.list("headers", header_name);
    let include = section.list("include", pointer);
    let exclude = section.list("exclude", pointer);
    let (body, include, exclude) = (body?, include?, exclude?);
    let selects = !include.value.is_empty() || !exclude.value.is_empty();
    if selects && !matches!(body.value, BodyRule::Auto | BodyRule::Json) {
        let place = (&body.place).max(&include.place).max(&exclude.place);
        section.reader().problem(place, "selects from a JSON body, and `body` says that it is not taken for one");
        return None;
    }
    let pointers = |list: Vec<super::reader::Found<Pointer>>| list.into_iter().map(|found| found.value).collect();
    let plan = Plan {
        body: body.value,
        query: query?.value,
        headers: headers?.value.into_iter().map(|name| name.value).collect(),
        selection: Selection { include: pointers(include.value), exclude: pointers(exclude.value) },
    };
    Some(Recipe::new(plan, context.secrets.as_ref()?.current()))
}

/// A JSON Pointer (RFC 6901).
pub(super) fn pointer(text: &str) -> Result<Pointer, String> {
    Pointer::parse(text).map_err(|_| "is no JSON Pointer: write one like `/order/id`, `~1` for a `/` in a name".into())
}
