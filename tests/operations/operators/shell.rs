//! The commands of operators: `oncegate keys`, and the names and addresses that the others take.

use serde_json::{Value, json};

use super::unknown;
use harness::operator::{Operator, keys, oncegate};
use harness::{Answer, Proxy, Setup, Store, TEST_TIMEOUT, Upstream, World, eventually, on_both_stores, route};

on_both_stores!(keys_are_listed_and_settled_through_a_running_instance);
async fn keys_are_listed_and_settled_through_a_running_instance(store: Store) {
    let world = World::start(store).await;
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    let here = |arguments: &[&str]| {
        let arguments: Vec<_> = arguments.iter().copied().chain(["--admin", &*admin]).map(str::to_owned).collect();
        let file = file.clone();
        async move { keys(&file, &arguments.iter().map(|a| &**a).collect::<Vec<_>>()).await }
    };
    let empty = here(&["list", "--json"]).await;
    assert_eq!((empty.code, &*empty.out), (0, "[]\n"));
    let empty = here(&["list"]).await;
    assert!(empty.code == 0 && empty.err.contains(&format!("no key matches; looked through the instance at {admin}")));
    for number in 0..3 {
        unknown(&world, &format!("k-{number}")).await;
    }
    let listed = here(&["list", "--state", "unknown", "--json"]).await;
    let list: Vec<Value> = serde_json::from_str(&listed.out).unwrap();
    assert_eq!((listed.code, list.len()), (0, 3), "{listed:?}");
    for name in ["id", "key", "scope", "route", "state", "attempts", "created_at"] {
        assert!(!list[0][name].is_null(), "{name}: {}", list[0]);
    }
    let table = here(&["list", "--key", "k-1"]).await.out;
    let lines: Vec<_> = table.lines().collect();
    assert!(lines.len() == 2 && lines[0].starts_with("STATE") && lines[1].starts_with("unknown"), "{table}");
    assert!(!table.contains('\x1b'), "colours are for terminals");
    let prefix = lines[1].split_whitespace().last().unwrap();
    let shown = here(&["show", prefix]).await;
    assert!(shown.code == 0 && shown.out.contains("k-1") && shown.out.contains("quiet_at"), "{shown:?}");

    // Several keys need a confirmation, and there is no terminal.
    let asked = here(&["resolve", "--not-executed", "--accept-risk", "--state", "unknown"]).await;
    assert_eq!(asked.code, 2, "{asked:?}");
    assert!(asked.err.contains("3 keys (3 unknown)") && asked.err.contains("--yes"), "{asked:?}");
    let refused = here(&["resolve", "--not-executed", prefix]).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    assert!(refused.err.contains("may still be running"), "{refused:?}");
    let doubtful = here(&["resolve", prefix, "--completed", "201", "--header", "Content-Type: application/json"]).await;
    assert!(doubtful.code == 1 && doubtful.err.contains("an empty body"), "{doubtful:?}");
    assert!(doubtful.err.contains("use --accept-risk"), "{doubtful:?}");
    let header = "Content-Type: text/plain";
    let done = here(&["resolve", prefix, "--completed", "201", "--header", header, "--body", "charge 7"]).await;
    assert!(done.code == 0 && done.out.contains("unknown -> completed"), "{done:?}");
    let replay = world.pay("k-1").send().await;
    assert_eq!((replay.text(), replay.oncegate_status()), ("charge 7".to_owned(), Some("replayed")));
    let many = here(&["resolve", "--not-executed", "--accept-risk", "--state", "unknown", "--yes", "--json"]).await;
    let reply: Value = serde_json::from_str(&many.out).unwrap();
    assert_eq!((many.code, &reply["changed"]), (0, &json!(2)), "{many:?}");
    let live = here(&["purge", prefix]).await;
    assert!(live.code == 1 && live.err.contains("its next retry is executed"), "{live:?}");
    assert!(live.err.contains("use --accept-risk"), "{live:?}");
    let some = here(&["purge", prefix, &"0".repeat(64), "--yes", "--accept-risk"]).await;
    assert!(some.code == 1 && some.out.contains("changed 1 of 1") && some.err.contains("1 key was not"), "{some:?}");
    let actors: Vec<_> = Operator::of(&world.proxy).audit().await.into_iter().map(|line| line[0].clone()).collect();
    assert_eq!(actors, vec!["bob (claimed) at 127.0.0.1"; 4]);

    let all = here(&["purge", "--all", "--yes"]).await;
    assert!(all.code == 0 && all.out.contains("changed 2 of 2"), "{all:?}");
}

