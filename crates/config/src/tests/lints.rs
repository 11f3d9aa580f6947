//! Lints: valid settings that are warned about by name, and files that are right and stay quiet.

use super::load_in;
use super::{config, one_problem, problems, route};
use crate::environment::FakeEnvironment;
use oncegate_settings::*;

/// The names of the warnings about a file.
fn names(text: &str) -> Vec<String> {
    let name = |warning: &String| Some(warning.strip_suffix(']')?.rsplit_once(" [")?.1.to_owned());
    config(text).live.warnings.iter().map(|warning| name(warning).unwrap_or_else(|| panic!("{warning}"))).collect()
}

/// The lines of a route beside the kind, each with the warning about it.
const DANGEROUS: [(&str, &str, &str); 20] = [
    ("trusted_proxies = ['0.0.0.0/0']", "", "any-proxy"),
    ("", "kind = 'money'\nrelease_statuses = ['2xx']", "money-2xx"),
    ("", "kind = 'money'\nrelease_statuses = ['201']", "money-2xx"),
    ("", "kind = 'money'\noutcome = [{ pointer = '/error', is = 'release' }]", "money-2xx"),
    ("", "kind = 'money'\nrelease_statuses = ['5xx']", "money-5xx"),
    ("", "kind = 'money'\nkey = { required = false }", "money-keyless"),
    ("", "kind = 'money'\nstore_down = 'bypass'", "money-bypass"),
    ("", "kind = 'money'\non_unknown = 'retry'", "money-retry"),
    ("", "kind = 'money'\non_unknown = 'retry-when-quiet'", "money-retry"),
    ("", "kind = 'money'\nfingerprint.body = 'none'", "money-body"),
    ("", "ttl = '1s'", "short-ttl"),
    ("", "ttl = '59s'", "short-ttl"),
    ("drain_timeout = '5s'", "", "short-drain"),
    ("", "upstream_timeout = '2m'", "short-drain"),
    ("", "upstream_idle_timeout = '5m'", "long-idle"),
    ("store.url = 'memory:'", "", "memory-store"),
    ("", "scope = ['none']", "scope-none"),
    ("", "scope = ['json:/user']", "scope-none"),
    ("", "scope = ['query:user', 'form:account?']", "scope-none"),
    ("", "scope = ['xml:/user']", "scope-none"),
];

#[test]
fn each_valid_and_dangerous_setting_has_a_warning_by_name_that_the_file_can_allow() {
    for (top, lines, name) in DANGEROUS {
        let file = |allow: &str, defaults: &str, own: &str| {
            format!("{allow}{top}\n{defaults}{}", route(&format!("{lines}\n{own}")))
        };
        assert_eq!(names(&file("", "", "")), [name], "{top} {lines}");
        let allow = format!("allow = ['{name}']\n");
        assert_eq!(names(&file(&allow, "", "")), [""; 0], "{name} at the top");
        let of_the_file = ["any-proxy", "memory-store"].contains(&name);
        for (defaults, own) in [(&*format!("[defaults]\n{allow}"), ""), ("", &*allow)] {
            assert_eq!(names(&file("", defaults, own)).is_empty(), !of_the_file, "{name}: {defaults}{own}");
        }
        assert_eq!(names(&file("", &format!("[defaults]\n{allow}"), "allow = []")), [name], "the route's own counts");
    }
    let both = format!("{}[[routes]]\nname = 'b'\npath = '/b'\nscope = ['none']", route("scope = ['none']\n"));
    let warnings = config(&both).live.warnings;
    assert!(warnings.len() == 1 && warnings[0].starts_with("routes `a`, `b`: scope is `none`: "), "{warnings:?}");
}

