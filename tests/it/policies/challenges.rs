//! `challenge`: clients that send credentials only when they are asked for them.

use std::process::{Command, Output};

use crate::harness::{Store, World, find_program, route, skip};

const CHALLENGE: &str = "challenge = 'Basic realm=\"payments\"'";

#[tokio::test]
async fn a_keyed_request_without_credentials_is_asked_for_them_and_never_forwarded() {
    let world = World::with(Store::sqlite(), |setup| {
        setup
            .route(&route("pay", CHALLENGE))
            .route(&route("plain", ""))
            .route(&route("both", &format!("{CHALLENGE}\nscope = [\"authorization\", \"cookie:sid\"]")))
            .route(&route("observed", &format!("{CHALLENGE}\nmode = \"observe\"")))
    })
    .await;
    // The path, its fields, and the status of the refusal.
    for (path, fields, status) in [
        ("/pay", &[][..], 401),
        ("/pay", &[("Authorization", "")], 401),
        ("/pay", &[("Authorization", "Basic")], 401),
        ("/pay", &[("Cookie", "sid=a")], 401),
        ("/both", &[("Cookie", "sid=a")], 401),
        // With credentials, another challenge would not help.
        ("/pay", &[("Authorization", "Digest username=\"a\", nonce=\"n\"")], 400),
        ("/pay", &[("Authorization", "Bearer a"), ("Authorization", "Bearer b")], 400),
        ("/both", &[("Authorization", "Bearer a")], 400),
        ("/plain", &[], 400),
    ] {
        let request = world.post(path).key("k-1").anonymous().body("x");
        let refusal = fields.iter().fold(request, |request, (name, value)| request.field(name, value)).send().await;
        assert_eq!(refusal.outcome(), (status, "scope-missing".to_owned()), "{path} {fields:?}");
        let asked = refusal.field("www-authenticate");
        assert_eq!(asked, (status == 401).then_some("Basic realm=\"payments\""), "{path} {fields:?}");
        assert_eq!(refusal.oncegate_status(), Some("rejected"), "{path} {fields:?}");
    }
    assert_eq!(world.upstream.calls(), 0);
    let pay = || world.post("/pay").key("k-1").field("Authorization", "Basic dTpw").body("x");
    assert_eq!(pay().send().await.oncegate_status(), Some("executed"));
    assert_eq!(pay().send().await.oncegate_status(), Some("replayed"));
    let keyless = world.post("/pay").anonymous().body("x").send().await;
    assert_eq!((keyless.status, keyless.oncegate_status()), (201, None), "without a key, the service asks itself");
    let observed = world.post("/observed").key("k-1").anonymous().body("x").send().await;
    assert_eq!((observed.status, observed.oncegate_status()), (201, Some("observed")));
}

/// Runs a client, if it is installed.
async fn run(programs: &[&str], arguments: Vec<String>) -> Option<Output> {
    let Some(program) = find_program(programs) else {
        skip(format_args!("{} is not installed", programs[0]));
        return None;
    };
    let mut command = Command::new(program);
    command.args(arguments).env_remove("http_proxy").env_remove("HTTP_PROXY");
    Some(tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap())
}

#[tokio::test]
async fn curl_and_python_answer_the_challenge_and_their_retries_are_replayed() {
    let world = World::with(Store::sqlite(), |setup| setup.route(&route("pay", CHALLENGE))).await;
    let url = format!("http://{}/pay", world.proxy.listen);
    let curl = ["-s", "-i", "--anyauth", "--user", "u:p", "-H", "Idempotency-Key: k-curl", "--json", "{\"a\":1}", &url];
    // curl may send no body with the request that it expects to be refused.
    let python = "
import sys, urllib.request
passwords = urllib.request.HTTPPasswordMgrWithDefaultRealm()
passwords.add_password(None, sys.argv[1], 'u', 'p')
opener = urllib.request.build_opener(urllib.request.HTTPBasicAuthHandler(passwords))
request = urllib.request.Request(sys.argv[1], b'{\"a\":1}', {'Idempotency-Key': 'k-python', 'Content-Type': 'application/json'})
with opener.open(request) as answer:
    print(answer.status, answer.headers['Oncegate-Status'])
";
    let mut calls = 0;
    for (programs, arguments) in [(&["curl"][..], &curl[..]), (&["python3"], &["-c", python, &url])] {
        for expected in ["executed", "replayed"] {
            let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
            let Some(output) = run(programs, arguments).await else { break };
            let said = String::from_utf8(output.stdout).unwrap().to_ascii_lowercase();
            assert!(said.contains("201") && said.contains(expected), "{programs:?}: {said} {:?}", output.stderr);
            calls += usize::from(expected == "executed");
        }
    }
    assert_eq!(world.upstream.calls(), calls);
}