#[tokio::test]
async fn a_response_is_corrected_and_a_body_that_was_left_out_is_asked_about_in_the_words_of_the_command_line() {
    let mut world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("other").send().await.status, 201);
    let ids = [unknown(&world, "k-1").await, unknown(&world, "k-2").await];
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    for is_instance_there in [true, false] {
        if !is_instance_there {
            assert_eq!(world.proxy.stop().await, Some(0));
        }
        let id = &ids[usize::from(!is_instance_there)];
        let here = async |arguments: &[&str]| {
            let instance: &[&str] = if is_instance_there { &["--admin", &admin] } else { &[] };
            keys(&file, &[&["resolve", id, "--completed"], arguments, instance].concat()).await
        };
        // There is no terminal.
        let asked = here(&["201"]).await;
        assert_eq!(asked.code, 2, "{asked:?}");
        for words in ["the response has no body", "`--body ''`", "use --accept-risk", "use --yes"] {
            assert!(asked.err.contains(words), "{words}: {asked:?}");
        }
        let typo = here(&["201", "--body", ""]).await;
        assert!(typo.code == 0 && typo.out.contains("unknown -> completed"), "{typo:?}");
        let second = here(&["201", "--body", "charge 7"]).await;
        assert!(second.code == 1 && second.err.contains("use --replace to correct it"), "{second:?}");
        let again = here(&["201", "--replace"]).await;
        assert!(again.code == 2 && again.err.contains("the response has no body"), "{again:?}");
        let empty = here(&["202", "--replace", "--yes"]).await;
        assert!(empty.code == 0 && empty.out.contains("completed -> completed"), "{empty:?}");
        let right = here(&["201", "--replace", "--body", "charge 7"]).await;
        assert_eq!(right.code, 0, "{right:?}");
    }
    let shown = keys(&file, &["show", &ids[0]]).await;
    assert!(shown.out.contains("201, 8 bytes; ; written by an operator"), "{shown:?}");
    let others = keys(&file, &["list", "--key", "other", "--json"]).await;
    let of_service = serde_json::from_str::<Vec<Value>>(&others.out).unwrap()[0]["id"].as_str().unwrap().to_owned();
    let refused =
        keys(&file, &["resolve", &of_service, "--completed", "201", "--replace", "--body", "x", "--accept-risk"]).await;
    assert!(refused.code == 1 && refused.err.contains("its response is never replaced"), "{refused:?}");
    // Also where several keys are changed, and each has its reason.
    let many = keys(&file, &["purge", "--state", "completed", "--yes"]).await;
    assert!(many.code == 1 && many.out.contains("use --accept-risk"), "{many:?}");
    assert!(!many.out.contains("use accept_risk"), "{many:?}");
    world.proxy = world.setup.start().await;
    for key in ["k-1", "k-2"] {
        assert_eq!(world.pay(key).send().await.text(), "charge 7");
    }
}

