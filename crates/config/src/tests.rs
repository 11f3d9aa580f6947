//! Whole files, as an operator writes them.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use proptest::prelude::*;

use super::environment::FakeEnvironment;
use super::*;
use oncegate_domain::fingerprint::Secret;
use oncegate_settings::*;

const UPSTREAM: &str = "upstream = 'http://127.0.0.1:3000'\n";

fn load_in(environment: FakeEnvironment, text: &str) -> Result<LoadedConfig, ConfigProblems> {
    load(Some("oncegate.toml".as_ref()), &Overrides::default(), &environment.with_file("oncegate.toml", text))
}

/// A file with an upstream, which is on its first line.
fn config(text: &str) -> LoadedConfig {
    load_in(FakeEnvironment::default(), &format!("{UPSTREAM}{text}")).unwrap_or_else(|problems| panic!("{problems}"))
}

/// As printed, without the file's name.
fn problems_in(environment: FakeEnvironment, text: &str) -> Vec<String> {
    let problems = load_in(environment, text).expect_err(text);
    problems.iter().map(|problem| problem.to_string().replace("oncegate.toml:", "")).collect()
}

fn problems(text: &str) -> Vec<String> {
    problems_in(FakeEnvironment::default(), &format!("{UPSTREAM}{text}"))
}

/// Exactly one problem, which begins like this.
fn one_problem(text: &str, begins: &str) {
    let problems = problems(text);
    assert!(problems.len() == 1 && problems[0].starts_with(begins), "{text}\n  {begins}\n  {problems:#?}");
}

fn route(fields: &str) -> String {
    format!("[[routes]]\nname = 'a'\npath = '/a'\n{fields}")
}

fn repository_file(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("config").join(name)
}

/// Two configurations are the same if they print the same and judge every status the same.
fn same(config: &LoadedConfig) -> String {
    let mut text = format!("{config:#?}");
    for route in &config.live.routes {
        for code in 200..600 {
            let code = StatusCode::from_u16(code).expect("in range");
            text += &format!("{:?}{:?}", route.statuses.verdict_on(code, false), route.statuses.verdict_on(code, true));
        }
    }
    text
}

#[test]
fn every_file_in_config_loads() {
    let directory = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("config");
    let mut count = 0;
    for entry in std::fs::read_dir(directory).expect("the directory is there") {
        let path = entry.expect("it can be listed").path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            let text = std::fs::read_to_string(&path).expect("it can be read");
            load_in(FakeEnvironment::default(), &text)
                .unwrap_or_else(|problems| panic!("{}: {problems}", path.display()));
            count += 1;
        }
    }
    assert!(count >= 2);
}

#[test]
fn the_reference_is_the_defaults() {
    let overrides = Overrides { upstream: Some("http://127.0.0.1:3000".into()), ..Overrides::default() };
    let defaults = load(None, &overrides, &FakeEnvironment::default()).expect("the defaults are a configuration");
    let text = std::fs::read_to_string(repository_file("reference.toml")).expect("it can be read");
    let reference = load_in(FakeEnvironment::default(), &text).expect("it loads");
    // The values are the same, and come from other places.
    let [reference, defaults] = [reference, defaults].map(|mut config| {
        config.live.written = WrittenOptions::default();
        config.live.routes.iter_mut().for_each(|route| Arc::make_mut(route).origins = ValueOrigins::default());
        config
    });
    assert_eq!(same(&reference), same(&defaults));
}

#[test]
fn an_upstream_is_all_that_is_needed() {
    let config = config("");
    assert_eq!(config.start.listen.to_string(), "127.0.0.1:8080");
    assert_eq!(config.start.store.url, StoreLocation::Sqlite("oncegate.db".into()));
    assert!(config.live.warnings.is_empty());
    let [route] = config.live.routes.as_slice() else { panic!("{:?}", config.live.routes) };
    assert_eq!((&*route.name, route.path.as_str()), ("default", "/{*rest}"));
    assert_eq!(route.options.methods, ["POST", "PATCH"]);
    assert!(route.scope.is_default && !route.options.key.required);
    assert_eq!(route.quiet_after, Duration::from_secs(70));
    assert_eq!(route.options.max_request_body, 1 << 20);
}

