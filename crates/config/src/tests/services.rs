//! Several services, the files of several teams, and the policy that holds for all.

use super::*;

const ORDERS: &str = "[[services]]\nname = 'orders'\nhost = ['orders.example', 'Orders.Internal']\nupstream = 'http://o:1'\n\
                      defaults = { ttl = '2h' }\n[[routes]]\nname = 'create-order'\npath = '/v1/orders'\n";
const BILLS: &str = "[[services]]\nname = 'bills'\nhost = 'bills.example'\nupstream = 'http://b:1'\n";

const TOKEN: &str = "0123456789abcdef0123456789abcdef";

/// Files beside each other, of which `f` is the one that is named.
fn load_files(files: &[(&str, &str)]) -> Result<LoadedConfig, String> {
    let environment = files.iter().fold(FakeEnvironment::default(), |all, (name, text)| all.with_file(name, text));
    load(Some("f".as_ref()), &Overrides::default(), &environment).map_err(|problems| problems.to_string())
}

#[test]
fn a_route_belongs_to_the_service_that_it_names_or_to_the_only_one_of_its_file_or_to_that_at_the_top() {
    let name = |files: &[(&str, &str)]| {
        let config = load_files(files).unwrap_or_else(|problems| panic!("{problems}"));
        let routes = config.live.routes.iter();
        routes.map(|route| format!("{} {}", route.service.name, show_duration(route.options.ttl))).collect::<Vec<_>>()
    };
    let defaults = "[defaults]\nttl = '3h'\n";
    assert_eq!(name(&[("f", &format!("{defaults}{ORDERS}"))]), ["orders 2h"]);
    assert_eq!(
        name(&[("f", &format!("upstream = 'http://a'\n{defaults}[[routes]]\nname = 'r'\npath = '/'"))]),
        ["default 3h"]
    );
    let named = ORDERS.replace("path =", "service = 'bills'\npath =");
    assert_eq!(name(&[("f", &format!("{defaults}{named}{BILLS}"))]), ["bills 3h"]);
    let top = format!("upstream = 'http://a'\nservice = 'top'\n{ORDERS}{BILLS}");
    assert_eq!(name(&[("f", &top)]), ["top 1d"]);
    let team = "[[routes]]\nname = 'pay'\npath = '/v1/bills'\n";
    let included =
        [("f", "include = ['teams/*.toml']"), ("teams/a.toml", ORDERS), ("teams/b.toml", &format!("{BILLS}{team}"))];
    assert_eq!(name(&included), ["orders 2h", "bills 1d"]);
    let of_none = load_files(&[("f", &format!("{ORDERS}{BILLS}"))]).unwrap_err();
    assert!(of_none.contains("f:6:1: routes[0].service: names none of the services"), "{of_none}");
    let unknown = load_files(&[("f", &ORDERS.replace("path =", "service = 'order'\npath ="))]).unwrap_err();
    assert!(unknown.contains("is no service of the file: `order`"), "{unknown}");
}

#[test]
fn two_services_share_no_name_and_no_host() {
    for (text, problem) in [
        (BILLS.replace("bills'", "orders'"), "services[1].name: is another service's name too: `orders` (f:2)"),
        (
            BILLS.replace("bills.example", "ORDERS.internal"),
            "services[1].host: is the host of the service `orders` too",
        ),
        (format!("{BILLS}token = '{TOKEN}'\n[admin]\ntoken = '{TOKEN}'\n"), "services[1].token: is another service's"),
        (
            BILLS.replace("bills.example", "*.example"),
            "services[1].host: `*.example` has a `*`: a host is matched whole",
        ),
        (BILLS.replace("host = 'bills.example'\n", ""), "services[1].host: is missing"),
        (BILLS.replace("'bills.example'", "[]"), "services[1].host: is missing"),
        (BILLS.replace("upstream = 'http://b:1'\n", ""), "services[1].upstream: is missing"),
    ] {
        let problems = load_files(&[("f", &format!("{ORDERS}{text}"))]).expect_err(&text);
        assert!(problems.contains(problem), "{text}: {problems}");
    }
}

#[test]
fn what_a_route_had_before_is_named_with_what_is_written_now() {
    for (key, line) in [("host", "host = 'a.example'"), ("upstream", "upstream = 'http://a:1'")] {
        one_problem(
            &route(line),
            &format!(
                "5:1: routes[0].{key}: belongs to a service now: `[[services]]` with `name`, `host` and `upstream`, and `service` here"
            ),
        );
    }
}

