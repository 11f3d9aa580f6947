//! Several services behind one gate: each host's requests go to its service, and each service has its own keys,
//! operators and files.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use harness::operator::Operator;
use harness::reload::{REFUSED as LOST, RELOADED, settles};
use harness::{
    Answer, Client, Proxy, Request, Response, Store, TEST_TIMEOUT, Upstream, eventually, on_both_stores, route, service,
};

const REFUSED: &str = "the running one stays";

/// A service with three routes, in the file of its team: a collection, its items, and one that has all methods.
fn tables(name: &str, upstream: &Upstream, lines: &str) -> String {
    let routes = [
        ("create", "/v1/orders", "[\"POST\", \"PATCH\"]"),
        ("change", "/v1/orders/{id}", "[\"PUT\", \"DELETE\"]"),
        ("pay", "/v1/pay", "[\"POST\", \"PUT\", \"PATCH\", \"DELETE\"]"),
    ];
    let routes = routes.map(|(kind, path, methods)| {
        format!("[[routes]]\nname = \"{kind}-{name}\"\nservice = \"{name}\"\npath = \"{path}\"\nmethods = {methods}\n{lines}\n")
    });
    format!("[[services]]\n{}\n{}", service(name, upstream.address), routes.concat())
}

/// A gate before services such as `a0`: a base, a file of the company, and four files of teams.
struct Fleet {
    _store: Store,
    proxy: Proxy,
    /// The services by their names, each with an upstream of its own.
    upstreams: BTreeMap<String, Upstream>,
    teams: [Vec<String>; 4],
}

impl Fleet {
    async fn start(store: Store, services_of_team: usize, company: &str, lines: &str) -> Self {
        let teams =
            ["a", "b", "c", "d"].map(|team| (0..services_of_team).map(|at| format!("{team}{at}")).collect::<Vec<_>>());
        let mut upstreams = BTreeMap::new();
        for name in teams.iter().flatten() {
            upstreams.insert(name.clone(), Upstream::start().await);
        }
        let setup = Proxy::on(&store.url()).top("include = [\"company.toml\", \"teams/*.toml\"]");
        let setup = teams.iter().fold(setup.file("company.toml", company), |setup, team| {
            let text: String = team.iter().map(|name| tables(name, &upstreams[name], lines)).collect();
            setup.file(&format!("teams/{}.toml", &team[0][..1]), &text)
        });
        Self { proxy: setup.start().await, _store: store, upstreams, teams }
    }

    /// The file of a team.
    fn file(&self, team: &str) -> PathBuf {
        self.proxy.file().with_file_name("teams").join(format!("{team}.toml"))
    }

    /// Replaces a team's file, each of whose routes has these lines.
    fn write(&self, team: usize, lines: &str) {
        let text: String = self.teams[team].iter().map(|name| tables(name, &self.upstreams[name], lines)).collect();
        replace(&self.file(&self.teams[team][0][..1]), &text);
    }

    fn calls(&self) -> usize {
        self.upstreams.values().map(Upstream::calls).sum()
    }
}

/// Writes a file as an editor does.
fn replace(file: &std::path::Path, text: &str) {
    let new = file.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(new, file).unwrap();
}