#[test]
fn no_file_and_no_flag_lack_an_upstream() {
    let problems = load(None, &Overrides::default(), &FakeEnvironment::default()).expect_err("no upstream");
    assert!(problems.to_string().starts_with("upstream: is missing: the service"), "{problems}");
    let problems = problems_in(FakeEnvironment::default(), "listen = '127.0.0.1:1'");
    assert!(problems.len() == 1 && problems[0].starts_with("1:1: upstream: is missing"), "{problems:?}");
}

#[test]
fn a_flag_beats_a_variable_beats_the_file_beats_the_default() {
    let file = "listen = '127.0.0.1:1'\nupstream = 'http://file'\n[store]\nurl = 'sqlite:file'\n[admin]\nlisten = '[::1]:1'\n\
                [telemetry]\nlog = 'warn'";
    let written = || FakeEnvironment::default().with_file("f", file);
    let from = |overrides: &Overrides, environment: FakeEnvironment| {
        let config = load(Some("f".as_ref()), overrides, &environment).expect("it loads");
        let (store, admin, log) = (&config.start.store.url, config.start.admin.listen, &config.start.telemetry.log);
        format!("{} {} {store} {admin} {log}", config.start.listen, config.live.services[0].upstream)
    };
    let nothing = Overrides::default();
    assert_eq!(from(&nothing, written()), "127.0.0.1:1 http://file sqlite:file [::1]:1 warn");
    let variables = || {
        written()
            .with_variable("ONCEGATE_LISTEN", "127.0.0.1:2")
            .with_variable("ONCEGATE_UPSTREAM", "http://variable")
            .with_variable("ONCEGATE_STORE_URL", "sqlite:variable")
            .with_variable("ONCEGATE_ADMIN_LISTEN", "[::1]:2")
            .with_variable("ONCEGATE_LOG", "debug")
    };
    assert_eq!(from(&nothing, variables()), "127.0.0.1:2 http://variable sqlite:variable [::1]:2 debug");
    let flags = Overrides {
        listen: Some("127.0.0.1:3".into()),
        upstream: Some("http://flag".into()),
        store: Some("sqlite:flag".into()),
        admin: Some("[::1]:3".into()),
        ..Overrides::default()
    };
    assert_eq!(from(&flags, variables()), "127.0.0.1:3 http://flag sqlite:flag [::1]:3 debug");
    assert_eq!(from(&nothing, written().with_variable("ONCEGATE_LISTEN", "")).split(' ').next(), Some("127.0.0.1:1"));
}

#[test]
fn values_of_flags_and_variables_are_checked_and_named_in_problems() {
    let overrides = Overrides { listen: Some(":8080".into()), ..Overrides::default() };
    let environment = FakeEnvironment::default()
        .with_variable("ONCEGATE_UPSTREAM", "ftp://a")
        .with_variable("ONCEGATE_STORE_URL", "mysql://u:hunter2@h");
    let problems = load(None, &overrides, &environment).expect_err("all wrong").to_string();
    let lines: Vec<_> = problems.lines().collect();
    assert_eq!(lines.len(), 3, "{problems}");
    assert!(lines[0].starts_with("--listen: `:8080` is no address and port"), "{problems}");
    assert!(lines[1].starts_with("ONCEGATE_STORE_URL: has an unknown scheme"), "{problems}");
    assert!(lines[2].starts_with("ONCEGATE_UPSTREAM: has an unknown scheme"), "{problems}");
    assert!(!problems.contains("hunter2"));
}