on_both_stores!(without_an_instance_the_commands_work_on_the_store);
async fn without_an_instance_the_commands_work_on_the_store(store: Store) {
    let mut world = World::start(store).await;
    let id = unknown(&world, "k-1").await;
    assert_eq!(world.pay("k-2").send().await.status, 201);
    let file = world.proxy.file();
    if matches!(world.store, Store::Sqlite(_)) {
        let used = keys(&file, &["list"]).await;
        assert_eq!(used.code, 69, "{used:?}");
        assert!(used.err.contains("in use") && used.err.contains("--admin"), "{used:?}");
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    let listed = keys(&file, &["list", "--json"]).await;
    assert_eq!(serde_json::from_str::<Vec<Value>>(&listed.out).unwrap().len(), 2, "{listed:?}");
    let done = keys(&file, &["resolve", &id[..8], "--completed", "200", "--body", "known"]).await;
    assert!(done.code == 0 && done.out.contains("unknown -> completed"), "{done:?}");
    let purged = keys(&file, &["purge", "--key", "k-2", "--yes", "--accept-risk"]).await;
    assert!(purged.code == 0 && purged.out.contains("changed 1 of 1"), "{purged:?}");
    world.proxy = world.setup.start().await;
    assert_eq!(world.pay("k-1").send().await.text(), "known");
    assert_eq!(world.pay("k-2").send().await.oncegate_status(), Some("executed"));
    let actors: Vec<_> = Operator::of(&world.proxy).audit().await.into_iter().map(|line| line[0].clone()).collect();
    assert_eq!(actors, ["bob (claimed) on the command line"; 2]);
}

#[tokio::test]
async fn exit_codes_name_the_kind_of_failure() {
    let world = World::start(Store::sqlite()).await;
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    let nowhere = file.with_file_name("nowhere.toml");
    std::fs::write(&nowhere, "[admin]\nlisten = '127.0.0.1:0'\n[store]\nurl = 'sqlite:missing.db'\nupstreem = 1")
        .unwrap();
    let elsewhere = file.with_file_name("elsewhere.toml");
    let missing = file.with_file_name("missing.db");
    let lines = format!(
        "upstream = 'http://127.0.0.1:1'\n[admin]\nlisten = '127.0.0.1:0'\n[store]\nurl = 'sqlite:{}'",
        missing.display()
    );
    std::fs::write(&elsewhere, lines).unwrap();
    for (file, arguments, code, why) in [
        (&file, &["list", "--admin", &*admin, "--scope", "xyz"][..], 2, "`--scope`"),
        (&file, &["list", "--state", "lost"], 2, "lost"),
        (&file, &["resolve", "--admin", &*admin, "abcdefab"], 2, "--completed"),
        (&file, &["resolve", "abcdefab", "--not-executed", "--completed", "200"], 2, "cannot be used with"),
        (&file, &["resolve", "abcdefab", "--not-executed", "--body", "x"], 2, "cannot be used with"),
        (&file, &["resolve", "abcdefab", "--not-executed", "--replace"], 2, "cannot be used with"),
        (&file, &["purge", "--admin", &*admin], 2, "say which keys"),
        (&file, &["purge", "--admin", &*admin, "abcdefab", "--route", "pay"], 2, "only one of them"),
        (&file, &["purge", "--admin", &*admin, "--all", "--route", "pay"], 2, "only one of them"),
        (&file, &["purge", "--admin", &*admin, "--all", "abcdefab"], 2, "only one of them"),
        (&file, &["purge", "--admin", &*admin, "--key", "", "--yes"], 2, "--key"),
        (&file, &["release", "--admin", &*admin, "--route=", "--yes"], 2, "--route"),
        (&file, &["release", "--admin", &*admin, "--scope", "", "--yes"], 2, "--scope"),
        (&file, &["purge", "--admin", &*admin, "--older-than", "", "--yes"], 2, "--older-than"),
        (&file, &["list", "--admin", &*admin, "--key", ""], 2, "--key"),
        (&file, &["show", "--admin", &*admin, "../drain"], 2, "is not an id"),
        (&file, &["show", "--admin", &*admin, "abc"], 2, "`ID`"),
        (&file, &["show", "--admin", &*admin, "abcdefab"], 1, "there is no key"),
        (&file, &["list", "--admin", "127.0.0.1:1"], 1, "nobody listens there"),
        (&nowhere, &["list"], 78, "upstreem"),
        (&elsewhere, &["list"], 69, "no such file"),
    ] {
        let output = keys(file, arguments).await;
        assert_eq!(output.code, code, "{arguments:?}: {output:?}");
        assert!(output.err.contains(why), "{arguments:?}: {output:?}");
    }
    assert!(!missing.exists(), "a look creates no file");
}

#[tokio::test]
async fn a_client_command_says_what_is_wrong_with_a_name_and_with_a_stopped_instance() {
    let receiver = Upstream::start().await;
    let sink = format!("name = 'bus'\nroutes = ['pay']\nurl = 'http://{}/'", receiver.address);
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", "")).events(&sink)).await;
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    let named = |command: &'static str, arguments: &[&str]| {
        let arguments: Vec<String> =
            arguments.iter().chain(&["--admin", &admin]).map(|&text| text.to_owned()).collect();
        (command, arguments)
    };
    let outcome = async |(command, arguments): (&'static str, Vec<String>)| {
        let output = oncegate(command, &file, &arguments.iter().map(|text| &**text).collect::<Vec<_>>()).await;
        (output.code, output.out + &output.err)
    };
    for (command, arguments, code, why) in [
        ("events", &["requeue", "nosuch", "--yes"][..], 1, "no `[[events]]` has the name `nosuch`"),
        ("events", &["requeue", "No/Such"], 2, "is no name"),
        ("events", &["requeue", ""], 2, "is no name"),
        ("events", &["requeue", "bus"], 0, "0 events requeued"),
        ("events", &["discard", "bus", "-y"], 0, "0 events discarded"),
        ("events", &["discard", "nosuch"], 2, "use --yes"),
        ("keys", &["show", "abcdefab"], 1, "there is no key"),
        ("keys", &["requeue", "abcdefab", "--yes"], 1, "there is no key"),
        ("keys", &["list", "--route", "nosuch"], 0, "no key matches"),
    ] {
        let (found, said) = outcome(named(command, arguments)).await;
        assert!(found == code && said.contains(why), "{command} {arguments:?}: {found} {said}");
    }
    assert_eq!(world.proxy.stop().await, Some(0));
    for (command, arguments) in [
        ("events", &["list"][..]),
        ("events", &["requeue", "bus"]),
        ("events", &["discard", "bus", "--yes"]),
        ("keys", &["list"]),
        ("keys", &["show", "abcdefab"]),
        ("keys", &["purge", "abcdefab", "--yes"]),
        ("drain", &[]),
        ("healthcheck", &[]),
    ] {
        let (code, said) = outcome(named(command, arguments)).await;
        let todo = "nobody listens there: start the instance, or say with --admin where it is";
        assert!(code == 1 && said.contains(&admin) && said.contains(todo), "{command} {arguments:?}: {code} {said}");
    }
}