fn pay(client: Client, service: &str, key: &str) -> Request {
    client.post("/v1/pay").host(&format!("{service}.example")).key(key).json(r#"{"amount":10}"#)
}

/// The values of a field in the log lines with this message.
fn logged(proxy: &Proxy, message: &str, field: &str) -> Vec<String> {
    let lines = proxy.logged().into_iter().filter(|line| line["message"].as_str().unwrap().contains(message));
    lines.map(|line| line[field].as_str().unwrap_or_default().to_owned()).collect()
}

#[tokio::test]
async fn each_request_of_forty_services_reaches_its_own_upstream_and_no_other() {
    let fleet = Arc::new(Fleet::start(Store::sqlite(), 10, "", "").await);
    assert_eq!(fleet.proxy.wait_for_log("ready").await["routes"], 120);
    let mut visits = JoinSet::new();
    for name in fleet.teams.iter().flatten() {
        let (fleet, name) = (Arc::clone(&fleet), name.clone());
        visits.spawn(async move {
            let (upstream, host) = (&fleet.upstreams[&name], format!("{name}.example"));
            let mut sent = Vec::new();
            for path in ["/v1/orders", "/v1/orders/7", "/v1/pay", "/v1/else", "/"] {
                for (method, key) in [
                    ("GET", false),
                    ("HEAD", false),
                    ("OPTIONS", false),
                    ("POST", false),
                    ("POST", true),
                    ("PUT", true),
                    ("PATCH", true),
                    ("DELETE", true),
                ] {
                    let request = fleet.proxy.client().request(method, path).host(&host).body("x");
                    let request = match method {
                        "OPTIONS" => {
                            request.field("Origin", "http://shop").field("Access-Control-Request-Method", "POST")
                        }
                        _ if key => request.key(&format!("k-{}", sent.len())),
                        _ => request,
                    };
                    let answer = request.send().await;
                    assert_eq!(answer.status, 201, "{host} {method} {path}: {answer:?}");
                    sent.push((method.to_owned(), path.to_owned(), host.clone()));
                    if answer.oncegate_status().is_some() {
                        assert_eq!(answer.oncegate_status(), Some("executed"), "{host} {method} {path}");
                        assert_eq!(request.send().await.comparable(), answer.replayed(), "{host} {method} {path}");
                    }
                }
            }
            let host = |call: &harness::upstream::Call| call.field("host").unwrap_or_default().to_owned();
            let came =
                upstream.executed().into_iter().map(|call| (call.method.clone(), call.target.clone(), host(&call)));
            assert_eq!(came.collect::<Vec<_>>(), sent, "{name}");
        });
    }
    while let Some(visit) = visits.join_next().await {
        visit.unwrap();
    }
    let calls = fleet.calls();
    assert_eq!(calls, 40 * 5 * 8);
    for host in ["unknown.example", "a0.example.other", "a0", "127.0.0.1"] {
        for request in [fleet.proxy.client().get("/"), pay(fleet.proxy.client(), "", "k-1")] {
            assert_eq!(request.host(host).send().await.outcome(), (421, "bad-request".to_owned()), "{host}");
        }
    }
    assert_eq!(fleet.calls(), calls);
}

on_both_stores!(the_same_key_of_a_caller_at_two_services_is_executed_at_each);
async fn the_same_key_of_a_caller_at_two_services_is_executed_at_each(store: Store) {
    for space in ["path", "service"] {
        let upstreams = [Upstream::start().await, Upstream::start().await];
        let names = [format!("one-{space}"), format!("two-{space}")];
        let setup = names.iter().zip(&upstreams).fold(Proxy::on(&store.url()), |setup, (name, upstream)| {
            let lines = format!("service = \"{name}\"\nspace = \"{space}\"\npath = \"/v1/pay\"");
            setup.service(&service(name, upstream.address)).route(&format!("name = \"{name}\"\n{lines}"))
        });
        let proxy = setup.start().await;
        let mut firsts = Vec::new();
        for (name, upstream) in names.iter().zip(&upstreams) {
            upstream.answer_all(Answer::status(201).body(&**name));
            firsts.push(pay(proxy.client(), name, "k-1").send().await);
        }
        for (name, first) in names.iter().zip(&firsts) {
            assert_eq!((first.oncegate_status(), first.text()), (Some("executed"), name.clone()));
            assert_eq!(pay(proxy.client(), name, "k-1").send().await.comparable(), first.replayed());
        }
        assert_eq!(upstreams.each_ref().map(Upstream::calls), [1, 1]);
        // Each has series of its own.
        let metrics = Client { address: proxy.admin }.get("/metrics").send().await.text();
        for name in &names {
            let of_route = metrics.lines().filter(|line| line.contains(&format!("route=\"{name}\"")));
            let (own, others): (Vec<_>, Vec<_>) =
                of_route.partition(|line| line.contains(&format!("service=\"{name}\"")));
            let executed = |line: &&&str| line.starts_with("oncegate_requests_total{") && line.contains("\"executed\"");
            let executed: Vec<_> = own.iter().filter(executed).collect();
            assert!(
                others.is_empty() && executed.len() == 1 && executed[0].ends_with("} 1"),
                "{name}: {own:?} {others:?}"
            );
        }
    }
}

/// Pays at each service in turn until it is told to stop, each key twice, and returns the keys.
async fn pay_at_all(client: Client, names: Vec<String>, number: usize, stop: Arc<AtomicBool>) -> Vec<(String, String)> {
    let mut paid = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        for name in &names {
            let key = format!("c{number}-{}", paid.len());
            let [first, again] = [pay(client, name, &key).send().await, pay(client, name, &key).send().await];
            assert_eq!((first.status, first.oncegate_status()), (201, Some("executed")), "{name} {key}");
            assert_eq!(again.comparable(), first.replayed(), "{name} {key}");
            paid.push((name.clone(), key));
        }
    }
    paid
}