#[test]
fn all_problems_of_a_file_are_found_at_once_in_its_order() {
    let text = "listen = 8080\nupstrem = 'http://a'\n[store]\nurl = 'redis:x'\n[[routes]]\nname = 'a b'\npath = 'v1'\ntll = \
                '1h'\nttl = 30\n[[routes]]\nname = 'b'\nkey = { frm = 'x' }\n";
    let begins = [
        "1:1: upstream: is missing",
        "1:10: listen: must be a text in quotes; this is a number",
        "2:1: upstrem: unknown key; did you mean `upstream`?",
        "4:7: store.url: has an unknown scheme",
        "6:8: routes[0].name: `a b` is no name",
        "7:8: routes[0].path: `v1` must begin with `/`",
        "8:1: routes[0].tll: unknown key; did you mean `ttl`?",
        "9:7: routes[0].ttl: must be in quotes and have a unit, like \"30s\"; this is a number",
        "10:1: routes[1].path: is missing",
        "12:9: routes[1].key.frm: unknown key; did you mean `from`?",
    ];
    let problems = problems_in(FakeEnvironment::default(), text);
    assert_eq!(problems.len(), begins.len(), "{problems:#?}");
    for (problem, begin) in problems.iter().zip(begins) {
        assert!(problem.starts_with(begin), "{problem}\n  {begin}");
    }
}

#[test]
fn a_file_that_is_no_toml_is_one_problem_with_its_position_and_without_the_line() {
    let problems = problems("secret = 'hunter2 hunter2 hunter2\n");
    assert!(problems.len() == 1 && problems[0].starts_with("2:"), "{problems:?}");
    assert!(!problems[0].contains("hunter2"), "{problems:?}");
    one_problem("service = 'a'\nservice = 'b'", "3:1: ");
    let problems =
        load(Some("none.toml".as_ref()), &Overrides::default(), &FakeEnvironment::default()).expect_err("no file");
    assert!(problems.to_string().starts_with("none.toml: cannot be read: "), "{problems}");
}

#[test]
fn an_unknown_key_that_belongs_elsewhere_is_sent_there() {
    one_problem("ttl = '1h'", "2:1: ttl: unknown key; known here are listen, upstream, service");
    assert!(problems("ttl = '1h'")[0].ends_with("(`ttl` is written in `[[routes]]` or `[defaults]`)"));
    assert!(
        problems("[store]\nservice = 'x'")[0]
            .ends_with("(`service` is written at the top of the file, before the first table)")
    );
    one_problem("[defaults]\npath = '/'", "3:1: defaults.path: unknown key");
    one_problem(&route("accent = 'ietf'"), "5:1: routes[0].accent: unknown key; known here are name, was, path");
}

proptest! {
    /// A file that is changed in any way is read as a configuration, or refused with problems that name the file.
    #[test]
    fn a_garbled_file_is_answered_with_problems(
        wounds in prop::collection::vec((any::<prop::sample::Index>(), 0..40_usize, "[ -~\n]{0,6}"), 1..6)
    ) {
        let mut text: Vec<char> = include_str!("../../../config/reference.toml").chars().collect();
        text.retain(|char| char.is_ascii());
        for (start, length, instead) in wounds {
            let start = start.index(text.len());
            let end = (start + length).min(text.len());
            text.splice(start..end, instead.chars());
        }
        let text: String = text.into_iter().collect();
        if let Err(problems) = load_in(FakeEnvironment::default(), &text) {
            prop_assert!(problems.iter().count() > 0);
            for problem in problems.iter() {
                prop_assert!(problem.file.is_some() && !problem.message.is_empty());
            }
        }
    }
}

