//! The commands, run from a shell: the real binary, real sockets, exit codes.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;

/// Longer than any step here takes on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The token of the instances here, and of the commands that ask them.
const ADMIN_TOKEN: &str = "a-token-of-these-tests";

/// The binary, without the environment variables of the test run.
fn oncegate(arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(arguments).stdin(Stdio::null());
    for variable in ["CONFIG", "LISTEN", "UPSTREAM", "STORE_URL", "ADMIN_LISTEN", "LOG", "SECRET"] {
        command.env_remove(format!("ONCEGATE_{variable}"));
    }
    command.env("ONCEGATE_ADMIN_TOKEN", ADMIN_TOKEN);
    command
}

/// A command's output and exit code.
struct Ended {
    code: i32,
    out: String,
    err: String,
}

fn run(arguments: &[&str]) -> Ended {
    ended(oncegate(arguments).output().unwrap())
}

fn ended(output: Output) -> Ended {
    Ended {
        code: output.status.code().expect("no signal ended it"),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A temporary folder with these files, deleted on drop.
struct Folder(TempDir);

impl Folder {
    fn with(files: &[(&str, &str)]) -> Self {
        let folder = Self(TempDir::new().unwrap());
        files.iter().for_each(|(name, text)| std::fs::write(folder.path(name), text).unwrap());
        folder
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn at(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }
}

/// A service that reports each request and answers on command.
struct Service {
    address: SocketAddr,
    seen: Receiver<String>,
    proceed: Sender<()>,
}

impl Service {
    fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (tell, seen) = mpsc::channel();
        let (proceed, proceed_signal) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut head = String::new();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                while reader.read_line(&mut head).unwrap() > 2 {}
                let _ = tell.send(head.lines().next().unwrap_or_default().to_owned());
                if proceed_signal.recv().is_err() {
                    return;
                }
                let answer = "HTTP/1.1 201 Created\r\ncontent-length: 4\r\nconnection: close\r\n\r\npaid";
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        Self { address, seen, proceed }
    }
}

/// `oncegate run`, with a store of its own.
struct Instance {
    process: Child,
    address: SocketAddr,
    admin: SocketAddr,
    logs: Receiver<Value>,
    _folder: Folder,
}

impl Instance {
    fn start(service: SocketAddr) -> Self {
        let folder = Folder::with(&[]);
        let store = format!("sqlite:{}", folder.at("oncegate.db"));
        let upstream = format!("http://{service}");
        let arguments =
            ["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0", "--upstream", &upstream, "--store", &store];
        let mut process = oncegate(&arguments).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines();
        let (tell, logs) = mpsc::channel();
        thread::spawn(move || {
            for line in lines.map_while(Result::ok) {
                let _ = tell.send(serde_json::from_str(&line).unwrap_or(Value::String(line)));
            }
        });
        let nowhere = "127.0.0.1:0".parse().unwrap();
        let mut instance = Self { process, address: nowhere, admin: nowhere, logs, _folder: folder };
        let ready = instance.logged("ready");
        instance.address = ready["listen"].as_str().unwrap().parse().unwrap();
        instance.admin = ready["admin"].as_str().unwrap().parse().unwrap();
        instance
    }

    /// Waits for an event in the log.
    fn logged(&self, message: &str) -> Value {
        loop {
            let event = self.logs.recv_timeout(TEST_TIMEOUT).unwrap_or_else(|_| panic!("no event {message:?}"));
            if event["message"] == message {
                return event;
            }
        }
    }

    /// Waits for the process to exit; its last log line must be the last event.
    fn ended(mut self) -> ExitStatus {
        while self.logs.recv_timeout(TEST_TIMEOUT).is_ok() {}
        self.process.wait().unwrap()
    }

    fn signal(&self) {
        let id = rustix::process::Pid::from_child(&self.process);
        rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    }

    fn against(&self, command: &[&str]) -> Command {
        oncegate(&[command, &["--admin", &self.admin.to_string()]].concat())
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

fn send(address: SocketAddr, method: &str, path: &str, fields: &str) -> Answer {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(TEST_TIMEOUT)).unwrap();
    let host = if fields.to_lowercase().contains("host: ") { String::new() } else { format!("Host: {address}\r\n") };
    let length = if method == "POST" { "Content-Length: 0\r\n" } else { "" };
    write!(stream, "{method} {path} HTTP/1.1\r\n{host}{fields}{length}Connection: close\r\n\r\n").unwrap();
    let mut text = String::new();
    stream.read_to_string(&mut text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n").unwrap();
    let status = head.split(' ').nth(1).unwrap().parse().unwrap();
    Answer { status, head: head.to_lowercase(), body: body.to_owned() }
}

const CONFIG: &str = "upstream = 'http://127.0.0.1:1'\n[[routes]]\nname = 'pay'\npath = '/v1/payments'\n\
                      key = { required = true }\n[[routes]]\nname = 'items'\npath = '/v1/{kind}/{id}'\n\
                      methods = ['PATCH', 'DELETE']\n[[routes]]\nname = 'reports'\npath = '/v1/reports'\n\
                      mode = 'off'\n";

#[test]
fn the_schema_command_prints_valid_json_schema() {
    let Ended { code, out, .. } = run(&["schema"]);
    let schema: Value = serde_json::from_str(&out).unwrap();
    assert_eq!(code, 0);
    assert_eq!(schema["$schema"], "https://json-schema.org/draft/2020-12/schema");
    assert!(schema["properties"]["routes"]["items"]["required"].is_array());
    assert_eq!(schema["$id"], concat!("urn:oncegate:schema:configuration:", env!("CARGO_PKG_VERSION")));
}

#[test]
fn the_version_is_that_of_the_package() {
    let version = run(&["--version"]);
    assert_eq!(version.out, format!("oncegate {}\n", env!("CARGO_PKG_VERSION")));
}

#[test]
fn completions_are_printed_for_known_shells_only() {
    for shell in ["bash", "zsh", "fish"] {
        let Ended { code, out, .. } = run(&["completions", shell]);
        assert_eq!(code, 0, "{shell}");
        assert!(out.contains("healthcheck") && out.contains("openapi"), "{shell}");
    }
    assert_eq!(run(&["completions", "cmd"]).code, 2);
    assert_eq!(run(&["completions"]).code, 2);
}

#[test]
fn the_manual_has_every_command_and_its_flags() {
    let Ended { code, out, .. } = run(&["man"]);
    assert_eq!(code, 0);
    assert!(out.contains(".TH oncegate 1"));
    let verbs = ["list", "show", "resolve", "release", "requeue", "purge"].map(|verb| format!("keys {verb}"));
    let commands =
        ["run", "demo", "check", "migrate", "probe", "healthcheck", "drain", "keys", "schema", "completions", "man"];
    for command in commands.into_iter().chain(verbs.iter().map(|verb| &**verb)) {
        assert!(out.contains(&format!(".SS {command}\n")), "{command}");
    }
    for said in ["openapi", "wait", "accept\\-risk", "EXECUTES YOUR OPERATION", "Exit codes"] {
        assert!(out.contains(said), "{said}");
    }
}

#[test]
fn init_writes_a_valid_file_for_each_use_each_caller_and_each_store() {
    let uses = ["payments", "orders", "uploads", "model-api", "webhooks", "egress", "graphql", "grpc", "mcp"];
    let callers: [&[&str]; 3] = [
        &["--callers", "api-key"],
        &["--callers", "one", "--store", "postgres://oncegate@127.0.0.1/oncegate"],
        &["--callers", "jwt", "--issuer", "https://login.example/", "--audience", "shop"],
    ];
    for what in uses.into_iter().chain([
        "payments,webhooks,graphql",
        "webhooks:slack,webhooks:twilio=/calls",
        "webhooks:adyen,webhooks:hubspot,webhooks:sendgrid",
        "orders=/v2/orders/{id}/items",
        "egress:stripe",
        "egress:paypal=/v2/{*rest},egress:openai",
    ]) {
        for caller in callers {
            let folder = Folder::with(&[]);
            let upstream = if what == "grpc" { "h2c://127.0.0.1:3000" } else { "http://127.0.0.1:3000" };
            let arguments = ["init", "--upstream", upstream, "--for", what];
            let written = run_in(&folder, &[], &[&arguments[..], caller].concat());
            assert_eq!(written.code, 0, "{what} {caller:?}: {}", written.err);
            assert!(written.out.contains("oncegate check -c oncegate.toml"), "the next command: {}", written.out);
            let checked = run_in(&folder, &[], &["check"]);
            assert_eq!(checked.code, 0, "{what} {caller:?}: {}", checked.err);
            // A webhook has no caller, also where the other routes would have tokens.
            let text = std::fs::read_to_string(folder.path("oncegate.toml")).unwrap();
            assert!(!text.contains("jwks.json"), "an issuer's own description names its keys: {text}");
            let is_known = |line: &str| line.contains("no route's `scope` has a `jwt:` part");
            assert!(checked.err.lines().all(is_known), "{what} {caller:?}: {}", checked.err);
            assert_eq!(checked.out.matches("\nroute ").count(), what.split(',').count(), "{}", checked.out);
            // A trial never reaches the vendor itself.
            assert!(!checked.out.contains("https://api."), "{what}: {}", checked.out);
        }
    }
}

/// The problems that taplo, the library of editors for TOML, finds by the schema that the file itself names.
fn lint(taplo: &Path, folder: &Folder, text: &str) -> Option<String> {
    std::fs::write(folder.path("oncegate.toml"), text).unwrap();
    let linted = Command::new(taplo).args(["lint", "oncegate.toml"]).current_dir(folder.0.path()).output().unwrap();
    (!linted.status.success()).then(|| String::from_utf8(linted.stderr).unwrap())
}

#[test]
fn an_editor_finds_the_schema_beside_what_init_writes_and_a_mistake_by_it() {
    let taplo = Path::new(env!("CARGO_TARGET_TMPDIR")).with_file_name("validators/bin/taplo");
    if !taplo.exists() {
        return eprintln!("skipped: there is no {}, which scripts/validators installs", taplo.display());
    }
    // That of an earlier version is replaced.
    let folder = Folder::with(&[("oncegate.schema.json", r#"{"$id":"urn:oncegate:schema:configuration:0.0.1"}"#)]);
    let arguments = ["init", "--upstream", "3000", "--for", "payments,webhooks:slack,egress:stripe"];
    assert_eq!(run_in(&folder, &[], &arguments).code, 0);
    let text = std::fs::read_to_string(folder.path("oncegate.toml")).unwrap();
    assert_eq!(lint(&taplo, &folder, &text), None);
    for (line, said) in [
        ("upstreem = \"http://a\"", "upstreem"),
        ("[[routes]]\nname = \"a\"\npath = \"a\"", "\"a\" does not match"),
        ("[[routes]]\nname = \"a\"\npath = \"/a\"\nkey.from = \"x-key\"", "x-key"),
        ("[[routes]]\nname = \"a\"\npath = \"/a\"\nkind = \"mony\"", "mony"),
    ] {
        let problems = lint(&taplo, &folder, &format!("#:schema ./oncegate.schema.json\n{line}\n"));
        assert!(problems.as_ref().is_some_and(|problems| problems.contains(said)), "{line}: {problems:?}");
    }
}

#[test]
fn init_lets_only_its_user_read_what_it_writes_with_a_secret_in_it() {
    let mode = |file: PathBuf| std::fs::metadata(file).unwrap().permissions().mode() & 0o777;
    for (store, has_password, has_secret) in [
        ("sqlite:oncegate.db", false, false),
        ("postgres://oncegate@127.0.0.1/oncegate", false, true),
        ("postgresql://oncegate@127.0.0.1/oncegate", false, true),
        ("postgres://oncegate:hunter2@127.0.0.1/oncegate", true, true),
        ("postgres://oncegate@127.0.0.1/oncegate?password=hunter2&sslmode=disable", true, true),
        ("postgres://oncegate:${DB_PASSWORD}@127.0.0.1/oncegate", false, true),
        ("postgres://oncegate:${file:password}@127.0.0.1/oncegate", false, true),
    ] {
        let folder = Folder::with(&[("password", "hunter3")]);
        let arguments = ["init", "--upstream", "http://127.0.0.1:3000", "--for", "payments", "--store", store];
        let written = run_in(&folder, &[("DB_PASSWORD", "hunter4")], &arguments);
        assert_eq!(written.code, 0, "{store}: {}", written.err);
        assert!(!format!("{}{}", written.out, written.err).contains("hunter"), "{store}: {}", written.out);
        assert_eq!(mode(folder.path("oncegate.toml")), if has_password { 0o600 } else { 0o644 }, "{store}");
        assert_eq!(written.out.contains("so only you can read it (0600)"), has_password, "{store}: {}", written.out);
        assert_eq!(Path::new(&folder.path("oncegate.secret")).exists(), has_secret, "{store}");
        assert_eq!(
            written.out.contains("oncegate.secret has the `secret` (0600)"),
            has_secret,
            "{store}: {}",
            written.out
        );
        if has_secret {
            assert_eq!(mode(folder.path("oncegate.secret")), 0o600, "{store}");
            let secret = std::fs::read_to_string(folder.path("oncegate.secret")).unwrap();
            assert_eq!(secret.trim().len(), 44, "32 random bytes");
            let text = std::fs::read_to_string(folder.path("oncegate.toml")).unwrap();
            assert!(text.contains("secret = \"${file:oncegate.secret}\"") && !text.contains(secret.trim()), "{text}");
            // A second configuration of the same name elsewhere keeps the secret that is there.
            std::fs::remove_file(folder.path("oncegate.toml")).unwrap();
            assert_eq!(run_in(&folder, &[("DB_PASSWORD", "hunter4")], &arguments).code, 0, "{store}");
            assert_eq!(std::fs::read_to_string(folder.path("oncegate.secret")).unwrap(), secret, "{store}");
        }
        let checked = run_in(&folder, &[("DB_PASSWORD", "hunter4")], &["check"]);
        assert_eq!((checked.code, checked.err.contains("everybody on this machine")), (0, false), "{}", checked.err);
    }
    // In another folder the file names its secret by the whole path. Nothing is left of one that is not valid.
    let folder = Folder::with(&[]);
    std::fs::create_dir(folder.path("etc")).unwrap();
    let arguments =
        ["init", "--upstream", "http://127.0.0.1:3000", "--for", "payments", "--output", "etc/pay.toml", "--store"];
    let store = |url| run_in(&folder, &[], &[&arguments[..], &[url]].concat());
    assert_eq!(store("postgres://oncegate:${NOT_THERE}@127.0.0.1/oncegate").code, 78);
    assert_eq!(std::fs::read_dir(folder.path("etc")).unwrap().count(), 0);
    assert_eq!(store("postgres://oncegate@127.0.0.1/oncegate").code, 0);
    assert_eq!(run_in(&folder, &[], &["check", "-c", "etc/pay.toml"]).code, 0);
}

#[test]
fn init_makes_a_route_of_each_operation_of_an_openapi_document() {
    let spec = "openapi: 3.1.0\npaths:\n  /v1/payments:\n    post: {}\n    get: {}\n  /v1/payments/{id}/refunds:\n    \
                post: {}\n    patch: {}\n";
    let folder = Folder::with(&[("api.yaml", spec)]);
    let arguments = ["init", "--upstream", "3000", "--for", "payments", "--openapi", "api.yaml"];
    let written = run_in(&folder, &[], &arguments);
    assert_eq!(written.code, 0, "{}", written.err);
    assert!(written.out.contains("2 routes, one for each path of api.yaml"), "{}", written.out);
    let text = std::fs::read_to_string(folder.path("oncegate.toml")).unwrap();
    assert!(text.contains("upstream = \"http://127.0.0.1:3000\""), "a port alone is one of this machine: {text}");
    let comments: Vec<_> = text.lines().filter_map(|line| Some(line.split_once("# ")?.1)).collect();
    let distinct: std::collections::BTreeSet<_> = comments.iter().collect();
    assert_eq!(distinct.len(), comments.len(), "each comment stands once: {text}");
    assert_eq!(text.matches("kind = \"money\"").count(), 2, "{text}");
    let checked = run_in(&folder, &[], &["check", "--openapi", "api.yaml"]);
    assert_eq!(checked.code, 0, "every operation has a route: {}", checked.out);
    assert!(checked.out.contains("payments-refunds") && checked.out.contains("(kind: "), "{}", checked.out);
}

#[test]
fn init_changes_no_file_and_says_which_flag_is_missing_where_nobody_can_be_asked() {
    let folder = Folder::with(&[("oncegate.toml", "# mine\n")]);
    let complete = ["init", "--upstream", "http://127.0.0.1:3000", "--for", "payments"];
    let refused = run_in(&folder, &[], &complete);
    assert_eq!((refused.code, refused.err.contains("is there already")), (2, true), "{}", refused.err);
    assert_eq!(std::fs::read_to_string(folder.path("oncegate.toml")).unwrap(), "# mine\n");
    for (arguments, problem, code) in [
        (&complete[..3], "--for is missing", 2),
        (&["init", "--for", "payments"][..], "--upstream is missing", 2),
        (&["init", "--upstream", "http://h", "--for", "payment"][..], "payments, orders", 2),
        (&["init", "--upstream", "http://h", "--for", "order"][..], "did you mean `orders`?", 2),
        (&[&complete[..], &["--unit"]].concat()[..], "--unit", 2),
        (&["init", "--upstream", "http://h", "--for", "grpc"][..], "h2c://", 2),
        (&["init", "--upstream", "ftp://h", "--for", "payments"][..], "--upstream", 2),
        (&["init", "--upstream", "127.0.0.1:3000", "--for", "payments"][..], "has no scheme", 2),
        (&["init", "--upstream", "http://h", "--for", "payments=v1/pay"][..], "--for", 2),
        (&[&complete[..], &["--store", "mysql://h/shop"]].concat()[..], "--store", 2),
        (&[&complete[..], &["--store", "postgres://shop:hunter2@db/shop?sslmod=x"]].concat()[..], "--store", 2),
        (&["init", "--upstream", "http://shop:hunter2@h", "--for", "payments"][..], "--upstream", 2),
        (&["init", "--upstream", "unix:/run/shop.sock", "--for", "grpc"][..], "h2c://", 2),
        (&[&complete[..], &["--callers", "bogus"]].concat()[..], "bogus", 2),
        (&["init", "--upstream", "http://h", "--for", "payments", "--callers", "jwt"][..], "--issuer is missing", 2),
    ] {
        let failed = run_in(&folder, &[], &[arguments, &["--output", "other.toml"]].concat());
        assert_eq!((failed.code, failed.err.contains(problem)), (code, true), "{arguments:?}: {}", failed.err);
        assert!(!failed.err.contains("hunter2"), "{}", failed.err);
        assert!(!Path::new(&folder.path("other.toml")).exists(), "{arguments:?} leaves nothing");
    }
}

#[test]
fn check_prints_the_routes_or_the_error() {
    let folder = Folder::with(&[("good.toml", CONFIG), ("bad.toml", "upstream = 'http://a'\nlistem = 'x'\n")]);
    let good = run(&["check", "-c", &folder.at("good.toml")]);
    assert_eq!(good.code, 0, "{}", good.err);
    assert!(good.out.contains("POST PATCH /v1/payments"), "{}", good.out);
    let bad = run(&["check", "-c", &folder.at("bad.toml")]);
    assert_eq!(bad.code, 78);
    assert!(bad.err.contains("bad.toml:2:1") && bad.err.contains("listen"), "{}", bad.err);
    assert_eq!(run(&["check", "-c", &folder.at("none.toml")]).code, 78);
}

#[test]
fn check_warns_of_a_dangerous_setting_by_name_and_still_succeeds() {
    let text = |lines: &str| {
        format!(
            "{CONFIG}[[routes]]\nname = 'charge'\npath = '/v1/charges'\nkind = 'money'\nrelease_statuses = ['5xx']\n{lines}"
        )
    };
    let allowed = text("allow = ['money-5xx']\n");
    let folder = Folder::with(&[("open.toml", &text("")), ("allowed.toml", &allowed)]);
    for (file, warnings) in [("open.toml", 1), ("allowed.toml", 0)] {
        let checked = run(&["check", "-c", &folder.at(file)]);
        assert_eq!((checked.code, checked.err.matches("warning: ").count()), (0, warnings), "{file}: {}", checked.err);
        assert!(checked.err.lines().all(|line| line.ends_with(" [money-5xx]")), "{}", checked.err);
    }
    assert!(run(&["check", "-c", &folder.at("allowed.toml")]).out.contains("\n  allowed       money-5xx"));
}

/// A command in this folder, whose output is read.
fn run_in(folder: &Folder, variables: &[(&str, &str)], arguments: &[&str]) -> Ended {
    let mut command = oncegate(arguments);
    ended(command.current_dir(folder.0.path()).envs(variables.iter().copied()).output().unwrap())
}

#[test]
fn the_file_in_the_working_directory_is_read_unless_another_is_named() {
    let named = |name: &str| CONFIG.replace("/v1/payments", name);
    let folder = Folder::with(&[("oncegate.toml", &named("/here")), ("other.toml", &named("/other"))]);
    for (variables, arguments, path) in [
        (&[][..], &["check"][..], "/here"),
        (&[("ONCEGATE_CONFIG", "")], &["check"], "/here"),
        (&[("ONCEGATE_CONFIG", "other.toml")], &["check"], "/other"),
        (&[], &["check", "-c", "other.toml"], "/other"),
    ] {
        let checked = run_in(&folder, variables, arguments);
        assert!(
            checked.code == 0 && checked.out.contains(path),
            "{variables:?} {arguments:?}: {} {}",
            checked.out,
            checked.err
        );
    }
    let without = run_in(&Folder::with(&[]), &[("ONCEGATE_CONFIG", "")], &["check"]);
    assert!(without.code == 78 && without.err.contains("upstream: is missing"), "{}", without.err);
}

#[test]
fn init_writes_for_the_unit_what_its_user_may_read_and_every_command_finds_it() {
    // As root of a machine with nothing in /etc and /var/lib.
    let alone = |script: &str| {
        let script = format!("mount -t tmpfs none /etc; mount -t tmpfs none /var/lib; {script}");
        let folder = Folder::with(&[]);
        let mut command = Command::new("unshare");
        command.args(["--user", "--map-root-user", "--mount", "sh", "-ec", &script]).current_dir(folder.0.path());
        ended(command.env_remove("ONCEGATE_CONFIG").env("oncegate", env!("CARGO_BIN_EXE_oncegate")).output().unwrap())
    };
    if alone("").code != 0 {
        return eprintln!("skipped: this machine lets nobody mount in a namespace of users");
    }
    let init = "$oncegate init --unit --upstream 3000 --for";
    let missing = alone(&format!("{init} orders"));
    assert!(missing.code == 2 && missing.err.contains("there is no /etc/oncegate"), "{}", missing.err);
    let elsewhere = alone(&format!("mkdir /etc/oncegate; {init} orders --store sqlite:/etc/oncegate/a.db"));
    assert!(elsewhere.code == 2 && elsewhere.err.contains("is not in /var/lib/oncegate"), "{}", elsewhere.err);
    let written = alone(&format!(
        "mkdir /etc/oncegate; umask 077; {init} orders=/orders,egress:stripe; stat -c 'mode %a' /etc/oncegate/*; \
         cat /etc/oncegate/oncegate.toml; $oncegate check; ONCEGATE_ADMIN_LISTEN=127.0.0.1:1 $oncegate keys list 2>&1 || true; \
         $oncegate run 2>&1 || true; {init} orders"
    ));
    let Ended { code, out, err } = written;
    assert!(code == 2 && err.contains("/etc/oncegate/oncegate.toml is there already"), "{out} {err}");
    assert_eq!(out.matches("mode 640\n").count(), 3, "{out}");
    for text in [
        "It guards POST /orders, POST /v1/{*rest}. USE=PATH",
        "curl -i http://127.0.0.1:8080/orders -H 'Authorization: Bearer alice' ",
        "secret = \"${file:/etc/oncegate/oncegate.secret}\"",
        "url = \"sqlite:/var/lib/oncegate/oncegate.db\"",
        "token_file = \"/var/lib/oncegate/admin-token\"",
        "# key = { from = \"form:metadata[order_id]\" }",
        "Bearer ${file:/etc/oncegate/stripe}",
        "file            /etc/oncegate/oncegate.toml\n",
        "there is no such file; the configuration is /etc/oncegate/oncegate.toml",
        "/etc/oncegate/oncegate.toml is the unit's: `systemctl start oncegate`",
    ] {
        assert!(out.contains(text), "{text}: {out}");
    }
    // `--admin` may name the instance of that file, or another.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let asked = alone(&format!(
        "mkdir /etc/oncegate /var/lib/oncegate; {init} orders=/orders >/dev/null; \
         sed -i 's/^\\[admin]/&\\nlisten = \"127.0.0.1:{port}\"/' /etc/oncegate/oncegate.toml; \
         $oncegate run -c /etc/oncegate/oncegate.toml --listen 127.0.0.1:0 2>/dev/null & trap \"kill $!\" EXIT; \
         for _ in $(seq 300); do $oncegate healthcheck 2>/dev/null && break; sleep 0.1; done; \
         $oncegate keys list --admin 127.0.0.1:{port}; $oncegate keys list --admin 127.0.0.1:1 2>&1 || true"
    ));
    assert!(asked.code == 0 && asked.out.contains("127.0.0.1:1: nobody listens there"), "{} {}", asked.out, asked.err);
}

#[test]
fn a_token_that_is_refused_is_named_with_the_configuration_that_it_is_from() {
    let instance = Instance::start("127.0.0.1:1".parse().unwrap());
    let folder =
        Folder::with(&[("oncegate.toml", &CONFIG.replacen('\n', "\n[admin]\ntoken = 'the-token-of-another'\n", 1))]);
    let listener = instance.admin.to_string();
    let asked = |folder: &Folder, token: &str| {
        run_in(folder, &[("ONCEGATE_ADMIN_TOKEN", token)], &["keys", "list", "--admin", &listener])
    };
    let named = format!("; the configuration is {}", folder.path("oncegate.toml").canonicalize().unwrap().display());
    for (refused, reason) in [
        (asked(&folder, "no-token-of-this-one"), "; the token is that of ONCEGATE_ADMIN_TOKEN"),
        (asked(&folder, ""), &*named),
        (asked(&Folder::with(&[]), ""), "; no configuration was found: name it with -c"),
    ] {
        assert!(refused.code == 1 && refused.err.contains(reason), "{}", refused.err);
    }
}

#[test]
fn a_default_file_that_is_there_and_cannot_be_followed_is_an_error_and_not_a_missing_file() {
    for target in ["gone.toml", "oncegate.toml"] {
        let folder = Folder::with(&[]);
        std::os::unix::fs::symlink(target, folder.path("oncegate.toml")).unwrap();
        let upstream = [("ONCEGATE_UPSTREAM", "http://127.0.0.1:9"), ("ONCEGATE_STORE_URL", "memory:")];
        for arguments in
            [&["check"][..], &["run"], &["explain", "POST", "/"], &["migrate", "--print"], &["healthcheck"]]
        {
            let refused = run_in(&folder, &upstream, arguments);
            assert!(
                refused.code == 78 && refused.err.contains("oncegate.toml: cannot be read: "),
                "{target} {arguments:?}: {} {}",
                refused.code,
                refused.err
            );
        }
    }
}

#[test]
fn an_empty_name_of_a_file_is_a_wrong_command_line() {
    let folder = Folder::with(&[("oncegate.toml", CONFIG)]);
    for arguments in [
        &["check", "-c", ""][..],
        &["check", "--config="],
        &["run", "-c", ""],
        &["healthcheck", "-c", ""],
        &["explain", "-c", "", "POST", "/"],
    ] {
        let refused = run_in(&folder, &[("ONCEGATE_CONFIG", "oncegate.toml")], arguments);
        let says = refused.err.contains("--config") && refused.err.contains("the name of the file is empty");
        assert!(refused.code == 2 && says, "{arguments:?}: {} {}", refused.code, refused.err);
    }
}

#[test]
fn check_names_the_file_that_was_read_or_says_that_there_is_none() {
    let folder = Folder::with(&[("oncegate.toml", CONFIG), ("other.toml", CONFIG)]);
    let whole = |name: &str| folder.path("").canonicalize().unwrap().join(name).display().to_string();
    for (variables, arguments, file) in [
        (&[][..], &["check"][..], whole("oncegate.toml")),
        (&[("ONCEGATE_CONFIG", "other.toml")], &["check"], whole("other.toml")),
        (&[], &["check", "-c", "other.toml"], whole("other.toml")),
    ] {
        let checked = run_in(&folder, variables, arguments);
        let first = checked.out.lines().next();
        assert_eq!(first, Some(&*format!("{:<16}{file}", "file")), "{arguments:?}: {}", checked.err);
    }
    let empty = Folder::with(&[]);
    let without = run_in(&empty, &[("ONCEGATE_UPSTREAM", "http://127.0.0.1:9")], &["check"]);
    assert_eq!(without.out.lines().next(), Some("file            no file: defaults"), "{}", without.err);
    let missing = run_in(&empty, &[], &["check"]);
    let names_both = missing.err.contains("neither ./oncegate.toml nor /etc/oncegate/oncegate.toml was found");
    assert!(missing.code == 78 && names_both, "{}", missing.err);
    let named = Folder::with(&[("oncegate.toml", "listen = '127.0.0.1:0'\n")]);
    let lacking = run_in(&named, &[], &["check"]);
    assert!(lacking.err.contains("upstream: is missing") && !lacking.err.contains("was found"), "{}", lacking.err);
}

#[test]
fn a_start_logs_the_file_that_was_read_and_the_whole_path_of_the_embedded_store() {
    let config = "upstream = 'http://127.0.0.1:9'\nlisten = '127.0.0.1:0'\nadmin = { listen = '127.0.0.1:0' }\n\
                  store = { url = 'sqlite:keys.db' }\n";
    let folder = Folder::with(&[("oncegate.toml", config)]);
    let here = folder.path("").canonicalize().unwrap();
    let flags = ["--upstream", "http://127.0.0.1:9", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
    let empty = Folder::with(&[]);
    let elsewhere = empty.path("").canonicalize().unwrap();
    let file = here.join("oncegate.toml").display().to_string();
    let (with_file, with_flag) = (["run", "-c", &file], ["run", "-c", &file, "--store", "sqlite:flag.db"]);
    for (folder, arguments, file, store) in [
        (&folder, &["run"][..], file.clone(), here.join("keys.db")),
        (&empty, &with_file[..], file.clone(), here.join("keys.db")),
        (&empty, &with_flag[..], file.clone(), elsewhere.join("flag.db")),
        (&empty, &[&["run"], &flags[..]].concat(), "no file: defaults".to_owned(), elsewhere.join("oncegate.db")),
    ] {
        let mut command = oncegate(arguments);
        let mut process = command.current_dir(folder.0.path()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap()).lines().map_while(Result::ok);
        let ready =
            lines.map(|line| serde_json::from_str::<Value>(&line).unwrap()).find(|line| line["message"] == "ready");
        process.kill().unwrap();
        process.wait().unwrap();
        let ready = ready.expect("it starts");
        assert_eq!(ready["config"], file);
        assert_eq!(ready["store"], format!("sqlite:{}", store.display()));
    }
}

#[test]
fn check_takes_the_overrides_of_run() {
    let folder = Folder::with(&[]);
    let flags =
        ["--upstream", "http://up:9", "--listen", "127.0.0.1:1", "--admin", "127.0.0.1:2", "--store", "memory:"];
    let checked = run_in(&folder, &[], &[&["check", "--scope", "cookie:sid"], &flags[..]].concat());
    assert_eq!(checked.code, 0, "{}", checked.err);
    for said in ["http://up:9", "127.0.0.1:1, admin on 127.0.0.1:2", "memory:", "cookie:sid"] {
        assert!(checked.out.contains(said), "{said}: {}", checked.out);
    }
    let wrong = run_in(&folder, &[], &["check", "--upstream", "ftp://up"]);
    assert!(wrong.code == 78 && wrong.err.contains("--upstream: "), "{}", wrong.err);
}

#[test]
fn a_flag_or_variable_with_a_placeholder_of_another_language_is_refused() {
    let folder = Folder::with(&[]);
    for (flag, variable, value) in [
        ("--store", "ONCEGATE_STORE_URL", "postgres://u:$(hunter2)@db/d"),
        ("--store", "ONCEGATE_STORE_URL", "postgres://u:{{hunter2}}@db/d"),
        ("--store", "ONCEGATE_STORE_URL", "sqlite:$HOME/a.db"),
        ("--upstream", "ONCEGATE_UPSTREAM", "http://<hunter2>"),
    ] {
        let given = ["check", "--upstream", "http://127.0.0.1:9", flag, value];
        let arguments = if flag == "--upstream" { &given[..1] } else { &given[..3] };
        for refused in
            [run_in(&folder, &[], &[arguments, &given[3..]].concat()), run_in(&folder, &[(variable, value)], arguments)]
        {
            assert!(
                refused.code == 78 && refused.err.contains("nothing fills in") && !refused.err.contains("hunter2"),
                "{value}: {} {}",
                refused.code,
                refused.err
            );
        }
    }
    // A password may have a `$`, and only the file's text says where a password begins.
    let store = ["check", "--upstream", "http://127.0.0.1:9", "--store", "postgres://u:pa$word@db/d?sslmode=disable"];
    assert_eq!(run_in(&folder, &[], &store).code, 0);
}

#[test]
fn explain_takes_a_request_as_curl_does() {
    let folder = Folder::with(&[("oncegate.toml", CONFIG)]);
    let key = ["-H", "Idempotency-Key: k", "-H", "Authorization: Bearer a"];
    for request in [
        &["POST", "/v1/payments"][..],
        &["post", "/v1/payments"],
        &["-X", "POST", "/v1/payments"],
        &["/v1/payments", "-X", "post"],
        &["POST", "/v1/payments", "-d", "--boundary\r\n"],
        &["POST", "/v1/payments", "-d", "-1"],
    ] {
        let explained = run_in(&folder, &[], &[&["explain"], request, &key].concat());
        let is_guarded = explained.out.contains("key             k\n") && explained.out.contains("fingerprint ");
        assert!(explained.code == 0 && is_guarded, "{request:?}: {} {}", explained.out, explained.err);
    }
    for (request, why) in [
        (&["/v1/payments"][..], "say the method too: `oncegate explain POST /v1/payments`"),
        (&["POST", "/v1/payments", "-X", "PUT"], "the method is there twice"),
        (&["P(ST", "/v1/payments"], "\"P(ST\" is no method"),
        (&["POST", "a b"], "\"a b\" is no target"),
    ] {
        let refused = run_in(&folder, &[], &[&["explain"], request].concat());
        assert!(refused.code == 2 && refused.err.contains(why), "{request:?}: {}", refused.err);
    }
}

#[test]
fn wrong_values_are_refused_in_the_words_of_the_command_line() {
    let folder = Folder::with(&[("passwd", "root:x:0:0\n")]);
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let taken = taken.local_addr().unwrap().to_string();
    let serve = ["run", "--upstream", "http://127.0.0.1:9", "--store", "memory:"];
    let foreign = format!("sqlite:{}", folder.at("passwd"));
    for (arguments, code, said, unsaid) in [
        (&["keys", "resolve", "6f1d0c9a", "--completed", "abc"][..], 2, "write a status from 200 to 599", "digit"),
        (&["keys", "resolve", "6f1d0c9a", "--completed", "99"], 2, "write a status from 200 to 599", "digit"),
        (
            &[&serve[..], &["--listen", &taken, "--admin", "127.0.0.1:0"]].concat(),
            1,
            "the address of `listen` (--listen, ONCEGATE_LISTEN)",
            "admin",
        ),
        (
            &[&serve[..], &["--listen", "127.0.0.1:0", "--admin", &taken]].concat(),
            1,
            "the address of `admin.listen` (--admin, ONCEGATE_ADMIN_LISTEN)",
            "--listen",
        ),
        (
            &["run", "--upstream", "http://127.0.0.1:9", "--store", &foreign],
            69,
            "is damaged, or is not a store",
            "chmod",
        ),
    ] {
        let refused = run(arguments);
        assert!(
            refused.code == code && refused.err.contains(said) && !refused.err.contains(unsaid),
            "{arguments:?}: {} {}",
            refused.code,
            refused.err
        );
    }
}

#[test]
fn check_lists_requests_that_no_route_guards() {
    let spec = "openapi: 3.1.0\nservers: [{url: https://api.example.com/v1}]\npaths:\n  /payments:\n    post: {}\n  \
                /payments/{id}:\n    get: {}\n    patch: {}\n";
    let folder = Folder::with(&[
        ("c.toml", CONFIG),
        ("guarded.yaml", spec),
        ("more.yaml", &format!("{spec}    put: {{}}\n  /refunds/{{id}}/x:\n    post: {{}}\n")),
        ("same.json", r#"{"openapi": "3.0.3", "paths": {"/v1/payments": {"post": {}}}}"#),
        (
            "decided.yaml",
            "openapi: 3.1.0\npaths:\n  /v1/search: {x-oncegate: ignore, post: {}}\n  /v1/reports: {post: {}}\n  \
             /v1/payments: {post: {x-oncegate: ignore}}\n",
        ),
        ("misspelt.yaml", "openapi: 3.1.0\npaths:\n  /v1/search: {post: {x-oncegate: skip}}\n"),
        ("broken.yaml", "openapi: [3.1"),
        ("other.yaml", "swagger: '2.0'"),
    ]);
    let check = |name: &str| run(&["check", "-c", &folder.at("c.toml"), "--openapi", &folder.at(name)]);

    let guarded = check("guarded.yaml");
    assert_eq!(guarded.code, 0, "{}", guarded.err);
    assert!(guarded.out.contains("guarded     POST    /v1/payments       pay, key required\n"), "{}", guarded.out);
    assert!(guarded.out.contains("guarded     PATCH   /v1/payments/{id}  items, key optional"), "{}", guarded.out);
    assert!(!guarded.out.contains("UNGUARDED"));
    assert_eq!(check("same.json").code, 0);

    let more = check("more.yaml");
    assert_eq!(more.code, 1);
    assert!(more.err.contains("no route guards 1 of 3"), "{}", more.err);
    assert!(more.out.contains("UNGUARDED   POST    /v1/refunds/{id}/x\n"), "{}", more.out);
    assert!(
        more.out.contains("not checked, as --methods does not list their methods: 1 state-changing operation"),
        "{}",
        more.out
    );
    let with = |name: &str, flags: &[&str]| {
        let (config, spec) = (folder.at("c.toml"), folder.at(name));
        run(&[&["check", "-c", &config, "--openapi", &spec], flags].concat())
    };
    let all = with("more.yaml", &["--methods", "post,put,patch,delete"]);
    assert!(all.code == 1 && all.err.contains("no route guards 2 of 4"), "{}", all.err);
    assert!(all.out.contains("UNGUARDED   PUT     /v1/payments/{id}   items has the path, but not PUT\n"));
    let allowed = with("more.yaml", &["--allow", "POST /v1/refunds/{id}/x"]);
    assert_eq!(allowed.code, 0, "{}", allowed.err);
    assert!(allowed.out.contains("allowed     POST    /v1/refunds/{id}/x\n"), "{}", allowed.out);
    assert_eq!(with("more.yaml", &["--allow", "PATCH /v1/refunds/{id}/x"]).code, 1, "another method");
    let decided = with("decided.yaml", &[]);
    assert_eq!(decided.code, 0, "{}", decided.err);
    assert!(decided.out.contains("allowed     POST    /v1/search"), "{}", decided.out);
    assert!(decided.out.contains("off         POST    /v1/reports   reports has mode = \"off\"\n"), "{}", decided.out);
    for (flags, why) in [
        (&["--allow", "POST"][..], "write a method and a path"),
        (&["--allow", "GET /a"], "the methods are"),
        (&["--methods", "GET"], "the methods are"),
    ] {
        let refused = with("more.yaml", flags);
        assert!(refused.code == 2 && refused.err.contains(why), "{flags:?}: {}", refused.err);
    }
    let misspelt = with("misspelt.yaml", &[]);
    assert!(misspelt.code == 1 && misspelt.err.contains("the only value is `ignore`"), "{}", misspelt.err);

    for (name, why) in [("broken.yaml", "neither JSON nor YAML"), ("other.yaml", "Swagger"), ("none", "cannot be read")]
    {
        let refused = check(name);
        assert_eq!(refused.code, 1, "{name}");
        assert!(refused.err.contains(why), "{name}: {}", refused.err);
    }
}

/// Two services, in the file of the gate and in that of a team. The secrets are not there.
const FLEET: &str = "include = 'teams/*.toml'\nsecret = '${file:/run/secrets/not-here}'\nadmin = { token = '${NOT_HERE}' }\n\
                     policy.ttl_min = '1h'\n";
const TEAM: &str = "[[services]]\nname = 'orders'\nhost = 'orders.example'\nupstream = 'http://o:1'\n[[services]]\nname = 'bills'\n\
                    host = 'bills.example'\nupstream = 'http://b:1'\n[[routes]]\nname = 'pay'\nservice = 'orders'\npath = '/pay'\n\
                    set_headers = { X-Key = '${KEY_NOT_HERE}' }\n[[routes]]\nname = 'bill'\nservice = 'bills'\npath = '/bill'\n";

/// Such a file, beside its team's.
fn fleet(folder: &Folder, name: &str, team: &str) -> String {
    std::fs::create_dir_all(folder.path(&format!("{name}/teams"))).unwrap();
    std::fs::write(folder.path(&format!("{name}/oncegate.toml")), FLEET).unwrap();
    std::fs::write(folder.path(&format!("{name}/teams/all.toml")), team).unwrap();
    folder.at(&format!("{name}/oncegate.toml"))
}

#[test]
fn diff_tells_harmless_changes_from_those_that_lose_a_guard_or_keys() {
    let folder = Folder::with(&[("wrong.toml", "upstream = 1\n")]);
    let old = fleet(&folder, "old", TEAM);
    let route = "[[routes]]\nname = 'more'\nservice = 'bills'\npath = '/more'\n";
    let service = "[[services]]\nname = 'mail'\nhost = 'mail.example'\nupstream = 'http://m:1'\n";
    let pay = |line: &str| TEAM.replace("path = '/pay'\n", &format!("path = '/pay'\n{line}\n"));
    let bills = "[[services]]\nname = 'bills'\nhost = 'bills.example'\nupstream = 'http://b:1'\n";
    let bill = "[[routes]]\nname = 'bill'\nservice = 'bills'\npath = '/bill'\n";
    let of_orders = TEAM.replace(bills, "").replace(bill, "");
    for (new, code, text, list) in [
        (of_orders, 3, "service    bills: is gone, and its requests get 421", "services"),
        (TEAM.to_owned(), 0, "no request is treated otherwise", ""),
        (format!("{TEAM}# a comment"), 0, "no request is treated otherwise", ""),
        (pay("ttl = '2h'"), 3, "otherwise  pay: ttl: 1d", "answered_otherwise"),
        (format!("{TEAM}{route}"), 3, "new route  more: POST PATCH bills.example/more", "new_routes"),
        (format!("{service}{TEAM}"), 3, "service    mail: is new", "services"),
        (
            TEAM.replace("http://b:1", "http://b:2"),
            3,
            "service    bills: its upstream is http://b:2, and was http://b:1",
            "services",
        ),
        (TEAM.replace("'bills.example'", "['bills.example', 'b']"), 3, "service    bills: its hosts are", "services"),
        (pay("mode = 'observe'"), 4, "unguarded  route `pay`: POST orders.example/pay", "unguarded"),
        (TEAM.replace("'/bill'", "'/v1/bill'"), 4, "unguarded  route `bill`: POST bills.example/bill", "unguarded"),
        (pay("scope = ['none']"), 4, "not found  route `pay`: POST orders.example/pay", "found_otherwise"),
        (
            TEAM.replace("name = 'orders'", "name = 'shop'").replace("'orders'\n", "'shop'\n"),
            4,
            "service: orders -> shop",
            "found_otherwise",
        ),
    ] {
        let new = fleet(&folder, "new", &new);
        let told = run(&["diff", &old, &new]);
        assert_eq!((told.code, told.out.contains(text)), (code, true), "{text}: {}{}", told.out, told.err);
        let json = run(&["diff", "--json", &old, &new]);
        let json: Value = serde_json::from_str(&json.out).unwrap_or_else(|_| panic!("{}{}", json.out, json.err));
        assert_eq!(json["dangerous"], code == 4, "{text}: {json}");
        let is_named = |name: &str| !json[name].as_array().unwrap().is_empty();
        assert!(list.is_empty() || is_named(list), "{text}: {json}");
        assert_eq!(is_named("unguarded") || is_named("found_otherwise"), code == 4, "{text}: {json}");
    }
    let weaker = fleet(&folder, "new", TEAM);
    std::fs::write(&weaker, FLEET.replace("'1h'", "'1m'")).unwrap();
    let told = run(&["diff", &old, &weaker]);
    assert_eq!((told.code, &*told.out), (3, "option     policy.ttl_min\n"), "{}", told.err);
    for (arguments, code) in
        [(&[&*old][..], 2), (&[&*old, &*old, "--connect"], 2), (&[], 2), (&[&*old, &*folder.at("wrong.toml")], 78)]
    {
        assert_eq!(run(&[&["diff"], arguments].concat()).code, code, "{arguments:?}");
    }
}

#[test]
fn diff_compares_with_what_the_instances_have_loaded_last() {
    let service = Service::start();
    let mut instance = Instance::start(service.address);
    instance.signal();
    instance.process.wait().unwrap();
    let store = format!("sqlite:{}", instance._folder.at("oncegate.db"));
    let file =
        |lines: &str| format!("upstream = 'http://{}'\nstore.url = '{store}'\n[defaults]\n{lines}\n", service.address);
    let folder = Folder::with(&[("same.toml", &file("ttl = '2h'")), ("other.toml", &file("space = 'service'"))]);
    for (name, code, words) in
        [("same.toml", 0, "no request"), ("other.toml", 4, "not found  route `default`: POST /{*rest}")]
    {
        let told = run(&["diff", "--connect", &folder.at(name)]);
        assert_eq!((told.code, told.out.contains(words)), (code, true), "{name}: {}{}", told.out, told.err);
    }
}

#[test]
fn check_needs_no_secrets_where_it_is_told_so_and_takes_several_files() {
    let folder = Folder::with(&[("good.toml", CONFIG), ("bad.toml", "upstream = 'http://a'\nlistem = 'x'\n")]);
    let (whole, wrong) = (fleet(&folder, "whole", TEAM), fleet(&folder, "wrong", &TEAM.replace("'/bill'", "'bill'")));
    let lacking = run(&["check", "-c", &whole]);
    assert_eq!(lacking.code, 78);
    assert!(["not-here", "NOT_HERE", "KEY_NOT_HERE"].iter().all(|name| lacking.err.contains(name)), "{}", lacking.err);
    assert_eq!(run(&["check", "--no-secrets", "-c", &whole]).code, 0);
    // What is wrong stays wrong, and each file has its problems.
    let wrong = run(&["check", "--no-secrets", &whole, &wrong, &folder.at("good.toml"), &folder.at("bad.toml")]);
    assert_eq!(wrong.code, 78, "{}", wrong.err);
    for part in ["wrong/teams/all.toml:17:8: routes[1].path", "bad.toml:2:1: listem"] {
        assert!(wrong.err.contains(part), "{part}: {}", wrong.err);
    }
    assert!(!wrong.err.contains("not-here"), "{}", wrong.err);
    assert_eq!(wrong.out.matches("\nroute ").count(), 2 + 3, "those that are right are described: {}", wrong.out);
    assert_eq!(run(&["check", "--no-secrets", "--connect", "-c", &whole]).code, 2);
    assert_eq!(run(&["check", &whole, "-c", &whole]).code, 2);

    let short = run(&["check", "--no-secrets", "--short", "-c", &whole]).out;
    let lines: Vec<Vec<_>> = short.lines().map(|line| line.split_whitespace().take(5).collect()).collect();
    let line = |service, route, requests| vec![service, route, "POST", "PATCH", requests];
    assert_eq!(lines, [line("orders", "pay", "orders.example/pay"), line("bills", "bill", "bills.example/bill")]);
    let json = run(&["check", "--no-secrets", "--json", "-c", &whole]).out;
    let json: Value = serde_json::from_str(&json).unwrap_or_else(|_| panic!("{json}"));
    assert_eq!(
        json["services"][1],
        serde_json::json!({ "name": "bills", "hosts": ["bills.example"], "upstream": "http://b:1" })
    );
    let route = &json["routes"][0];
    assert_eq!(
        (&route["name"], &route["service"], &route["settings"]["ttl"]),
        (&"pay".into(), &"orders".into(), &"1d, then forgotten".into())
    );
    assert_eq!(run(&["check", "--json", "--short", "-c", &whole]).code, 2);
}

#[test]
fn the_operations_of_a_baseline_may_only_become_fewer() {
    let spec = "openapi: 3.1.0\npaths:\n  /v1/payments: {post: {}}\n  /old: {post: {}}\n";
    let more = format!("{spec}  /new: {{post: {{}}}}\n");
    let folder = Folder::with(&[("c.toml", CONFIG), ("api.yaml", spec), ("more.yaml", &more)]);
    let check = |spec: &str, baseline: &str| {
        std::fs::write(folder.path("baseline"), baseline).unwrap();
        let files = ["c.toml", spec, "baseline"].map(|name| folder.at(name));
        run(&["check", "-c", &files[0], "--openapi", &files[1], "--baseline", &files[2]])
    };
    for (spec, baseline, code, words) in [
        ("api.yaml", "# what is left\nPOST /old   # until May\n\n", 0, "known       POST    /old"),
        ("api.yaml", "", 1, "UNGUARDED   POST    /old"),
        ("more.yaml", "POST /old\n", 1, "UNGUARDED   POST    /new"),
        ("more.yaml", "POST /old\nPOST /new\n", 0, "known       POST    /new"),
        // It has a route by now, or is gone.
        ("api.yaml", "POST /old\nPOST /v1/payments\n", 1, "MENDED      POST    /v1/payments"),
        ("api.yaml", "POST /old\nPOST /gone\n", 1, "MENDED      POST    /gone"),
        ("api.yaml", "POST /old\nPOST\n", 1, ""),
    ] {
        let told = check(spec, baseline);
        assert_eq!((told.code, told.out.contains(words)), (code, true), "{baseline}: {}{}", told.out, told.err);
    }
    assert!(check("api.yaml", "POST /old\nPOST\n").err.contains("baseline:2: `POST`"));
    // Where there are several services, one must be named.
    let whole = fleet(&folder, "whole", TEAM);
    let of_fleet = |flags: &[&str]| {
        run(&[&["check", "--no-secrets", "-c", &whole, "--openapi", &folder.at("api.yaml")], flags].concat())
    };
    let unnamed = of_fleet(&[]);
    assert!(unnamed.code == 2 && unnamed.err.contains("`orders`, `bills`"), "{}", unnamed.err);
    let named = of_fleet(&["--service", "bills"]);
    assert!(named.code == 1 && named.err.contains("no route guards 2 of 2"), "{}", named.err);
}

#[test]
fn healthcheck_reports_whether_the_instance_is_ready() {
    let service = Service::start();
    let instance = Instance::start(service.address);
    let healthy = ended(instance.against(&["healthcheck"]).output().unwrap());
    assert_eq!((healthy.code, &*healthy.out), (0, "ready\n"), "{}", healthy.err);

    // The address is read from the file too, which may lack the secrets that only a running instance needs.
    let text = format!("secret = '${{NOT_SET}}'\n[admin]\nlisten = '{}'\n", instance.admin);
    let folder = Folder::with(&[("c.toml", &text)]);
    assert_eq!(run(&["healthcheck", "-c", &folder.at("c.toml")]).code, 0);

    let admin = instance.admin.to_string();
    drop(instance);
    let gone = run(&["healthcheck", "--admin", &admin]);
    assert_eq!((gone.code, &*gone.out), (1, ""));
    assert!(gone.err.contains(&admin) && gone.err.contains("nobody listens"), "{}", gone.err);
    assert_eq!(run(&["drain", "--admin", &admin]).code, 1);
    assert_eq!(run(&["healthcheck", "--admin", "nowhere"]).code, 78);
}

#[test]
fn drain_lets_a_running_request_finish() {
    let service = Service::start();
    let instance = Instance::start(service.address);
    let address = instance.address;
    let paying = thread::spawn(move || {
        send(address, "POST", "/v1/payments", "Authorization: Bearer a\r\nIdempotency-Key: one\r\n")
    });
    assert_eq!(service.seen.recv_timeout(TEST_TIMEOUT).unwrap(), "POST /v1/payments HTTP/1.1");

    let draining = instance.against(&["drain", "--wait", "60s"]).stdout(Stdio::piped()).spawn().unwrap();
    assert_eq!(instance.logged("draining")["by"], "the admin listener");
    let health = ended(instance.against(&["healthcheck"]).output().unwrap());
    assert_eq!(health.code, 1);
    assert!(health.err.contains("draining"), "{}", health.err);
    let hasty = ended(instance.against(&["drain", "--wait", "0s"]).output().unwrap());
    assert_eq!(hasty.code, 1);
    assert!(hasty.err.contains("still draining; attempts running: 1"), "{}", hasty.err);
    // The signal that a supervisor sends after its hook: it cuts nothing short.
    instance.signal();

    service.proceed.send(()).unwrap();
    let paid = paying.join().unwrap();
    assert_eq!((paid.status, &*paid.body), (201, "paid"));
    assert!(paid.head.contains("oncegate-status: executed"), "{}", paid.head);
    let drained = ended(draining.wait_with_output().unwrap());
    assert_eq!((drained.code, &*drained.out), (0, "drained\n"));
    assert!(instance.ended().success());
}

#[test]
fn an_idle_instance_drains_at_once() {
    let instance = Instance::start("127.0.0.1:1".parse().unwrap());
    let drained = ended(instance.against(&["drain"]).output().unwrap());
    assert_eq!((drained.code, &*drained.out), (0, "drained\n"), "{}", drained.err);
    assert!(instance.ended().success());
}

#[test]
fn a_second_signal_still_ends_at_once() {
    let service = Service::start();
    let instance = Instance::start(service.address);
    let address = instance.address;
    // The process exit cuts this request off; its result does not matter.
    thread::spawn(move || {
        let mut stream = TcpStream::connect(address).unwrap();
        write!(
            stream,
            "POST / HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer a\r\nIdempotency-Key: one\r\nContent-Length: 0\r\n\r\n"
        )
        .unwrap();
        let _ = stream.read_to_end(&mut Vec::new());
    });
    service.seen.recv_timeout(TEST_TIMEOUT).unwrap();
    instance.signal();
    assert_eq!(instance.logged("draining")["by"], "a signal");
    instance.signal();
    assert_eq!(instance.logged("stopped at once by a second signal")["attempts"], 1);
    assert!(instance.ended().success());
}

#[test]
fn other_sites_cannot_reach_the_admin_listener_through_a_browser() {
    let instance = Instance::start("127.0.0.1:1".parse().unwrap());
    let (admin, port) = (instance.admin, instance.admin.port());
    let token = format!("Authorization: Bearer {ADMIN_TOKEN}\r\n");
    for fields in [
        "Host: evil.example\r\n".to_owned(),
        format!("Host: evil.example:{port}\r\n"),
        "Host: localhost\r\n".to_owned(),
        "Origin: https://evil.example\r\n".to_owned(),
        "Origin: null\r\n".to_owned(),
    ] {
        for (method, path) in [("POST", "/api/v1/drain"), ("GET", "/api/v1/drain"), ("GET", "/other")] {
            assert_eq!(send(admin, method, path, &format!("{fields}{token}")).status, 403, "{method} {path} {fields}");
        }
        // Orchestrators probe under any host name.
        assert_eq!(send(admin, "GET", "/readyz", &fields).status, 200, "{fields}");
    }
    for host in ["localhost", "127.0.0.1", "[::1]"] {
        let state = send(admin, "GET", "/api/v1/drain", &format!("Host: {host}:{port}\r\n{token}"));
        assert_eq!(state.status, 200, "{host}");
        assert!(state.body.contains(r#""state":"serving""#), "{}", state.body);
    }
    let refused = send(admin, "DELETE", "/api/v1/drain", &token);
    assert!(refused.status == 405 && refused.head.contains("allow: get, post"), "{}", refused.head);
    assert_eq!(send(admin, "POST", "/healthz", "").status, 405);
    assert_eq!(send(admin, "HEAD", "/healthz", "").status, 200);
    assert_eq!(send(admin, "GET", "/other", &token).status, 404);
}

#[test]
fn problem_pages_come_from_the_proxy_and_never_from_the_service() {
    let service = Service::start();
    let instance = Instance::start(service.address);
    let problem = send(instance.address, "POST", "/v1/payments", "Authorization: Bearer a\r\nIdempotency-Key: a,b\r\n");
    assert_eq!(problem.status, 400);
    let document: Value = serde_json::from_str(&problem.body).unwrap();
    let kind = document["type"].as_str().unwrap();
    assert_eq!(kind, "/.oncegate/problems/key-invalid");

    let page = send(instance.address, "GET", kind, "");
    assert_eq!(page.status, 200);
    for said in ["content-type: text/html", "content-security-policy: default-src 'none'", "nosniff"] {
        assert!(page.head.contains(said), "{said}: {}", page.head);
    }
    assert!(page.body.contains(document["title"].as_str().unwrap()), "{}", page.body);
    assert!(!page.head.contains("oncegate-status"), "{}", page.head);
    assert!(send(instance.address, "GET", "/.oncegate/problems/", "").body.contains("key-invalid"));
    assert_eq!(send(instance.address, "HEAD", kind, "").body, "");
    for (method, path, status) in [
        ("GET", "/.oncegate/problems/none", 404),
        ("GET", "/.oncegate/", 404),
        ("GET", "/%2Eoncegate/x", 404),
        ("POST", "/.oncegate/x", 404),
        ("POST", kind, 405),
    ] {
        let answer = send(instance.address, method, path, "Authorization: Bearer a\r\nIdempotency-Key: one\r\n");
        assert_eq!(answer.status, status, "{method} {path}");
    }

    service.proceed.send(()).unwrap();
    assert_eq!(send(instance.address, "GET", "/oncegate", "").status, 201);
    assert_eq!(
        service.seen.recv_timeout(TEST_TIMEOUT).unwrap(),
        "GET /oncegate HTTP/1.1",
        "the first that the service sees"
    );
}

#[test]
fn a_served_demo_answers_the_commands_that_it_prints_and_ends_with_a_signal() {
    // It takes free ports where others have its own.
    let taken = ["127.0.0.1:3000", "127.0.0.1:8080", "127.0.0.1:8081"].map(TcpListener::bind);
    let mut demo = Command::new(env!("CARGO_BIN_EXE_oncegate"))
        .args(["demo", "--serve"])
        .env("ONCEGATE_LISTEN", "0.0.0.0:8080")
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(demo.stdout.take().unwrap()).lines().map(Result::unwrap);
    let mut said = lines.by_ref().take_while(|line| !line.contains("A service that charges and dies"));
    let (mut proxy, mut admin) = (String::new(), String::new());
    for line in said.by_ref() {
        let address = |before: &str| Some(line.split_once(before)?.1.split(['/', ' ', '`']).next()?.to_owned());
        proxy = address("Oncegate listens on http://").unwrap_or(proxy);
        admin = address("`oncegate keys list --admin ").unwrap_or(admin);
    }
    let pay = |key: &str, body: &str| {
        let field = format!("Idempotency-Key: {key}");
        let arguments =
            ["-sS", &format!("http://{proxy}/v1/payments"), "-H", &field, "-H", "Authorization: Bearer alice", "-i"];
        let json = ["-H", "Content-Type: application/json", "-d", body];
        let output = Command::new("curl").args(arguments).args(json).output().expect("curl is installed");
        String::from_utf8(output.stdout).unwrap()
    };
    for status in ["executed", "replayed"] {
        let answer = pay("order-1001", r#"{"amount": 1000}"#);
        assert!(answer.contains("201 Created") && answer.contains(&format!("oncegate-status: {status}")), "{answer}");
    }
    let lost = pay("order-1002", r#"{"amount": 1000, "then": "die"}"#);
    assert!(lost.contains("502 Bad Gateway"), "{lost}");
    let keys = run(&["keys", "list", "--admin", &admin, "--state", "unknown"]);
    assert!(keys.code == 0 && keys.out.contains("order-1002"), "{} {}", keys.out, keys.err);
    let id = rustix::process::Pid::from_child(&demo);
    rustix::process::kill_process(id, rustix::process::Signal::TERM).unwrap();
    let mut log = String::new();
    demo.stderr.take().unwrap().read_to_string(&mut log).unwrap();
    assert!(log.lines().next().unwrap_or_default().contains("ready"), "no warning comes first: {log}");
    drop(taken);
    assert!(log.contains("draining") && !log.contains("second signal"), "{log}");
    assert_eq!(demo.wait().unwrap().code(), Some(0));
}