on_both_stores!(a_key_of_an_encrypted_store_is_completed_only_with_its_instances_secret);
async fn a_key_of_an_encrypted_store_is_completed_only_with_its_instances_secret(store: Store) {
    const SECRET: &str = "the secret of this service";
    let with = |setup: Setup, secret: &str| setup.top(&format!("secret = '{secret}'")).store("encrypt = true");
    let mut world = World::with(store, |setup| with(setup, SECRET)).await;
    let id = unknown(&world, "k-1").await;
    assert_eq!(world.proxy.stop().await, Some(0));
    let (file, other) = (world.proxy.file(), world.proxy.file().with_file_name("other.toml"));
    let setup = with(Proxy::on(&world.store.url()).upstream(world.upstream.address), "the secret of another one");
    let completed = ["resolve", &id, "--completed", "201", "--body", "charge 7"];
    for setup in [setup.clone(), setup.top(&format!("previous_secrets = ['{SECRET}']"))] {
        std::fs::write(&other, setup.text()).unwrap();
        let refused = keys(&other, &completed).await;
        assert!(refused.code == 69 && refused.err.contains("do not use the `secret` of this file"), "{refused:?}");
    }
    let done = keys(&file, &completed).await;
    assert!(done.code == 0 && done.out.contains("unknown -> completed"), "{done:?}");
    world.crash_and_restart().await;
    assert_eq!(world.pay("k-1").send().await.text(), "charge 7");
}

on_both_stores!(not_executed_is_not_believed_without_the_routes_configuration);
async fn not_executed_is_not_believed_without_the_routes_configuration(store: Store) {
    let route = "name = \"pay\"\npath = \"/pay\"\nreconcile = { after = \"1h\" }";
    let timeout = "upstream_timeout = \"1s\"";
    let world = World::with(store, |setup| setup.short_leases().defaults(timeout).route(route)).await;
    let ids = [unknown(&world, "k-1").await, unknown(&world, "k-2").await];
    assert_eq!(world.proxy.stop().await, Some(0));
    let file = world.proxy.file();
    let elsewhere = file.with_file_name("elsewhere.toml");
    let other = Proxy::on(&world.store.url()).upstream(world.upstream.address).short_leases();
    std::fs::write(&elsewhere, other.defaults("reconcile = { after = \"1s\" }").text()).unwrap();
    // The quiet time by that file's other routes has passed, but the proxies may wait for longer.
    let answered = async || {
        let output = keys(&elsewhere, &["resolve", &ids[0], "--not-executed"]).await;
        (!output.err.contains("may still be running")).then_some(output)
    };
    let refused = eventually(TEST_TIMEOUT, answered).await;
    assert_eq!(refused.code, 1, "{refused:?}");
    for part in ["route `pay`", "-c", "--admin", "--accept-risk"] {
        assert!(refused.err.contains(part), "{part}: {refused:?}");
    }
    let many = keys(&elsewhere, &["resolve", "--not-executed", "--state", "unknown", "--yes", "--json"]).await;
    let reply: Value = serde_json::from_str(&many.out).unwrap();
    assert_eq!((many.code, &reply["count"], &reply["refused_count"]), (1, &json!(0), &json!(2)), "{many:?}");
    assert_eq!(reply["refused"][0]["code"], "route-unknown");
    let shown: Value = serde_json::from_str(&keys(&elsewhere, &["show", &ids[0], "--json"]).await.out).unwrap();
    assert_eq!(
        (&shown["state"], &shown["quiet"], &shown["quiet_at"]),
        (&json!("unknown"), &json!(false), &Value::Null)
    );
    let known = keys(&file, &["resolve", &ids[0], "--not-executed"]).await;
    assert!(known.code == 1 && known.err.contains("may still be running"), "{known:?}");
    // Decisions that do not depend on the route, and those with the risk accepted.
    let done = keys(&elsewhere, &["resolve", &ids[0], "--completed", "200"]).await;
    assert!(done.code == 0 && done.out.contains("unknown -> completed"), "{done:?}");
    let done = keys(&elsewhere, &["resolve", &ids[1], "--not-executed", "--accept-risk"]).await;
    assert!(done.code == 0 && done.out.contains("unknown -> retryable"), "{done:?}");
    let wrong = keys(&elsewhere, &["resolve", &ids[0], "--not-executed"]).await;
    assert!(wrong.code == 1 && wrong.err.contains("is completed"), "{wrong:?}");
}

