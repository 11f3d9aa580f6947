//! The data that a reader of the database can read with a configuration.

use std::sync::Arc;

use oncegate_domain::response_policy::OnUnknown;
use oncegate_settings::{DeliveryMode, LoadedConfig, Route, RouteMode, StoreLocation};

/// The part of the exposure that a start logs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StartExposure {
    /// Whether more becomes known than an operator may expect, and the database usually has other readers than the
    /// proxy.
    pub is_warning: bool,
    /// The facts, and the setting that changes them.
    pub text: &'static str,
}

/// The exposure to log at start: one sentence; `None` where a reader learns no more than he must.
pub fn start_exposure(config: &LoadedConfig) -> Option<StartExposure> {
    let is_shared = match &config.live.store_url {
        StoreLocation::Memory => return None,
        StoreLocation::Postgres(_) => true,
        StoreLocation::Sqlite(_) => false,
    };
    let has = |mode| config.live.routes.iter().any(|route| route.options.mode == mode);
    let text = match (config.live.secrets.is_empty(), config.start.store.encrypt) {
        (true, _) if !has(RouteMode::Enforce) && has(RouteMode::Observe) => {
            "there is no `secret`: a reader of the database can guess callers' credentials and short bodies by brute force; \
             `oncegate check` shows what is readable"
        }
        _ if !has(RouteMode::Enforce) => return None,
        (true, _) => {
            "there is no `secret`: a reader of the database reads stored responses, and can guess callers' credentials and short \
             bodies by brute force; `oncegate check` shows what is readable"
        }
        (false, false) => "a reader of the database reads stored responses; `store.encrypt = true` encrypts them",
        (false, true) => return None,
    };
    Some(StartExposure { is_warning: is_shared && config.live.secrets.is_empty(), text })
}

/// The exposure in detail: labels and values for `oncegate check`. Empty where nothing is stored, or in memory alone.
pub(super) fn describe(config: &LoadedConfig) -> Vec<(&'static str, String)> {
    let routes: Vec<_> = config.live.routes.iter().filter(|route| route.options.mode != RouteMode::Off).collect();
    if routes.is_empty() || config.live.store_url == StoreLocation::Memory {
        return Vec::new();
    }
    let named = |has: fn(&Route) -> bool| name(&routes, has);
    let has_secret = !config.live.secrets.is_empty();
    let guess = if has_secret { "only with the `secret`" } else { "by brute force, as there is no `secret`" };
    let mut rows = vec![("in the database", "keys, routes, states and times in clear; and".to_owned())];
    if let Some(routes) = named(|route| route.options.key.hash) {
        rows.push(("  secret keys", format!("hashed, by `key.hash`; they can be found {guess}{routes}")));
    }
    if let Some(routes) = named(|route| !route.scope.parts.is_empty()) {
        rows.push(("  credentials", format!("of callers: hashed; they can be found {guess}{routes}")));
    }
    if let Some(routes) = named(|route| route.recipe.reads_body()) {
        rows.push(("  requests", format!("bodies: hashed; short ones can be found {guess}{routes}")));
    }
    if let Some(routes) = named(|route| !route.options.index.is_empty()) {
        rows.push(("  indexed values", format!("hashed; they can be found {guess}{routes}")));
    }
    if let Some(routes) = named(|route| route.options.keep_client_address) {
        rows.push(("  addresses", format!("of clients: in clear{routes}")));
    }
    if let Some(routes) = named(|Route { options, .. }| {
        options.mode == RouteMode::Enforce
            && (options.on_unknown == OnUnknown::Vendor || options.delivery != DeliveryMode::Sync)
    }) {
        rows.push(("  kept requests", format!("encrypted, until they are settled{routes}")));
    }
    if let Some(routes) = named(|route| route.options.mode == RouteMode::Enforce) {
        let setting = if has_secret { "`store.encrypt`" } else { "`secret` and `store.encrypt`" };
        rows.push(match config.start.store.encrypt {
            true => ("  responses", format!("encrypted{routes}")),
            false => ("  responses", format!("in clear, fields and bodies, without {setting}{routes}")),
        });
        rows.push(("  paths", format!("in clear, without queries{routes}")));
    }
    let keeps_query = |route: &Route| route.reconcile.as_ref().is_some_and(|reconcile| reconcile.lookup.names_path());
    if let Some(routes) = named(keeps_query) {
        rows.push(("  queries", format!("in clear, for `reconcile.url`{routes}")));
    }
    rows
}