#[test]
fn strings_are_filled_in_and_never_shown() {
    let environment = || {
        FakeEnvironment::default()
            .with_variable("PASSWORD", "hunter2")
            .with_file("/run/secrets/s", "hunter2+hunter2+\n")
    };
    let text = format!(
        "{UPSTREAM}secret = '${{file:/run/secrets/s}}'\n[store]\nurl = 'postgres://u:${{PASSWORD}}@h/d?sslmode=disable'"
    );
    let config = load_in(environment(), &text).expect("it loads");
    assert!(config.live.secrets.current().is_some());
    assert_eq!(config.start.store.url, StoreLocation::parse("postgres://u:hunter2@h/d?sslmode=disable").unwrap());
    assert!(!format!("{config:?}{}", describe(&config)).contains("hunter2"));

    let mut text = "service = '${NONE}'\n".to_owned();
    for (key, value) in [
        ("listen", "'${PASSWORD}'"),
        ("upstream", "'${PASSWORD}'"),
        ("secret", "'${PASSWORD}'"),
        ("trusted_proxies", "['${PASSWORD}']"),
        ("drain_delay", "'${PASSWORD}'"),
        ("problem_base", "'${PASSWORD}'"),
        ("store.url", "'${PASSWORD}'"),
        ("cache.redis", "'${PASSWORD}'"),
        ("telemetry.log", "'a=b=${PASSWORD}'"),
        ("telemetry.format", "'${PASSWORD}'"),
        ("defaults.key.from", "'header:${PASSWORD} '"),
        ("defaults.methods", "['${PASSWORD}']"),
        ("defaults.scope", "['${PASSWORD}']"),
        ("defaults.space", "'${PASSWORD}'"),
        ("defaults.store_statuses", "['${PASSWORD}']"),
        ("defaults.ttl", "'${PASSWORD}'"),
        ("defaults.max_request_body", "'${PASSWORD}'"),
    ] {
        text += &format!("{key} = {value}\n");
    }
    text += "[[routes]]\nname = '${PASSWORD} '\npath = '${PASSWORD}'";
    let problems = problems_in(environment(), &text);
    assert_eq!(problems.len(), 20, "{problems:#?}");
    assert!(problems[0].starts_with("1:11: service: the environment has no `NONE`"), "{problems:#?}");
    assert!(problems[1].starts_with("2:10: listen: `${PASSWORD}` is no address"), "{problems:#?}");
    assert!(!problems.concat().contains("hunter2"), "{problems:#?}");
}

#[test]
fn a_secret_is_long_enough_and_its_successor_is_there() {
    one_problem("secret = 'hunter2'", "2:10: secret: is too short to be secret: 16 bytes");
    one_problem("previous_secrets = ['0123456789abcdef']", "2:20: previous_secrets: needs a `secret`");
    one_problem("secret = '0123456789abcdef'\nprevious_secrets = ['a']", "3:21: previous_secrets[0]: is too short");
    assert!(config("previous_secrets = ['${OLD:-}']").live.secrets.current().is_none());
    let both = config("secret = 'the new secret of ours'\nprevious_secrets = ['the old secret of ours']");
    let names = ["the new secret of ours", "the old secret of ours"].map(|text| Secret::new(text).name());
    let row = format!("secret          set, named {}; previous ones {}\n", names[0], names[1]);
    assert!(describe(&both).contains(&row), "{}", describe(&both));
    let environment = FakeEnvironment::default().with_variable("ONCEGATE_SECRET", "0123456789abcdef");
    let config = load_in(environment, UPSTREAM).expect("it loads");
    assert_eq!(config.live.routes[0].recipe.to_stored().len(), "1 hmac=00000000".len());
}