#[tokio::test]
async fn an_instance_of_another_service_is_refused() {
    let world = World::start(Store::sqlite()).await;
    assert_eq!(world.pay("k-1").send().await.status, 201);
    let (file, admin) = (world.proxy.file(), world.proxy.admin.to_string());
    let other = file.with_file_name("other.toml");
    std::fs::write(&other, format!("service = 'bank'\n[admin]\nlisten = '{admin}'")).unwrap();
    for (command, arguments) in [
        ("keys", &["list"][..]),
        ("keys", &["list", "--admin", &*admin]),
        ("keys", &["purge", "--all", "--yes"]),
        ("drain", &[]),
    ] {
        let output = oncegate(command, &other, arguments).await;
        assert_eq!(output.code, 1, "{command} {arguments:?}: {output:?}");
        assert!(
            output.err.contains("`default`") && output.err.contains("`bank`"),
            "{command} {arguments:?}: {output:?}"
        );
    }
    let operator = Operator::of(&world.proxy);
    for (method, path) in [("GET", "/api/v1/keys"), ("GET", "/api/v1/drain"), ("POST", "/api/v1/drain")] {
        let refusal = operator.request(method, path).field("X-Oncegate-Service", "bank").send().await;
        assert_eq!((refusal.status, &refusal.problem()["code"]), (409, &json!("other-service")), "{method} {path}");
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(operator.request("GET", path).field("X-Oncegate-Service", "bank").send().await.status, 200);
    }
    assert_eq!((operator.keys("").await.len(), operator.audit().await.len()), (1, 0));
    let own = operator.request("GET", "/api/v1/keys").field("X-Oncegate-Service", "default").send().await;
    assert_eq!(own.status, 200);
    assert_eq!(keys(&file, &["list", "--admin", &admin]).await.code, 0);
    assert_eq!(oncegate("drain", &file, &["--admin", &admin]).await.code, 0);
    assert_eq!(world.proxy.ended().await, Some(0));
}

#[tokio::test]
async fn a_token_is_not_sent_to_another_program() {
    let stranger = Upstream::start().await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("oncegate.toml");
    let token = "c29tZXRoaW5nIHNlY3JldA==";
    std::fs::write(&file, format!("[admin]\nlisten = '{}'\ntoken = '{token}'", stranger.address)).unwrap();
    let mut asked = 0;
    for answer in [r#"{"status":"alive"}"#, "alive", r#"{"name":"another"}"#] {
        for (command, arguments) in [("keys", &["list"][..]), ("drain", &[])] {
            stranger.then(Answer::status(200).body(answer));
            let output = oncegate(command, &file, arguments).await;
            assert_eq!(output.code, 1, "{command}: {output:?}");
            assert!(output.err.contains("is not an instance"), "{command}: {output:?}");
            asked += 1;
        }
    }
    let seen = stranger.executed();
    assert_eq!(seen.len(), asked, "another program gets no further request");
    assert!(seen.iter().all(|request| request.target == "/healthz" && request.field("authorization").is_none()));
}