#[test]
fn an_included_file_is_found_beside_its_own_and_each_problem_names_its_file_and_line() {
    let base = "include = ['company.toml', 'teams/*.toml']\n";
    let company = "[defaults]\nttl = '3h'\n";
    for (team, problem) in [
        ("[[routes]]\nname = 'r'\npath = 'x'\n", "teams/a.toml:3:8: routes[0].path: `x` must begin with `/`"),
        (
            "[[routes]]\nname = 'r'\n\n[defaults]\nttl = '1h'\n",
            "teams/a.toml:4:2: defaults: belongs to the file that includes this one",
        ),
        ("unguarded = 'refuse'\n", "teams/a.toml:1:1: unguarded: belongs to the file that includes this one"),
        ("[[routes]\n", "teams/a.toml:1:"),
        ("include = ['b.toml']\n", "teams/a.toml:1:1: include: an included file includes nothing"),
    ] {
        let problems = load_files(&[("f", base), ("company.toml", company), ("teams/a.toml", team)]).expect_err(team);
        assert!(problems.contains(problem), "{team}: {problems}");
    }
    for (base, problem) in [
        ("include = 'none.toml'", "none.toml: cannot be read"),
        ("include = 'none/*.toml'", "f: include: `none/*.toml` matches no file"),
        (
            "include = 'company.toml'\n[defaults]\nttl = '1h'",
            "company.toml:1:2: defaults: is in another of these files already",
        ),
    ] {
        let problems = load_files(&[("f", base), ("company.toml", company)]).expect_err(base);
        assert!(problems.contains(problem), "{base}: {problems}");
    }
}

#[test]
fn a_change_is_named_with_its_file() {
    let written = |ttl: &str| {
        let team = format!("{BILLS}[[routes]]\nname = 'pay'\npath = '/v1/bills'\nttl = '{ttl}'");
        load_files(&[("f", "include = 'teams/*.toml'"), ("teams/b.toml", &team)]).unwrap().live.written
    };
    let changes = written("1h").list_changes(&written("2h"));
    assert_eq!(changes.into_iter().collect::<Vec<_>>(), ["teams/b.toml: routes.pay.ttl"]);
}

#[test]
fn a_team_that_weakens_the_policy_is_refused_by_file_line_and_rule() {
    let base = "include = 'teams/*.toml'\n[policy]\nttl_min = '24h'\nguarded = ['POST /v1/{*rest}']\nmoney = ['POST /v1/bills']\n\
                not_allowed = ['money-5xx']\nforbidden_scopes = ['none']\n";
    let bills = |lines: &str| {
        let rest = "[[routes]]\nname = 'rest'\npath = '/v1/{*rest}'\n";
        format!("{BILLS}{rest}[[routes]]\nname = 'pay'\npath = '/v1/bills'\nkind = 'money'\n{lines}\n")
    };
    let loaded = load_files(&[("f", base), ("teams/b.toml", &bills(""))]);
    assert!(loaded.is_ok(), "{loaded:?}");
    for (lines, problem) in [
        ("ttl = '1h'", "teams/b.toml:12:7: routes[1].ttl: is 1h, and `policy.ttl_min` (f:3) has 1d at least"),
        (
            "mode = 'observe'",
            "teams/b.toml:12:8: routes[1].mode: is `observe`, and `policy.guarded` (f:4) has `POST /v1/{*rest}` guarded",
        ),
        (
            "scope = ['none']",
            "teams/b.toml:12:9: routes[1].scope: has `none`, which `policy.forbidden_scopes` (f:7) forbids",
        ),
        ("scope = ['json:/user']", "routes[1].scope: has `none`, which `policy.forbidden_scopes` (f:7) forbids"),
        (
            "outcome = [{ pointer = '/error', is = 'release' }]",
            "routes[1].outcome: has a retry executed again after a success, and `policy.guarded` (f:4) has all of \
             `POST /v1/{*rest}` guarded",
        ),
        (
            "on_unknown = 'retry'",
            "routes[1].on_unknown: has executed again what may have been executed, and `policy.guarded`",
        ),
        (
            "on_unknown = 'retry-when-quiet'",
            "routes[1].on_unknown: has executed again what may have been executed, and `policy.money`",
        ),
        (
            "release_statuses = ['504']",
            "routes[1].release_statuses: has a retry executed again after a failure that may come",
        ),
        (
            "allow = ['money-5xx']",
            "teams/b.toml:12:9: routes[1].allow: has `money-5xx`, which `policy.not_allowed` (f:6) forbids",
        ),
        ("methods = ['PUT']", "`standard`, and `policy.money` (f:5) has `POST /v1/bills` as `money`"),
    ] {
        let problems = load_files(&[("f", base), ("teams/b.toml", &bills(lines))]).expect_err(lines);
        assert!(problems.contains(problem), "{lines}: {problems}");
    }
    let unguarded =
        load_files(&[("f", base), ("teams/b.toml", &format!("{BILLS}[[routes]]\nname = 'a'\npath = '/a'\n"))]);
    let problems = unguarded.unwrap_err();
    assert!(
        problems.contains("leaves `POST /v1/{*rest}` unguarded, which `policy.guarded` (f:4) forbids"),
        "{problems}"
    );
    assert!(problems.contains("teams/b.toml:1:1: services[0]"), "{problems}");
}

