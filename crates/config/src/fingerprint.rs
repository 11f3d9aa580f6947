//! Reads and checks a route's `fingerprint`.

use super::options::options;
use super::reader::Section;
use super::value_parsers::{header_name, is_of_connection};
use http::HeaderName;
use oncegate_domain::batch::BatchPlace;
use oncegate_domain::fingerprint::{BodyRule, FingerprintRules, PathForm, Recipe, Secrets};
use oncegate_domain::place::Place;
use oncegate_settings::{Dialect, FIRST_SENT, KeyRule, Word};

options! {
    struct FingerprintOptions {
        /// how the body takes part
        body: Choice(BodyRule::WORDS) = "auto" => BodyRule, choice();
        /// whether the query takes part
        query: Boolean = true => bool, boolean();
        /// request fields that take part
        headers: Texts = [] => Vec<HeaderName>, values(comparable_field);
        /// the places that take part, as `json:/order/*/id`: of a body, its values; of the query, its parameters; empty
        /// for all; `*` for any
        include: Places(&[]) = [] => Vec<Place>, values(parse_place);
        /// the places that do not take part, such as `form:signature`; the key's own never does
        exclude: Places(&[]) = [] => Vec<Place>, values(parse_place);
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

/// Parses a place that a comparison may include or leave out.
fn parse_place(text: &str) -> Result<Place, String> {
    if text.starts_with('/') {
        return Err("is written with `json:` before it now".into());
    }
    match Place::parse(text)? {
        Place::Header(..) | Place::Cookie(_) => {
            Err("is a field: name it in `headers` if it takes part, as none does by itself".into())
        }
        Place::Path(_) | Place::Graphql(_) => Err("takes part as a whole, unless it is the place of the key".into()),
        place => Ok(place),
    }
}

/// Reads the recipe of a route, whose paths count in this form. The key's own places never count.
pub(super) fn read(
    section: &Section<'_>,
    (dialect, key, batch): (Dialect, &KeyRule, Option<&BatchPlace>),
    path: PathForm,
    secrets: Option<&Secrets>,
) -> Recipe {
    let FingerprintOptions { body, query, mut headers, mut include, exclude } = FingerprintOptions::read(section);
    let mut places = include.iter().chain(&exclude);
    let is_unread = |place: &Place| match body {
        BodyRule::None | BodyRule::Raw => place.is_in_body(),
        BodyRule::Form => place.is_in_body() && !matches!(place, Place::Form(..)),
        BodyRule::Json => place.is_in_body() && !matches!(place, Place::Json(_)),
        BodyRule::Auto | BodyRule::Graphql | BodyRule::Jsonrpc => false,
    };
    if places.any(is_unread) {
        let message = "selects values of a body, and by `body` it is not read so";
        section.conflict(&["body", "include", "exclude"], message);
    }
    // The specification has it equal on every retry, whatever the route's own list says.
    if dialect == Dialect::Repeatability && !headers.contains(&FIRST_SENT) {
        headers.push(FIRST_SENT);
    }
    // What stands around the list may be another in each batch that has the element.
    if include.is_empty() {
        include.extend(batch.and_then(BatchPlace::list));
    }
    let own = key.own_places().cloned().collect();
    let rules = FingerprintRules { body, path, query, headers, include, exclude, own };
    Recipe::new(rules, secrets.and_then(Secrets::current))
}