on_both_stores!(a_reload_of_one_teams_file_loses_and_repeats_nothing_and_names_what_has_changed);
async fn a_reload_of_one_teams_file_loses_and_repeats_nothing_and_names_what_has_changed(store: Store) {
    let fleet = Fleet::start(store, 2, "", "").await;
    let stop = Arc::new(AtomicBool::new(false));
    let names: Vec<_> = fleet.upstreams.keys().cloned().collect();
    let mut clients = JoinSet::new();
    for number in 0..4 {
        clients.spawn(pay_at_all(fleet.proxy.client(), names.clone(), number, Arc::clone(&stop)));
    }
    let mut reloads = 0;
    let b = fleet.file("b");
    for lines in ["ttl = \"1h\"", "ttl = \"2h\"\nkey = { required = true }", ""] {
        fleet.write(1, lines);
        // The first change is noticed without a signal.
        if reloads > 0 {
            fleet.proxy.signal(Signal::HUP);
        }
        reloads += 1;
        fleet.proxy.wait_for_logs(RELOADED, reloads).await;
        let changed = logged(&fleet.proxy, RELOADED, "changed").pop().unwrap();
        for route in ["pay-b0", "create-b1"] {
            assert!(changed.contains(&format!("{}: routes.{route}.ttl", b.display())), "{lines}: {changed}");
        }
        let is_own = |option: &str| option.starts_with(&format!("{}: routes.", b.display()));
        assert!(changed.split(", ").all(is_own), "{changed}");
    }
    // A new file that fits the pattern, with a service of a new team.
    let upstream = Upstream::start().await;
    std::fs::write(fleet.file("e"), tables("e0", &upstream, "")).unwrap();
    fleet.proxy.wait_for_logs(RELOADED, reloads + 1).await;
    let changed = logged(&fleet.proxy, RELOADED, "changed").pop().unwrap();
    assert!(changed.contains(&format!("{}: services.e0", fleet.file("e").display())), "{changed}");
    settles(async || pay(fleet.proxy.client(), "e0", "k-1").send().await.status == 201).await;
    assert_eq!(upstream.executed_for("k-1"), 1);
    stop.store(true, Ordering::SeqCst);
    let mut paid = 0;
    while let Some(client) = clients.join_next().await {
        for (name, key) in client.unwrap() {
            let executed: Vec<_> =
                fleet.upstreams.iter().map(|(own, upstream)| (own, upstream.executed_for(&key))).collect();
            assert!(
                executed.iter().all(|(own, times)| *times == usize::from(**own == name)),
                "{name} {key}: {executed:?}"
            );
            paid += 1;
        }
    }
    assert_eq!(fleet.calls(), paid);
    assert!(paid > 4 * names.len(), "{paid}");
    assert_eq!(logged(&fleet.proxy, RELOADED, "changed").len(), reloads + 1, "nothing else was reloaded");
}

on_both_stores!(a_teams_file_that_goes_takes_its_service_away_with_a_signal_alone_and_may_come_back);
async fn a_teams_file_that_goes_takes_its_service_away_with_a_signal_alone_and_may_come_back(store: Store) {
    let fleet = Fleet::start(store, 1, "", "").await;
    let pays = async || pay(fleet.proxy.client(), "d0", "k-1").send().await;
    let first = pays().await;
    std::fs::remove_file(fleet.file("d")).unwrap();
    let refused = fleet.proxy.wait_for_log("included files are gone").await;
    assert_eq!(refused["files"], fleet.file("d").display().to_string());
    assert_eq!(pays().await.comparable(), first.replayed());
    fleet.proxy.signal(Signal::HUP);
    fleet.proxy.wait_for_log(RELOADED).await;
    settles(async || pays().await.status == 421).await;
    // It must find its keys as it did.
    fleet.write(3, "space = \"service\"");
    fleet.proxy.wait_for_log(LOST).await;
    assert_eq!(pays().await.status, 421);
    fleet.write(3, "");
    fleet.proxy.wait_for_logs(RELOADED, 2).await;
    settles(async || pays().await.status != 421).await;
    assert_eq!((pays().await.comparable(), fleet.calls()), (first.replayed(), 1));
}