#[test]
fn the_listeners_are_apart_and_the_admins_is_loopback_or_has_a_token() {
    one_problem(
        "[admin]\nlisten = '0.0.0.0:8081'",
        "3:10: admin.listen: `0.0.0.0:8081` is no loopback address, and there is no `admin.token`",
    );
    let open = "[admin]\nlisten = '0.0.0.0:8081'\ntoken = '";
    assert!(
        config(&format!("{open}0123456789abcdef'"))
            .live
            .admin
            .token
            .is_some_and(|token| token.matches(b"0123456789abcdef"))
    );
    one_problem(&format!("{open}0123456789abcde'"), "4:9: admin.token: is too short to be secret: 16 characters");
    one_problem(&format!("{open}0123456789 abcdef'"), "4:9: admin.token: has characters that cannot be sent");
    let outside = FakeEnvironment::default().with_variable("ONCEGATE_ADMIN_TOKEN", "fedcba9876543210");
    let config_outside = load_in(outside, &format!("{UPSTREAM}{open}0123456789abcdef'")).expect("it loads");
    let token = config_outside.live.admin.token.expect("there is one");
    assert!(token.matches(b"fedcba9876543210") && !token.matches(b"0123456789abcdef"), "the variable counts for more");
    assert!(!format!("{token:?}").contains("fedc"));
    let oidc = |lines: &str| format!("admin.oidc = {{ {lines} }}");
    let whole = "issuer = 'https://i', client_id = 'c', url = 'https://page', operate = ['o']";
    let found = config(&oidc(&format!("{whole}, client_secret = 'hunter2'"))).live.admin.oidc.expect("there is one");
    assert_eq!((&*found.roles_claim, &*found.url.to_string()), ("groups", "https://page"));
    assert!(!format!("{found:?}").contains("hunter2"));
    for (lines, problem) in [
        ("issuer = 'https://i'", "needs `client_id` beside it"),
        ("issuer = 'https://i', client_id = 'c', url = 'https://page'", "needs `operate` or `read` beside it"),
        ("operate = ['o']", "needs `issuer` beside it"),
        (&whole.replace("https://i", "http://login.example"), "has no TLS"),
        (&whole.replace("https://i", "https://i?x"), "has a query"),
        (&whole.replace("https://page", "http://page"), "has no TLS"),
        (&whole.replace("https://page", "https://page/admin"), "has a path or a query"),
    ] {
        let problems = load_in(FakeEnvironment::default(), &format!("{UPSTREAM}{}", oidc(lines))).expect_err(lines);
        assert!(problems.to_string().contains(problem), "{lines}: {problems}");
    }
    let four = config(&format!("{}\nadmin.four_eyes = ['purge']", oidc(whole))).live.admin.four_eyes;
    assert_eq!(four.iter().map(|action| action.name()).collect::<Vec<_>>(), ["purge"]);
    one_problem("admin.four_eyes = ['purge']", "2:19: admin.four_eyes: needs `[admin.oidc]` beside it");
    one_problem("admin.four_eyes = ['requeue']", "2:20: admin.four_eyes[0]: `requeue` is not known");
    one_problem(&format!("admin.open = true\n{}", oidc(whole)), "2:14: admin.open: contradicts `oidc`");
    one_problem("listen = '127.0.0.1:8081'", "2:10: listen: `listen` and `admin.listen` are the same address");
    config("listen = '127.0.0.1:0'\nadmin.listen = '127.0.0.1:0'");
}

