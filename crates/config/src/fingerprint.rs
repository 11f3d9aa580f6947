//! Reads and checks a route's `fingerprint`.

use super::options::options;
use super::reader::Section;
use super::value_parsers::{header_name, is_of_connection, json_pointer};
use canonical_json::{Pointer, Selection};
use http::HeaderName;
use oncegate_domain::fingerprint::{BodyRule, FingerprintRules, PathForm, Recipe, Secrets};
use oncegate_settings::{Dialect, FIRST_SENT, Word};

options! {
    struct FingerprintOptions {
        /// how the body takes part
        body: Choice(BodyRule::WORDS) = "auto" => BodyRule, choice();
        /// whether the query takes part
        query: Boolean = true => bool, boolean();
        /// request fields that take part
        headers: Texts = [] => Vec<HeaderName>, values(comparable_field);
        /// JSON Pointers to the values of a JSON body that take part; empty for all; `*` for any
        include: Texts = [] => Vec<Pointer>, values(json_pointer);
        /// JSON Pointers to the values that do not take part
        exclude: Texts = [] => Vec<Pointer>, values(json_pointer);
    }
}

/// Parses the name of a field in which a retry can be expected to be equal.
fn comparable_field(text: &str) -> Result<HeaderName, String> {
    let name = header_name(text)?;
    if is_of_connection(&name) || matches!(name.as_str(), "http2-settings" | "proxy-connection") {
        return Err(
            "names a field of the connection or of how a body is sent, which may be another one in a retry".into()
        );
    }
    Ok(name)
}

/// Reads the recipe of a route, whose paths count in this form.
pub(super) fn read(section: &Section<'_>, dialect: Dialect, path: PathForm, secrets: Option<&Secrets>) -> Recipe {
    let FingerprintOptions { body, query, mut headers, include, exclude } = FingerprintOptions::read(section);
    let selects = !include.is_empty() || !exclude.is_empty();
    if selects && !matches!(body, BodyRule::Auto | BodyRule::Graphql | BodyRule::Json | BodyRule::Jsonrpc) {
        let message = "selects values of a JSON body, and by `body` it is not read as JSON";
        section.conflict(&["body", "include", "exclude"], message);
    }
    // The specification has it equal on every retry, whatever the route's own list says.
    if dialect == Dialect::Repeatability && !headers.contains(&FIRST_SENT) {
        headers.push(FIRST_SENT);
    }
    let rules = FingerprintRules { body, path, query, headers, selection: Selection { include, exclude } };
    Recipe::new(rules, secrets.and_then(Secrets::current))
}