on_both_stores!(a_service_for_which_accepted_requests_wait_is_not_taken_away);
async fn a_service_for_which_accepted_requests_wait_is_not_taken_away(store: Store) {
    let (upstream, later) = (Upstream::start().await, Upstream::unused_address().await);
    let only =
        Proxy::on(&store.url()).top("secret = \"a secret of some length\"").service(&service("a", upstream.address));
    let only = only.route(&route("pay", "service = \"a\""));
    let async_route = "service = \"b\"\ndelivery = \"async\"\nretry = { base = \"3s\" }";
    let both = only.clone().service(&service("b", later)).route(&route("later", async_route));
    let proxy = both.start().await;
    let accepted = proxy.post("/later").host("b.example").key("k-1").body("x").send().await;
    assert_eq!(accepted.status, 202, "{}", accepted.text());
    // Whether a try runs or the next one waits.
    proxy.wait_for_log("not delivered yet").await;
    replace(&proxy.file(), &only.text());
    proxy.signal(Signal::HUP);
    let refused = proxy.wait_for_log("has accepted requests; the running configuration stays").await;
    assert_eq!((&refused["service"], &refused["queued"]), (&"b".into(), &1.into()));
    let reached = Upstream::start_at(later).await;
    reached.wait_for_executed(1).await;
    let reloaded = async || {
        proxy.signal(Signal::HUP);
        (!logged(&proxy, RELOADED, "changed").is_empty()).then_some(())
    };
    eventually(TEST_TIMEOUT, reloaded).await;
    assert_eq!((reached.executed_for("k-1"), upstream.calls()), (1, 0));
}

#[tokio::test]
async fn a_teams_file_that_weakens_the_policy_is_refused_by_file_line_and_rule() {
    let company = [
        "[policy]\nttl_min = \"6h\"\nguarded = [\"POST /v1/pay\"]\nmoney = [\"POST /v1/pay\"]\n",
        "not_allowed = [\"money-5xx\"]\nforbidden_scopes = [\"none\"]\n",
    ];
    let fleet = Fleet::start(Store::sqlite(), 1, &company.concat(), "kind = \"money\"").await;
    let pays = async || pay(fleet.proxy.client(), "a0", "k-1").send().await;
    let (first, company) = (pays().await, fleet.proxy.file().with_file_name("company.toml"));
    for (line, problem, rule) in [
        ("mode = \"observe\"", "is `observe`", "`policy.guarded` (COMPANY:3) has `POST /v1/pay` guarded"),
        ("kind = \"standard\"", "is `standard`", "`policy.money` (COMPANY:4) has `POST /v1/pay` as `money`"),
        ("ttl = \"1h\"", "is 1h", "`policy.ttl_min` (COMPANY:2) has 6h at least"),
        ("scope = [\"none\"]", "has `none`", "`policy.forbidden_scopes` (COMPANY:6) forbids"),
        ("allow = [\"money-5xx\"]", "has `money-5xx`", "`policy.not_allowed` (COMPANY:5) forbids"),
    ] {
        let lines = if line.starts_with("kind") { line.to_owned() } else { format!("kind = \"money\"\n{line}") };
        fleet.write(0, &lines);
        fleet.proxy.signal(Signal::HUP);
        let rule = rule.replace("COMPANY", &company.display().to_string());
        let told = async || logged(&fleet.proxy, REFUSED, "problem").into_iter().find(|told| told.contains(&rule));
        let told = eventually(TEST_TIMEOUT, told).await;
        let rest = told.strip_prefix(&format!("{}:", fleet.file("a").display())).unwrap_or_else(|| panic!("{told}"));
        let number: usize = rest.split(':').next().unwrap().parse().unwrap();
        let text = std::fs::read_to_string(fleet.file("a")).unwrap();
        assert_eq!((text.lines().nth(number - 1), told.contains(problem)), (Some(line), true), "{told}");
        assert_eq!(pays().await.comparable(), first.replayed(), "{line}");
    }
    // A service without the route is refused, too.
    let text = std::fs::read_to_string(fleet.file("a")).unwrap().replace("/v1/pay", "/v1/other");
    replace(&fleet.file("a"), &text);
    fleet.proxy.signal(Signal::HUP);
    fleet.proxy.wait_for_log(REFUSED).await;
    let told = async || logged(&fleet.proxy, REFUSED, "problem").into_iter().find(|told| told.contains("unguarded"));
    let told = eventually(TEST_TIMEOUT, told).await;
    assert!(told.starts_with(&format!("{}:1:1: services[0]", fleet.file("a").display())), "{told}");
    assert_eq!(logged(&fleet.proxy, RELOADED, "changed").len(), 0);
    fleet.write(0, "kind = \"money\"\nttl = \"12h\"");
    fleet.proxy.signal(Signal::HUP);
    fleet.proxy.wait_for_log(RELOADED).await;
    assert_eq!(pays().await.comparable(), first.replayed());
}