#[test]
fn values_outside_of_their_bounds_are_refused_with_the_reason() {
    for (text, begins) in [
        ("service = 'A'", "2:11: service: `A` is no name"),
        ("trusted_proxies = ['10.0.0.1/8']", "2:20: trusted_proxies[0]: `10.0.0.1/8` has bits"),
        ("trusted_proxies = '::1'", "2:19: trusted_proxies: must be a list"),
        ("drain_timeout = '0s'", "2:17: drain_timeout: `0s` is too short"),
        ("problem_base = 'x'", "2:16: problem_base: `x` is no beginning"),
        ("cors.origins = ['https://a.example/']", "2:17: cors.origins[0]: `https://a.example/` has more than"),
        ("cors = { origins = ['*'], credentials = true }", "2:41: cors.credentials: `*` cannot be combined"),
        (
            "cors.credentials = true\n[defaults]\ncors.origins = ['*']",
            "4:17: defaults.cors.origins[0]: `*` cannot be combined",
        ),
        ("[store]\nmax_connections = 5", "3:19: store.max_connections: must be 6 to 1000"),
        ("[store]\nmax_connections = -1", "3:19: store.max_connections: must be 6 to 1000"),
        (
            "[defaults]\nretry = { base = '1h' }",
            "3:18: defaults.retry.base: `base` must not be over `cap`: the first pause would be longer",
        ),
        ("[defaults]\nretry = { max_attempts = 0 }", "3:26: defaults.retry.max_attempts: must be 1 to 10000"),
        ("[defaults]\ndelivery = 'prefer'", "3:12: defaults.delivery: needs a `secret`"),
        ("[store]\nmigrate = 'no'", "3:11: store.migrate: must be `true` or `false`"),
        ("[store]\ntimeout = '2'", "3:11: store.timeout: `2` has no unit"),
        ("[store]\nlease.heartbeat = '6s'", "3:19: store.lease.heartbeat: `expiry` must be twice"),
        ("[store]\nlease = { heartbeat = '1s', expiry = '1s' }", "3:38: store.lease.expiry: `expiry` must be twice"),
        (
            "[telemetry]\nformat = 'jsn'",
            "3:10: telemetry.format: `jsn` is not known: write `auto`, `text` or `json`; did you mean `json`?",
        ),
        ("[telemetry]\nlog = 'a=b=c'", "3:7: telemetry.log: `a=b=c` is no filter"),
        ("[telemetry]\nlog = 'inf'", "3:7: telemetry.log: `inf` is no filter"),
        ("[telemetry]\nlog = 'oncegate=debug, info'", "3:7: telemetry.log: `oncegate=debug, info` is no filter"),
        ("[telemetry]\nlog = 'info,oncegate'", "3:7: telemetry.log: `info,oncegate` is no filter"),
        ("[defaults]\nttl = '0s'", "3:7: defaults.ttl: `0s` is too short"),
        ("[defaults]\nttl = '367d'", "3:7: defaults.ttl: `367d` is too long"),
        ("[defaults]\nmax_request_body = '0B'", "3:20: defaults.max_request_body: `0B` leaves no room"),
        (
            "[defaults]\nmax_response_body = '65MiB'",
            "3:21: defaults.max_response_body: `65MiB` is too much: bodies are held",
        ),
        (
            "[defaults]\nconnect_timeout = '3s'\nupstream_timeout = '1s'",
            "4:20: defaults.upstream_timeout: `connect_timeout` (3s) must be shorter",
        ),
        ("[defaults]\nkey.max_length = 16385", "3:18: defaults.key.max_length: must be 1 to 16384"),
        (
            "[defaults]\nkey = { min_length = 256 }",
            "3:22: defaults.key.min_length: `min_length` (256) must not be over",
        ),
        (
            "[defaults]\nkey.from = 'header:Content-Length'",
            "3:12: defaults.key.from: `header:Content-Length` carries something else",
        ),
        ("[defaults]\nmethods = ['post']", "3:12: defaults.methods[0]: `post` is not in capitals"),
        ("[defaults]\nmethods = ['HEAD']", "3:12: defaults.methods[0]: `HEAD` changes nothing"),
        ("[defaults]\nmethods = ['PUT', 'PUT']", "3:19: defaults.methods[1]: is listed a second time"),
        ("[defaults]\nmethods = []", "3:11: defaults.methods: is empty"),
        ("[defaults]\nscope = ['none', 'authorization']", "3:9: defaults.scope: has `none` beside others"),
        ("[defaults]\nscope = ['cookie:a', 'cookie:a?']", "3:22: defaults.scope[1]: is listed a second time"),
        ("[defaults]\nscope = []", "3:9: defaults.scope: is empty"),
        ("[defaults]\nstore_statuses = [200]", "3:19: defaults.store_statuses[0]: must be a text in quotes"),
        ("[defaults]\nstore_statuses = ['1xx']", "3:19: defaults.store_statuses[0]: `1xx` is no final status"),
        ("[defaults]\nstore_statuses = ['grpc:14']", "3:19: defaults.store_statuses[0]: `grpc:14` is no final status"),
        (
            "[defaults]\nreplay.drop_headers = ['a b']",
            "3:24: defaults.replay.drop_headers[0]: `a b` is no name of a field",
        ),
        (
            "[defaults]\nfingerprint.headers = ['host', 'TE']",
            "3:32: defaults.fingerprint.headers[1]: `TE` names a field of the connection",
        ),
        (
            "[defaults]\nfingerprint.headers = ['content-length']",
            "3:24: defaults.fingerprint.headers[0]: `content-length` names a field of the connection",
        ),
        (
            "[[services]]\nname = 's'\nhost = 'h'\nupstream = 'ftp://a'\n[[routes]]\nname = 'r'\npath = '/'",
            "5:12: services[0].upstream: has an unknown scheme",
        ),
    ] {
        one_problem(text, begins);
    }
}

mod consumers;
mod documents;
mod events;
mod fingerprint;
mod lints;
mod messages;
mod outcomes;
mod paths;
mod places;
mod refusals;
mod routes;
mod services;
mod slips;
mod telemetry;
mod webhooks;