#[test]
fn files_that_are_right_stay_quiet() {
    let exact = "release_statuses = ['401', '403', '408', '412', '417', '425', '429', '503']";
    for (top, lines) in [
        ("", "kind = 'money'"),
        // docs/choosing.md recommends it for a service that answers 503 before it begins anything.
        ("", &*format!("kind = 'money'\n{exact}")),
        ("", &format!("{exact}\nunknown_statuses = ['5xx']\nkey.required = true")),
        // A call of gRPC is judged by its own status.
        ("", "kind = 'money'\nstore_statuses = ['grpc:OK']\nrelease_statuses = ['grpc:UNAVAILABLE']"),
        // A request that has not paid has no key.
        ("", "kind = 'money'\ndialect = 'x402'\nkey = { required = false }"),
        // The token is the proof, and the service refuses one that is used later.
        ("secret = 'a secret of some length'\nstore.encrypt = true", "kind = 'token'"),
        // A deletion has no body.
        ("", "kind = 'money'\nmethods = ['DELETE']\nfingerprint.body = 'none'"),
        // Nothing is guarded yet, or by intention.
        ("", "kind = 'money'\nmode = 'observe'\nrelease_statuses = ['5xx']\non_unknown = 'retry'\nttl = '1s'"),
        ("", "kind = 'money'\nmode = 'off'\nkey.required = false\nstore_down = 'bypass'\nupstream_timeout = '1h'"),
        // What is accepted for later is refused while the store is away.
        ("secret = 'the only secret of ours'", "kind = 'money'\ndelivery = 'async'\nstore_down = 'bypass'"),
        // These late retries are refused.
        ("", "ttl = '1s'\nafter_ttl = 'refuse'"),
        ("", "ttl = '30s'\ndialect = 'repeatability'"),
        ("", "ttl = '1m'\nupstream_idle_timeout = '60s'\nupstream_timeout = '40s'"),
        ("trusted_proxies = ['10.0.0.0/8', 'fd00::/8', '2001:db8::/32']", ""),
        // Every option of its kind, without money.
        (
            "",
            "release_statuses = ['5xx']\nkey.required = false\nstore_down = 'bypass'\non_unknown = 'retry'\nfingerprint.body = 'none'",
        ),
    ] {
        assert_eq!(config(&format!("{top}\n{}", route(lines))).live.warnings, [""; 0], "{top} {lines}");
    }
    let over_http2 = format!("upstream = 'h2c://h'\n{}", route("kind = 'money'\nupstream_idle_timeout = '5m'"));
    assert_eq!(load_in(FakeEnvironment::default(), &over_http2).unwrap().live.warnings, [""; 0]);
    // The preset of a route's own dialect beats the kind of [defaults].
    for dialect in Dialect::WORDS {
        let text = format!("[defaults]\nkind = 'money'\n{}", route(&format!("dialect = '{dialect}'")));
        assert_eq!(names(&text), [""; 0], "{dialect}");
        let text = route(&format!("kind = 'money'\ndialect = '{dialect}'"));
        assert_eq!(names(&text), [""; 0], "{dialect}");
    }
}

#[test]
fn money_is_warned_about_by_what_the_route_would_do_with_each_failure_of_its_protocol() {
    for (lines, shown) in [
        ("release_statuses = ['503']", None),
        ("release_statuses = ['501', '503', '505']", None),
        ("release_statuses = ['500']", Some("after a 500,")),
        ("release_statuses = ['5xx']", Some("after a 500,")),
        ("release_statuses = ['5xx']\nunknown_statuses = ['500']", Some("after a 501,")),
        (
            "release_statuses = ['5xx']\nstore_statuses = ['2xx', '500']\nunknown_statuses = ['501']",
            Some("after a 502,"),
        ),
        ("release_statuses = ['504']", Some("after a 504,")),
        ("release_statuses = ['502', '503']", Some("after a 502,")),
        ("store_statuses = ['2xx', '3xx', '4xx', '5xx']", None),
        ("unknown_statuses = ['5xx']", None),
        ("release_statuses = ['grpc:UNAVAILABLE', 'grpc:ABORTED']", None),
        ("release_statuses = ['grpc:INTERNAL']", Some("after a grpc:INTERNAL,")),
        ("release_statuses = ['503', 'grpc:DEADLINE_EXCEEDED']", Some("after a grpc:DEADLINE_EXCEEDED,")),
        ("dialect = 'stripe'", None),
        ("dialect = 'graphql'\nrelease_statuses = ['4xx', '5xx']", Some("after a 500,")),
    ] {
        for (defaults, own) in [("", "kind = 'money'\n"), ("[defaults]\nkind = 'money'\n", "")] {
            let warnings = config(&format!("{defaults}{}", route(&format!("{own}{lines}")))).live.warnings;
            assert_eq!(warnings.len(), usize::from(shown.is_some()), "{lines}: {warnings:?}");
            assert!(shown.is_none_or(|shown| warnings[0].contains(shown)), "{lines}: {warnings:?}");
        }
    }
}

#[test]
fn networks_in_which_anybody_may_be_are_no_trusted_proxies() {
    for (networks, is_named) in [
        ("'0.0.0.0/0'", true),
        ("'::/0'", true),
        ("'10.0.0.0/8', '::/0'", true),
        ("'0.0.0.0/1', '128.0.0.0/1'", true),
        ("'10.0.0.0/8', '11.0.0.0/8'", true),
        ("'2000::/3'", true),
        ("'10.0.0.0/8', '172.16.0.0/12', '192.168.0.0/16', 'fc00::/7'", false),
        ("", false),
    ] {
        let found = names(&format!("trusted_proxies = [{networks}]"));
        assert_eq!(found.contains(&"any-proxy".to_owned()), is_named, "{networks}: {found:?}");
    }
}

#[test]
fn a_name_that_is_no_lint_is_a_problem_with_the_nearest_one() {
    one_problem("allow = ['money-5x']", "2:10: allow[0]: `money-5x` is not known: write `readable-file`, ");
    for (text, hint) in [
        (route("allow = ['scope-none', 'money_5xx']"), "did you mean `money-5xx`?"),
        ("[defaults]\nallow = ['short-tll']".to_owned(), "did you mean `short-ttl`?"),
        ("allow = ['5xx']".to_owned(), ""),
    ] {
        let problems = problems(&text);
        assert!(problems.len() == 1 && problems[0].ends_with(hint), "{text}: {problems:?}");
    }
    one_problem("allow = 'money-5xx'", "2:9: allow: must be a list of texts");
}