const GATE: &str = "the-token-of-the-gates-operators";
const OF_A: &str = "the-token-of-the-first-service";

/// A request of an operator with this token, about this service where it names one.
fn admin(proxy: &Proxy, token: &str, service: &str, method: &str, path: &str) -> Request {
    let request = Operator::of(proxy).request(method, path).field("Authorization", &format!("Bearer {token}"));
    if service.is_empty() { request } else { request.field("X-Oncegate-Service", service) }
}

fn json_of(response: &Response) -> Value {
    serde_json::from_slice(&response.body).unwrap()
}

on_both_stores!(an_operator_of_one_service_sees_and_changes_its_keys_alone);
async fn an_operator_of_one_service_sees_and_changes_its_keys_alone(store: Store) {
    let upstreams = [Upstream::start().await, Upstream::start().await];
    let setup = Proxy::on(&store.url())
        .admin(&format!("token = \"{GATE}\""))
        .service(&format!("{}\ntoken = \"{OF_A}\"", service("a", upstreams[0].address)))
        .service(&service("b", upstreams[1].address))
        .route(&route("pay-a", "service = \"a\"").replace("/pay-a", "/v1/pay"))
        .route(&route("pay-b", "service = \"b\"").replace("/pay-b", "/v1/pay"));
    let proxy = setup.start().await;
    for (name, upstream) in ["a", "b"].into_iter().zip(&upstreams) {
        upstream.then(Answer::close());
        assert_eq!(pay(proxy.client(), name, &format!("key-of-{name}")).send().await.status, 502);
    }
    let list = async |token: &str, service: &str| {
        let answer = admin(&proxy, token, service, "GET", "/api/v1/keys?state=unknown").send().await;
        let keys = json_of(&answer)["keys"].as_array().cloned().unwrap_or_default();
        let text = |key: &Value, name: &str| key[name].as_str().unwrap().to_owned();
        (answer.status, keys.iter().map(|key| (text(key, "key"), text(key, "id"))).collect::<Vec<_>>())
    };
    let (mut ids, gate) = (BTreeMap::new(), GATE);
    for name in ["a", "b"] {
        let (status, keys) =
            eventually(TEST_TIMEOUT, async || Some(list(gate, name).await).filter(|one| !one.1.is_empty())).await;
        assert_eq!((status, keys.len(), &*keys[0].0), (200, 1, &*format!("key-of-{name}")), "the header chooses");
        ids.insert(name, keys[0].1.clone());
    }
    // The token of the gate must choose, and that of a service need not.
    let unnamed = admin(&proxy, GATE, "", "GET", "/api/v1/keys").send().await;
    assert_eq!((unnamed.status, &json_of(&unnamed)["code"]), (409, &"other-service".into()), "{}", unnamed.text());
    assert!(unnamed.text().contains("`a`, `b`"), "{}", unnamed.text());
    assert_eq!(list(OF_A, "").await, list(GATE, "a").await);
    assert_eq!(list(OF_A, "a").await, list(GATE, "a").await);
    for path in ["keys", "stats", "audit", "events"] {
        let other = admin(&proxy, OF_A, "b", "GET", &format!("/api/v1/{path}")).send().await;
        assert_eq!(
            (other.status, &json_of(&other)["code"]),
            (409, &"other-service".into()),
            "{path}: {}",
            other.text()
        );
        assert!(!other.text().contains("`b`,"), "it is not told which there are: {}", other.text());
        let own = admin(&proxy, OF_A, "", "GET", &format!("/api/v1/{path}")).send().await;
        assert_eq!(own.status, 200, "{path}: {}", own.text());
        assert!(!own.text().contains("pay-b") && !own.text().contains("key-of-b"), "{path}: {}", own.text());
    }
    let decide = |token: &str, service: &str, id: &str| {
        let body = json!({ "outcome": "not_executed", "accept_risk": true }).to_string();
        admin(&proxy, token, service, "POST", &format!("/api/v1/keys/{id}/resolve")).json(&body)
    };
    assert_eq!(decide(OF_A, "", &ids["b"]).send().await.status, 404);
    assert_eq!(decide(OF_A, "b", &ids["b"]).send().await.status, 409);
    let purge = format!("/api/v1/keys/{}?accept_risk=true", ids["b"]);
    assert_eq!(admin(&proxy, OF_A, "", "DELETE", &purge).send().await.status, 404);
    assert_eq!(list(GATE, "b").await.1.len(), 1, "it is as it was");
    assert_eq!(decide(OF_A, "", &ids["a"]).send().await.status, 200);
    assert_eq!(list(GATE, "a").await.1.len(), 0);
    // Nor may it drain the gate.
    let drain = admin(&proxy, OF_A, "", "POST", "/api/v1/drain").send().await;
    assert_eq!(drain.status, 403, "{}", drain.text());
    assert_eq!(pay(proxy.client(), "b", "k-2").send().await.oncegate_status(), Some("executed"));
    assert_eq!(decide(GATE, "b", &ids["b"]).send().await.status, 200);
}