#[test]
fn the_admin_token_is_found_in_a_file_that_is_otherwise_wrong() {
    let find = |text: &str, environment: FakeEnvironment| {
        let found = admin_token(Some("f".as_ref()), &environment.with_file("f", text));
        found.map(|token| token.map(|token| token.reveal().to_owned()))
    };
    let file = "secret = '${NOT_THERE}'\nadmin.listen = 'nowhere'\nadmin.token = '${file:/run/t}'";
    let token = "0123456789abcdef";
    assert_eq!(find("", FakeEnvironment::default()), Ok(None));
    assert_eq!(
        find(file, FakeEnvironment::default().with_file("/run/t", "0123456789abcdef\n")),
        Ok(Some(token.into()))
    );
    let variable = FakeEnvironment::default().with_variable("ONCEGATE_ADMIN_TOKEN", token);
    assert_eq!(find("", variable), Ok(Some(token.into())));
    let problems = find(file, FakeEnvironment::default()).expect_err("the file is not there");
    assert!(problems.to_string().starts_with("f:3:15: admin.token"), "{problems}");
}

#[test]
fn the_services_name_is_found_in_a_file_that_is_otherwise_wrong() {
    let find = |text: &str| {
        let names = service_names("f".as_ref(), &FakeEnvironment::default().with_file("f", text));
        names.map(|names| names.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(find("secret = '${NOT_THERE}'\nupstreem = 'x'").as_deref(), Ok("default"));
    assert_eq!(find("secret = '${NOT_THERE}'\nservice = '${NAME:-bank}'").as_deref(), Ok("bank"));
    assert_eq!(find("[[services]]\nname = 'a'\n[[services]]\nname = 'b'").as_deref(), Ok("a b"));
    let problems = find("service = 'The Bank'").expect_err("that is no name");
    assert!(problems.to_string().starts_with("f:1:11: service"), "{problems}");
}

#[test]
fn the_admin_address_is_found_in_a_file_that_is_otherwise_wrong() {
    let find = |text: &str, flag: Option<&str>, environment: FakeEnvironment| {
        let overrides = Overrides { admin: flag.map(str::to_owned), ..Overrides::default() };
        let found = admin_listen(Some("f".as_ref()), &overrides, &environment.with_file("f", text));
        found.map(|address| address.to_string())
    };
    let file = "secret = '${NOT_THERE}'\nupstreem = 'x'\nadmin.listen = '127.0.0.1:${PORT:-9}'";
    assert_eq!(find("", None, FakeEnvironment::default()), Ok("127.0.0.1:8081".into()));
    assert_eq!(find(file, None, FakeEnvironment::default()), Ok("127.0.0.1:9".into()));
    assert_eq!(find(file, None, FakeEnvironment::default().with_variable("PORT", "7")), Ok("127.0.0.1:7".into()));
    let outside = FakeEnvironment::default().with_variable("ONCEGATE_ADMIN_LISTEN", "127.0.0.1:6");
    assert_eq!(find(file, None, outside), Ok("127.0.0.1:6".into()));
    assert_eq!(find(file, Some("127.0.0.1:5"), FakeEnvironment::default()), Ok("127.0.0.1:5".into()));
    let problems = find("admin.listen = 'x'", None, FakeEnvironment::default()).expect_err("that is no address");
    assert!(problems.to_string().starts_with("f:1:16: admin.listen"), "{problems}");
}

#[test]
fn only_loopback_is_a_trusted_proxy_by_default() {
    let trusted = config("").live.trusted_proxies;
    let is_trusted =
        |peer: &str| trusted.iter().any(|network| network.contains(&peer.parse::<std::net::IpAddr>().unwrap()));
    assert!(["127.0.0.1", "127.9.9.9", "::1"].iter().all(|peer| is_trusted(peer)));
    for peer in ["10.0.0.1", "172.16.0.1", "172.17.0.1", "192.168.0.1", "169.254.1.1", "fd00::1", "fe80::1", "::2"] {
        assert!(!is_trusted(peer), "{peer}");
    }
}
