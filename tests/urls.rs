//! URLs with credentials, from a shell: no command prints a piece of them, and `check` reads them as `run` does.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::thread;
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longer than any step here takes on a slow machine.
const TEST_TIMEOUT: Duration = Duration::from_secs(30);

/// The words that are in no output: a user, a password, and values in a path and a query.
const CANARIES: [&str; 4] = ["canaryuser", "canarypass", "canarypath", "canaryquery"];

const UPSTREAM: &str = "http://127.0.0.1:1";

/// An option whose value is a URL: its name, its schemes, and the file's lines with the URL in it.
type UrlOption = (&'static str, &'static [&'static str], fn(&str) -> String);

const OPTIONS: &[UrlOption] = &[
    ("store.url", &["postgres", "postgresql+asyncpg", "jdbc:postgresql", "mysql"], |url| {
        format!("{}[store]\nurl = '''{url}'''\n", top(UPSTREAM))
    }),
    ("cache.redis", &["redis", "rediss", "valkey"], |url| format!("{}[cache]\nredis = '''{url}'''\n", top(UPSTREAM))),
    ("consumers.amqp", &["amqp", "amqps", "stomp"], |url| {
        format!(
            "{}{PAY}[[consumers]]\namqp = '''{url}'''\nqueue = 'q'\nroute = 'pay'\nscope = ['none']\n",
            top(UPSTREAM)
        )
    }),
    ("upstream", &["http", "https", "h2c", "ftp"], |url| top(url)),
    ("services.upstream", &["http", "https"], |url| {
        format!("{}[[services]]\nname = 's'\nhost = 'h'\nupstream = '''{url}'''\n{PAY}", top(UPSTREAM))
    }),
    ("telemetry.otlp", &["http", "https", "grpc"], |url| format!("{}[telemetry]\notlp = '''{url}'''\n", top(UPSTREAM))),
    ("jwt.jwks", &["http", "https", "ftp"], |url| {
        format!("{}[jwt]\nissuer = 'https://a'\naudience = 'b'\njwks = '''{url}'''\n", top(UPSTREAM))
    }),
    ("replay.authorize", &["http", "https"], |url| {
        format!("{}{PAY}replay = {{ authorize = '''{url}''' }}\n", top(UPSTREAM))
    }),
    ("reconcile.url", &["http", "https"], |url| {
        let id = if url.contains('?') { "&id={id}" } else { "?id={id}" };
        format!("{}{PAY}reconcile = {{ url = '''{url}{id}''' }}\n", top(UPSTREAM))
    }),
];

const PAY: &str = "[[routes]]\nname = 'pay'\npath = '/pay'\nmethods = ['POST']\n";

fn top(upstream: &str) -> String {
    format!("listen = '127.0.0.1:0'\nadmin = {{ listen = '127.0.0.1:0', open = true }}\nupstream = '''{upstream}'''\n")
}

/// URLs with the canaries, right and wrong ones, behind `scheme:`.
const FORMS: &[&str] = &[
    "//canaryuser:canarypass@127.0.0.1:1",
    "//canaryuser:canarypass@127.0.0.1:1/0",
    "//canaryuser:canarypass@127.0.0.1:x/0",
    "//canaryuser:canarypass@",
    "//canaryuser:canarypass",
    "//canaryuser:12:canarypass/0",
    "//canaryuser:pre@canarypass@127.0.0.1:1/0",
    "//canaryuser:pre/canarypass@127.0.0.1:1/0",
    "//canaryuser:12/canarypass@127.0.0.1:1/0",
    "//someuser:12/canarypass/0",
    "//canaryuser:pre?canarypass@127.0.0.1:1/0",
    "//canaryuser:12?canarypass@127.0.0.1:1/0",
    "//canaryuser:12?x=canarypass@127.0.0.1:1/0",
    "//canaryuser:pre#canarypass@127.0.0.1:1/0",
    "//canaryuser:pre:canarypass@127.0.0.1:1/0",
    "//canaryuser:canarypass%@127.0.0.1:1/0",
    "//canaryuser:canarypass%zz@127.0.0.1:1/0",
    "//canaryuser:canary\u{e9}canarypass@127.0.0.1:1/0",
    "//canaryuser:canarypass@127.0.0.1:1/0\n",
    "//canaryuser:canarypass @127.0.0.1:1/0",
    "//127.0.0.1:1/0?user=canaryuser&password=canarypass",
    "//127.0.0.1:1/0?password=canary@canarypass",
    "//127.0.0.1:1/0?canaryquery=canaryquery",
    "//127.0.0.1:1/0?canaryquery",
    "//127.0.0.1:1/canarypath/canarypath?token=canaryquery",
    "//127.0.0.1:1/0?sslmode=canaryquery",
    "//127.0.0.1:1/0?sslrootcert=canaryquery&sslmode=verify-ca",
    "//127.0.0.1:1/0?options=canaryquery&application_name=canaryquery",
    "//127.0.0.1:1/0#canaryquery",
    "canaryuser:canarypass@127.0.0.1:1/0",
    "/canaryuser:canarypass@127.0.0.1:1/0",
    "///canaryuser:canarypass@127.0.0.1:1/0",
];

fn oncegate(arguments: &[&str], folder: &Path) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_oncegate"));
    command.args(arguments).stdin(Stdio::null()).current_dir(folder);
    for variable in ["CONFIG", "LISTEN", "UPSTREAM", "STORE_URL", "ADMIN_LISTEN", "ADMIN_TOKEN", "LOG", "SECRET"] {
        command.env_remove(format!("ONCEGATE_{variable}"));
    }
    command
}

/// The exit code, and both outputs.
fn run(mut command: Command) -> (i32, String) {
    let output = command.output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    (output.status.code().expect("no signal ended it"), text)
}

fn shows_no_canary(text: &str, of: &str) {
    for canary in CANARIES {
        assert!(!text.contains(canary), "{canary} is in the output of {of}:\n{text}");
    }
    // Nor the ends that a wrong reader of the URL may cut off.
    for piece in ["aryuser", "arypass", "aryquery"] {
        assert!(!text.contains(piece), "{piece} is in the output of {of}:\n{text}");
    }
}

#[test]
fn no_message_about_a_url_has_a_piece_of_it_and_check_and_run_refuse_the_same() {
    let counts: Vec<_> = thread::scope(|scope| {
        let threads: Vec<_> = OPTIONS.iter().map(|option| scope.spawn(|| check_and_run(option))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let refused: usize = counts.iter().map(|(refused, _)| refused).sum();
    let accepted: usize = counts.iter().map(|(_, accepted)| accepted).sum();
    assert!(refused > 300 && accepted > 50, "{refused} are refused, and {accepted} accepted");
}

/// Tries all URLs of an option. Returns the numbers of those that are refused and accepted.
fn check_and_run((name, schemes, lines): &UrlOption) -> (usize, usize) {
    let folder = TempDir::new().unwrap();
    let file = folder.path().join("oncegate.toml");
    let (mut refused, mut accepted) = (0, 0);
    let urls = schemes.iter().flat_map(|scheme| FORMS.iter().map(move |form| format!("{scheme}:{form}")));
    for url in urls.chain(FORMS.iter().map(|form| form.trim_start_matches('/').to_owned())) {
        // The names in its query are shown, as the parameters beside them are what a reader checks.
        let url = if *name == "reconcile.url" { url.replace("canaryquery=", "x=") } else { url };
        std::fs::write(&file, lines(&url)).unwrap();
        let (code, checked) = run(oncegate(&["check", "-c", "oncegate.toml"], folder.path()));
        shows_no_canary(&checked, &format!("check with {name} = {url:?}"));
        match code {
            0 => accepted += 1,
            78 => {
                refused += 1;
                assert!(checked.contains(name.rsplit('.').next().unwrap()), "{url:?}: {checked}");
                let (code, ran) = run(oncegate(&["run", "-c", "oncegate.toml"], folder.path()));
                assert_eq!((code, ran), (78, checked), "{name} = {url:?}");
            }
            other => panic!("check exits with {other} for {name} = {url:?}: {checked}"),
        }
    }
    (refused, accepted)
}

#[test]
fn flags_and_variables_are_not_shown_either() {
    let folder = TempDir::new().unwrap();
    for form in FORMS {
        for (scheme, flag, variable) in
            [("postgres", "--store", "ONCEGATE_STORE_URL"), ("http", "--upstream", "ONCEGATE_UPSTREAM")]
        {
            let url = format!("{scheme}:{form}");
            let common = ["run", "--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"];
            let other: &[&str] = if scheme == "http" { &["--store", "memory:"] } else { &["--upstream", UPSTREAM] };
            let mut by_flag = oncegate(&common, folder.path());
            by_flag.args(other).args([flag, &url]);
            let mut by_variable = oncegate(&common, folder.path());
            by_variable.args(other).env(variable, &url);
            for command in [by_flag, by_variable] {
                shows_no_canary(&run_for_a_moment(command), &format!("{flag} {url:?}"));
            }
        }
        let (code, probed) = run(oncegate(&["probe", "--yes", &format!("http:{form}")], folder.path()));
        // The report is about an operation, which the path names.
        assert!(code != 0);
        shows_no_canary(&probed.replace("canarypath", ""), &format!("probe http:{form}"));
    }
}

/// The output of a process until it ends, is ready, or waits for its store.
fn run_for_a_moment(mut command: Command) -> String {
    let mut process = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let lines = process.lines();
    let (mut output, deadline) = (String::new(), Instant::now() + TEST_TIMEOUT);
    while let Ok(line) = lines.recv_timeout(deadline.saturating_duration_since(Instant::now())) {
        output.push_str(&line);
        output.push('\n');
        if line.contains("ready") || line.contains("the store cannot be reached") {
            break;
        }
    }
    output
}

/// A process that is killed when its test ends.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Running {
    /// The lines of both outputs.
    fn lines(&mut self) -> Receiver<String> {
        let (sender, lines) = channel();
        let outputs: [Box<dyn Read + Send>; 2] =
            [Box::new(self.0.stdout.take().unwrap()), Box::new(self.0.stderr.take().unwrap())];
        for output in outputs {
            let sender = sender.clone();
            thread::spawn(move || {
                BufReader::new(output).lines().map_while(Result::ok).try_for_each(|line| sender.send(line))
            });
        }
        lines
    }
}

#[test]
fn a_running_proxy_shows_no_credentials_in_its_log_its_api_and_its_pages() {
    let folder = TempDir::new().unwrap();
    // Nothing listens there.
    let unused = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let text = format!(
        "{}secret = 'a secret of these tests'\n[telemetry]\nlog = 'trace'\notlp = 'http://{unused}/canarypath'\n\
         [store]\nurl = 'memory:'\n[cache]\nredis = 'redis://canaryuser:canarypass@{unused}/1'\n\
         [jwt]\nissuer = 'https://a'\naudience = 'b'\njwks = 'http://{unused}/canarypath?token=canaryquery'\n\
         {PAY}scope = ['jwt:sub']\n\
         replay = {{ authorize = 'http://{unused}/canarypath?token=canaryquery' }}\n\
         reconcile = {{ url = 'http://{unused}/canarypath?token=canaryquery&id={{id}}' }}\n\
         [[consumers]]\namqp = 'amqp://canaryuser:canarypass@{unused}/v'\nqueue = 'q'\nroute = 'pay'\nscope = ['none']\n",
        top(&format!("http://{unused}"))
    );
    let file = folder.path().join("oncegate.toml");
    std::fs::write(&file, text).unwrap();
    let mut command = oncegate(&["run", "-c", "oncegate.toml"], folder.path());
    let mut process = Running(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let lines = process.lines();
    let (mut output, mut admin) = (String::new(), None);
    let mut wanted = vec!["the shared cache is away", "broker", "ready", "issuer"];
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !wanted.is_empty() {
        let line = lines.recv_timeout(deadline.saturating_duration_since(Instant::now()));
        let line = line.unwrap_or_else(|_| panic!("{wanted:?} are not logged:\n{output}"));
        output.push_str(&line);
        output.push('\n');
        wanted.retain(|words| !line.contains(words));
        let found = line.split_once("\"admin\":\"").or_else(|| line.split_once("admin=")).map(|(_, rest)| rest);
        admin = admin.or(found.and_then(|rest| rest.split(['"', ' ']).next()?.parse::<SocketAddr>().ok()));
    }
    shows_no_canary(&output, "the log");
    for path in ["/readyz", "/metrics", "/", "/routes", "/instances", "/api/v1/stats", "/api/v1/keys"] {
        let mut stream = TcpStream::connect(admin.unwrap()).unwrap();
        let host = admin.unwrap();
        write!(stream, "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200") || answer.starts_with("HTTP/1.1 503"), "{path}: {answer}");
        shows_no_canary(&answer, path);
    }
}