on_both_stores!(a_gate_finds_the_keys_of_a_sidecar_whose_service_it_has_now);
async fn a_gate_finds_the_keys_of_a_sidecar_whose_service_it_has_now(store: Store) {
    let (upstream, other) = (Upstream::start().await, Upstream::start().await);
    let secret = "secret = \"a secret of some length\"";
    let pay_route = |lines: &str| format!("name = \"pay\"\npath = \"/v1/pay\"\n{lines}");
    let sidecar = Proxy::on(&store.url()).upstream(upstream.address).top("service = \"orders\"").top(secret);
    let sidecar = sidecar.store("encrypt = true").route(&pay_route("")).start().await;
    let first = pay(sidecar.client(), "orders", "k-1").send().await;
    assert_eq!(first.oncegate_status(), Some("executed"));
    assert_eq!(sidecar.stop().await, Some(0));
    let gate = |lines: &str| {
        let setup = Proxy::on(&store.url()).top(secret).store("encrypt = true");
        let setup = setup.service(&service("orders", upstream.address)).service(&service("bills", other.address));
        setup.route(&pay_route(lines))
    };
    let proxy = gate("service = \"orders\"").start().await;
    assert_eq!(pay(proxy.client(), "orders", "k-1").send().await.comparable(), first.replayed());
    assert_eq!((upstream.calls(), other.calls()), (1, 0));
    assert_eq!(proxy.stop().await, Some(0));
    // Another way to find them is refused as for one service.
    let refused = gate("service = \"orders\"\nspace = \"service\"").fails().await;
    assert_eq!(refused.code, 78, "{}", refused.stderr);
}

#[tokio::test]
async fn a_path_that_begins_with_the_host_of_another_service_at_the_same_upstream_is_refused_where_that_guards_it() {
    let [shared, own] = [Upstream::start().await, Upstream::start().await];
    let setup = Proxy::on("memory:")
        .service(&service("a", shared.address))
        .service(&service("b", shared.address))
        .service(&service("c", own.address))
        .route("name = \"pay\"\nservice = \"b\"\npath = \"/v1/pay\"")
        .route("name = \"off\"\nservice = \"b\"\npath = \"/v1/off\"\nmode = \"off\"");
    let proxy = setup.start().await;
    for (host, target, upstream) in [
        ("a.example", "//b.example/v1/pay", None),
        ("a.example", "//b.example:80/v1/pay", None),
        ("a.example", "//b.example/v1/x/../pay", None),
        ("a.example", "//c.example/v1/pay", None),
        ("b.example", "//b.example/v1/pay", None),
        ("a.example", "/v1/pay", Some(&shared)),
        ("a.example", "//b.example/v1/else", Some(&shared)),
        ("c.example", "//b.example/v1/pay", Some(&own)),
    ] {
        let request = proxy.post(target).host(host).key("k-1").body("x");
        let calls = shared.calls() + own.calls();
        let before = upstream.map(Upstream::calls);
        let answer = request.send().await;
        match (upstream, before) {
            (Some(upstream), Some(before)) => {
                assert_eq!((answer.status, upstream.calls()), (201, before + 1), "{host} {target}")
            }
            _ => assert_eq!(answer.outcome(), (400, "path-ambiguous".to_owned()), "{host} {target}"),
        }
        assert_eq!(shared.calls() + own.calls(), calls + usize::from(upstream.is_some()), "{host} {target}");
    }
}