/// The names of the routes that have a property: nothing where all have it, `None` where none has.
fn name(routes: &[&Arc<Route>], has: fn(&Route) -> bool) -> Option<String> {
    let names: Vec<&str> = routes.iter().filter(|route| has(route)).map(|route| &*route.name).collect();
    match names.len() {
        0 => None,
        count if count == routes.len() => Some(String::new()),
        _ => Some(format!(" ({})", names.join(", "))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Overrides, load};

    struct Folder(tempfile::TempDir);

    impl Folder {
        fn config(&self, text: &str) -> LoadedConfig {
            let file = self.0.path().join("oncegate.toml");
            std::fs::write(&file, format!("upstream = 'http://a'\n{text}")).unwrap();
            load(Some(&file), &Overrides::default(), &crate::ProcessEnvironment).unwrap()
        }
    }

    fn described(config: &LoadedConfig) -> Vec<String> {
        describe(config).into_iter().map(|(label, value)| format!("{}: {value}", label.trim())).collect()
    }

    #[test]
    fn check_says_what_a_reader_learns_by_secret_encryption_and_route() {
        const SECRET: &str = "secret = 'the only secret of ours'\n";
        const POSTGRES: &str = "[store]\nurl = 'postgres://127.0.0.1/d'\n";
        let folder = Folder(tempfile::tempdir().unwrap());
        let always = "in the database: keys, routes, states and times in clear; and";
        let config = folder.config("");
        let open = [
            always,
            "credentials: of callers: hashed; they can be found by brute force, as there is no `secret`",
            "requests: bodies: hashed; short ones can be found by brute force, as there is no `secret`",
            "responses: in clear, fields and bodies, without `secret` and `store.encrypt`",
            "paths: in clear, without queries",
        ];
        assert_eq!(described(&config), open);
        assert_eq!(
            start_exposure(&config).map(|found| found.is_warning),
            Some(false),
            "SQLite is the proxy's own file"
        );
        let config = folder.config(POSTGRES);
        assert_eq!(described(&config), open);
        assert_eq!(start_exposure(&config).map(|found| found.is_warning), Some(true));

        let config = folder.config(&format!("{SECRET}{POSTGRES}"));
        let hashed = [
            "credentials: of callers: hashed; they can be found only with the `secret`",
            "requests: bodies: hashed; short ones can be found only with the `secret`",
        ];
        let clear = "responses: in clear, fields and bodies, without `store.encrypt`";
        let paths = "paths: in clear, without queries";
        assert_eq!(described(&config), [&[always][..], &hashed, &[clear, paths]].concat());
        let start = start_exposure(&config).unwrap();
        assert!(!start.is_warning && start.text.contains("reads stored responses"), "{start:?}");

        let config = folder.config(&format!("{SECRET}{POSTGRES}encrypt = true"));
        let sealed = "responses: encrypted";
        assert_eq!(described(&config), [&[always][..], &hashed, &[sealed, paths]].concat());
        assert_eq!(start_exposure(&config), None);
    }

    #[test]
    fn routes_that_store_less_are_told_apart() {
        let folder = Folder(tempfile::tempdir().unwrap());
        let config = folder.config(
            "[[routes]]\nname = 'pay'\npath = '/pay'\nscope = ['none']\nkey.hash = true\nreconcile = { url = 'http://a/{id}?of={path}' }\n\
             [[routes]]\nname = 'upload'\npath = '/upload'\nfingerprint = { body = 'none' }\n\
             [[routes]]\nname = 'seen'\npath = '/seen'\nmode = 'observe'",
        );
        let expected = [
            "in the database: keys, routes, states and times in clear; and",
            "secret keys: hashed, by `key.hash`; they can be found by brute force, as there is no `secret` (pay)",
            "credentials: of callers: hashed; they can be found by brute force, as there is no `secret` (upload, seen)",
            "requests: bodies: hashed; short ones can be found by brute force, as there is no `secret` (pay, seen)",
            "responses: in clear, fields and bodies, without `secret` and `store.encrypt` (pay, upload)",
            "paths: in clear, without queries (pay, upload)",
            "queries: in clear, for `reconcile.url` (pay)",
        ];
        assert_eq!(described(&config), expected);
        let config = folder.config(
            "secret = 'the only secret of ours'\n[[routes]]\nname = 'pay'\npath = '/pay'\n\
             [[routes]]\nname = 'later'\npath = '/later'\ndelivery = 'async'\n\
             [[routes]]\nname = 'seen'\npath = '/seen'\ndelivery = 'async'\nmode = 'observe'\n\
             [[routes]]\nname = 'charge'\npath = '/charge'\nvendor = 'stripe'",
        );
        let kept = "kept requests: encrypted, until they are settled (later, charge)";
        assert!(described(&config).iter().any(|row| row == kept), "{:?}", described(&config));
        let config = folder.config("[[routes]]\nname = 'seen'\npath = '/seen'\nmode = 'observe'");
        let observed = described(&config);
        assert_eq!(observed.len(), 3, "{observed:?}");
        assert!(observed[1].starts_with("credentials") && observed[2].starts_with("requests"), "{observed:?}");
        assert!(start_exposure(&config).is_some_and(|found| !found.text.contains("response")));
        for nothing in ["[[routes]]\nname = 'seen'\npath = '/seen'\nmode = 'off'", "[store]\nurl = 'memory:'"] {
            let config = folder.config(nothing);
            assert_eq!((described(&config), start_exposure(&config)), (Vec::new(), None), "{nothing}");
        }
    }
}
