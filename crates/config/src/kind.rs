//! The kinds of routes: what an execution costs its user, each a preset of a route's fields.
//!
//! The preset stands directly behind the table that names the kind, before that of the dialect: keys that are written beside `kind` overrule
//! it.

use std::sync::LazyLock;

use toml::Spanned;
use toml::de::DeTable;

use super::reader::Section;
use super::words::words;

words! {
    /// What an execution of the route's requests costs.
    pub enum RouteKind {
        /// A response of the service's own failure means that the request was not executed.
        Standard = "standard",
        /// A second execution costs money: a request that may have been executed is never executed again by itself.
        Money = "money",
    }
}

/// A service may charge and then answer 500, or a gateway before it may answer 503. So no 5xx is released.
const MONEY: &str = r#"
key = { required = true }
store_statuses = ["2xx", "3xx", "4xx"]
release_statuses = ["401", "403", "408", "412", "417", "425", "429"]
unknown_statuses = ["424", "499", "5xx"]
"#;

/// Puts the preset of a route's kind behind the table that names it.
pub(super) fn with_preset(section: Section<'_>) -> Section<'_> {
    static TABLES: LazyLock<[Spanned<DeTable<'static>>; 2]> =
        LazyLock::new(|| ["", MONEY].map(|preset| DeTable::parse(preset).expect("a preset is TOML")));
    let kind: RouteKind = section.choice("kind");
    section.with_preset("kind", TABLES[usize::from(kind == RouteKind::Money)].get_ref())
}