#[test]
fn a_file_is_right_without_its_secrets_only_where_that_was_asked_for() {
    let text = "upstream = 'http://a'\nsecret = '${SECRET}'\n[store]\nurl = '${file:/run/secrets/url}'\n[admin]\ntoken = '${TOKEN}'\n\
                [tls]\ncertificate = '/run/tls.pem'\nkey = '/run/tls.key'\n[[routes]]\nname = 'r'\npath = '/'\nset_headers = { X-Key = '${KEY}' }\n";
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, text).unwrap();
    let load = |environment: &dyn Environment| load(Some(&file), &Overrides::default(), environment);
    assert!(load(&ProcessEnvironment).is_err());
    assert!(load(&WithoutSecrets).is_ok(), "{:?}", load(&WithoutSecrets).err());
    std::fs::write(&file, text.replace("path = '/'", "path = 'x'")).unwrap();
    assert_eq!(load(&WithoutSecrets).unwrap_err().iter().count(), 1, "what is wrong stays wrong");
}

#[test]
fn a_team_takes_nothing_that_is_about_another_teams_service() {
    let base = "upstream = 'http://a'\ninclude = 'teams/*.toml'\n";
    let orders = ("teams/a.toml", ORDERS);
    for (lines, problem) in [
        (
            "[[routes]]\nname = 'r'\npath = '/r'\nservice = 'orders'",
            "routes[0].service: is another team's service: `orders`",
        ),
        (
            "[[events]]\nname = 'e'\nurl = 'http://e/'\nroutes = ['create-order']",
            "events[0].routes: has `create-order`, which is another",
        ),
        (
            "[[consumers]]\namqp = 'amqp://b'\nqueue = 'q'\nroute = 'create-order'",
            "consumers[0].route: has `create-order`, which is",
        ),
    ] {
        let problems = load_files(&[("f", base), orders, ("teams/b.toml", lines)]).expect_err(lines);
        assert!(problems.contains("teams/b.toml:") && problems.contains(problem), "{lines}: {problems}");
    }
    // In the file itself, a service beside the one at the top takes no route that names none.
    let config = load_files(&[("f", &format!("{base}{BILLS}[[routes]]\nname = 'r'\npath = '/r'")), orders]).unwrap();
    assert_eq!(config.live.routes.iter().map(|route| &*route.service.name).collect::<Vec<_>>(), ["default", "orders"]);
}

#[test]
fn a_policy_leaves_no_hole() {
    let base =
        "include = 'teams/*.toml'\n[policy]\nmoney = ['POST /v1/bills']\nnot_allowed = ['money-5xx']\nttl_min = '2h'\n";
    let bills = |lines: &str| format!("{BILLS}[[routes]]\nname = 'pay'\npath = '/v1/bills'\nkind = 'money'\n{lines}\n");
    for (lines, problem) in [
        ("spelling = 'pass'", "routes[0].spelling: lets other spellings pass"),
        ("store_down = 'bypass'", "routes[0].store_down: lets requests pass while the store is away"),
        ("key.required = false", "routes[0].key: lets requests without a key pass"),
        ("dialect = 'mcp'\noperations = ['a']", "routes[0].operations: guards some operations alone"),
        ("release_statuses = ['2xx']", "release_statuses: has a retry executed again after a success"),
        ("release_statuses = ['5xx']", "b.toml:6:8: routes[0].name: `policy.not_allowed` (f:4) forbids: route `pay`: "),
        (
            "replay.until = '1h'",
            "b.toml:9:16: routes[0].replay.until: is 1h, and `policy.ttl_min` (f:5) has 2h at least",
        ),
    ] {
        let problems = load_files(&[("f", base), ("teams/b.toml", &bills(lines))]).expect_err(lines);
        assert!(problems.contains(problem), "{lines}: {problems}");
    }
    for (line, problem) in [
        ("guarded = ['bill POST /v1/bills']", "there is no service `bill`"),
        ("forbidden_scopes = ['nobody']", "is no part of a request that is known here"),
    ] {
        let problems = load_files(&[("f", &format!("{base}{line}\n")), ("teams/b.toml", &bills(""))]).unwrap_err();
        assert!(problems.contains(problem), "{problems}");
    }
    // What a file has not written is a problem of its table, and one without a host is not the service at the top.
    let team = bills("").replace("kind = 'money'\n", "");
    let problems = load_files(&[("f", base), ("teams/b.toml", &team)]).unwrap_err();
    assert!(problems.contains("b.toml:5:1: routes[0].kind: is `standard`"), "{problems}");
    let team = bills("service = 'bills'").replace("host = ", "hots = ");
    let problems = load_files(&[("f", base), ("teams/b.toml", &team)]).unwrap_err();
    assert!(!problems.contains("another team's service"), "{problems}");
}
