//! `oncegate init`: writes a first configuration from what its user knows about the service.
//!
//! What the command line does not say is asked, if a person sits at the terminal. The configuration's own reader checks
//! the file.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{IsTerminal, stdin, stdout};
use std::num::NonZeroU16;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf, absolute};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::{Args, ValueEnum};
use http::Method;

use self::uses::{PlannedUse, Use, parse_use};
use super::{CommandError, UNIT_FILE, create, failed, is_absent, openapi, print};
use oncegate_config::{self as config, Overrides, ProcessEnvironment};
use oncegate_domain::quantity::quantity;
use oncegate_machine::fill_random;
use oncegate_settings::{StoreLocation, UpstreamTarget, Vendor, WebhookSender};

mod uses;

/// The JSON Schema of the file that is written, beside it.
const SCHEMA_FILE: &str = "oncegate.schema.json";

/// The state directory of the packaged unit, which can write nowhere else.
const UNIT_STATE: &str = "/var/lib/oncegate";

/// Runs a command as the unit's user. Not `runuser`, which kills its command two seconds after it was asked to end: a
/// drain takes longer.
pub(super) const AS_UNIT: &str = "setpriv --reuid oncegate --regid oncegate --init-groups";

/// So that root's commands and the unit have one token, whatever the store is.
const UNIT_ADMIN: &str = "\n[admin]\ntoken_file = \"/var/lib/oncegate/admin-token\"   # the first start draws it; `sudo oncegate keys` reads it\n";

#[derive(Args)]
pub(super) struct InitArguments {
    /// The service's URL: http://, https://, h2c:// (gRPC) or unix:, or a port of this machine
    #[arg(long, value_name = "URL")]
    upstream: Option<String>,
    /// What the service's routes do; may be repeated. USE=PATH names a path other than the usual one
    ///
    /// The uses are payments, orders, uploads, model-api, webhooks, egress, graphql, grpc and mcp; webhooks:SENDER,
    /// such as webhooks:slack, are those of one sender, and egress:VENDOR, such as egress:stripe, calls to one vendor.
    #[arg(long = "for", value_name = "USE[=PATH]", value_delimiter = ',', value_parser = parse_use)]
    uses: Vec<PlannedUse>,
    /// What says who a request's caller is [default: api-key]
    #[arg(long, value_enum)]
    callers: Option<Callers>,
    /// The issuer of the callers' tokens, for --callers jwt
    #[arg(long, value_name = "URL")]
    issuer: Option<String>,
    /// The audience that the callers' tokens name, for --callers jwt
    #[arg(long, value_name = "NAME")]
    audience: Option<String>,
    /// The place of keys: sqlite:FILE for one instance, postgres://… for any number [default: sqlite:oncegate.db; with
    /// --unit in /var/lib/oncegate]
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// An OpenAPI document (3.0 or 3.1): each POST and PATCH operation gets a route of the first --for
    #[arg(long, value_name = "SPEC")]
    openapi: Option<PathBuf>,
    /// The file to write; an existing one is never changed
    #[arg(short, long, value_name = "FILE", default_value = super::DEFAULT_FILE)]
    output: PathBuf,
    /// Writes /etc/oncegate/oncegate.toml for the unit of the Debian package, whose user may read it
    #[arg(long, conflicts_with = "output")]
    unit: bool,
}

/// What says who a caller is.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Callers {
    /// An API key or a token that stays the same, in Authorization or X-Api-Key
    ApiKey,
    /// A token that is refreshed (JWT); needs --issuer and --audience
    Jwt,
    /// Nothing: there is one caller
    One,
}

/// A port alone is one of this machine.
fn parse_upstream(text: &str) -> Result<String, String> {
    let text = text.parse::<NonZeroU16>().map_or(text.to_owned(), |port| format!("http://127.0.0.1:{port}"));
    unless_wrong(&text, UpstreamTarget::parse(&text))
}

fn parse_store(text: &str) -> Result<String, String> {
    unless_wrong(text, StoreLocation::parse(text))
}

/// The text as it is, unless it has a problem. One with a reference, such as `${PASSWORD}`, is not whole yet.
fn unless_wrong<T>(text: &str, parsed: Result<T, String>) -> Result<String, String> {
    match parsed {
        Err(problem) if !text.contains("${") => Err(problem),
        _ => Ok(text.to_owned()),
    }
}

fn parse_callers(text: &str) -> Result<Callers, String> {
    Callers::from_str(text, true).map_err(|_| format!("`{text}` is none of api-key, jwt, one"))
}

pub(super) fn run(mut arguments: InitArguments) -> Result<(), CommandError> {
    if arguments.unit {
        arguments.choose_unit_file()?;
    }
    if !is_absent(&arguments.output) {
        let file = arguments.output.display();
        return Err(CommandError::Usage(format!(
            "{file} is there already, and is not changed: name another with --output"
        )));
    }
    arguments.ask_for_the_rest()?;
    let upstream = arguments.upstream.as_deref().map(UpstreamTarget::parse);
    let is_http1 = matches!(upstream, Some(Ok(UpstreamTarget::Http(_) | UpstreamTarget::Unix(_))));
    if is_http1 && arguments.uses.iter().any(|planned| planned.kind == Use::Grpc) {
        return Err(CommandError::Usage("gRPC needs HTTP/2: write --upstream as h2c://HOST:PORT or https://…".into()));
    }
    let secret = arguments.secret_file()?;
    let text = arguments.compose(secret.as_deref())?;
    write_checked(&arguments.output, &text, secret.as_deref(), arguments.unit)?;
    let file = arguments.output.display();
    let mut secrets = String::new();
    if !arguments.unit && config::has_written_secret(&text) {
        secrets.push_str(
            "It has a password in it, so only you can read it (0600). A service or an image that runs as another user needs its own way to \
             it: `${file:…}` or `${NAME}` in its place keeps the password out of the file. ",
        );
    }
    if let Some(secret) = &secret {
        let (secret, mode) = (secret.display(), if arguments.unit { "0640" } else { "0600" });
        secrets.push_str(&format!(
            "{secret} has the `secret` ({mode}): each instance needs the same, as long as the database exists. "
        ));
    }
    if arguments.has_webhooks() {
        secrets.push_str(
            "The `secrets` of each `signature` are drawn: write the sender's own in their place, or each event gets 401. ",
        );
    }
    let routes = arguments.openapi.as_ref().map_or_else(|| arguments.describe_guarded(), |spec| {
        let (spec, routes) = (spec.display(), text.matches("[[routes]]").count() as u64);
        let count = quantity(routes, "route", "routes");
        format!(
            "It has {count}, one for each path of {spec} with a POST or a PATCH. Each has the lines of the first --for: remove the \
             routes that change nothing, such as a search. PUT and DELETE got none.\n"
        )
    });
    let has_systemd = Path::new("/run/systemd/system").is_dir();
    let (check, start) = match (arguments.unit, has_systemd) {
        (false, _) => ("", format!("oncegate run -c {file}")),
        (true, true) => ("sudo ", "sudo systemctl enable --now oncegate".to_owned()),
        (true, false) => ("", format!("{AS_UNIT} oncegate run -c {file}   # systemd does not run here")),
    };
    let request = arguments.example_request();
    print(&format!(
        "{file} is written and valid. Editors complete its keys by {SCHEMA_FILE}. {secrets}{routes}Read its comments, and then:\n\n  \
         {check}oncegate check -c {file}   # each route with all its options\n  {start}\n{request}"
    ))
}

impl InitArguments {
    fn choose_unit_file(&mut self) -> Result<(), CommandError> {
        self.output = UNIT_FILE.into();
        let has_folder = self.output.parent().is_some_and(|folder| !is_absent(folder));
        match rustix::process::geteuid().is_root() {
            false => Err(CommandError::Usage(format!("{UNIT_FILE} is root's: run this with sudo"))),
            true if has_folder => Ok(()),
            true => Err(CommandError::Usage("there is no /etc/oncegate: the Debian package makes it".into())),
        }
    }

    /// Asks for what the command line has not said, if a person can answer.
    fn ask_for_the_rest(&mut self) -> Result<(), CommandError> {
        // Not by clap, which would show a password in a wrong URL.
        let check = |flag, text: &Option<String>, parse: fn(&str) -> Result<String, String>| {
            let checked = text.as_deref().map(parse).transpose();
            checked.map_err(|problem| CommandError::Usage(format!("{flag} {problem}")))
        };
        self.upstream = check("--upstream", &self.upstream, parse_upstream)?;
        self.store = check("--store", &self.store, parse_store)?;
        fill_in(&mut self.upstream, "--upstream", "The service's URL", Some("http://127.0.0.1:3000"), parse_upstream)?;
        if self.uses.is_empty() {
            let names = Use::value_variants().iter().map(|known| known.name()).collect::<Vec<_>>().join(", ");
            let question = format!(
                "What its routes do ({names}), several with commas; webhooks:SENDER, egress:VENDOR; USE=PATH for another path"
            );
            self.uses = answer("--for", &question, Some("payments"), |text| text.split(',').map(parse_use).collect())?;
        }
        let question = "What says who a caller is (api-key, jwt, one)";
        fill_in(&mut self.callers, "--callers", question, Some("api-key"), parse_callers)?;
        if self.callers == Some(Callers::Jwt) {
            let as_written = |text: &str| Ok(text.to_owned());
            let question = "The issuer of the tokens, as an https:// URL";
            fill_in(&mut self.issuer, "--issuer", question, None, as_written)?;
            fill_in(&mut self.audience, "--audience", "The audience that the tokens name", None, as_written)?;
        }
        let question = "Where keys are kept (sqlite:FILE for one instance, postgres://… for any number)";
        let folder = if self.unit { format!("{UNIT_STATE}/") } else { String::new() };
        fill_in(&mut self.store, "--store", question, Some(&format!("sqlite:{folder}oncegate.db")), parse_store)?;
        let file = self.store.as_deref().and_then(|url| url.strip_prefix("sqlite:"));
        match file.filter(|file| self.unit && !Path::new(file).starts_with(UNIT_STATE)) {
            Some(file) => {
                Err(CommandError::Usage(format!("--store {file} is not in {UNIT_STATE}, where the unit writes")))
            }
            None => Ok(()),
        }
    }

    /// The requests that the routes guard, in one sentence.
    fn describe_guarded(&self) -> String {
        let paths = self.uses.iter().map(|planned| format!("POST {}", planned.path())).collect::<Vec<_>>().join(", ");
        let is_usual = self.uses.iter().any(|planned| planned.path.is_none());
        format!("It guards {paths}. {}", if is_usual { "USE=PATH in --for names another path. " } else { "" })
    }

    /// A request to try the first route that any JSON may be sent to, with a caller of the scope that is written.
    fn example_request(&self) -> String {
        let is_plain = |planned: &&PlannedUse| matches!(planned.kind, Use::Payments | Use::Orders | Use::ModelApi);
        let first = self.uses.iter().find(is_plain).map(PlannedUse::path).filter(|path| !path.contains('{'));
        let caller = match self.callers {
            Some(Callers::Jwt) => return String::new(),
            Some(Callers::One) => "",
            Some(Callers::ApiKey) | None => " -H 'Authorization: Bearer alice'",
        };
        let request = |path| {
            format!(
                "  curl -i http://127.0.0.1:8080{path}{caller} -H 'Idempotency-Key: first-1' -H 'Content-Type: application/json' \
                 -d '{{}}'   # with your body, twice: the second answer is `replayed`\n"
            )
        };
        first.filter(|_| self.openapi.is_none()).map_or_else(String::new, request)
    }

    /// The file of the `secret`, beside the configuration: for PostgreSQL, which more people can read than one file,
    /// and for webhooks and egress, where some requests are stored until they are delivered or answered.
    fn secret_file(&self) -> Result<Option<PathBuf>, CommandError> {
        // One with a reference, such as `${PASSWORD}`, is not whole yet.
        let is_postgres = self.store.as_deref().is_some_and(|url| url.starts_with("postgres"));
        let file = self.output.with_extension("secret");
        // The name alone where both are in the working directory, so that they can be moved together.
        let is_here = self.output.parent().is_none_or(|folder| folder.as_os_str().is_empty());
        let file = if is_here { file } else { absolute(file).map_err(failed)? };
        let has_egress = self.uses.iter().any(|planned| planned.kind == Use::Egress);
        Ok((is_postgres || has_egress || self.has_webhooks()).then_some(file))
    }

    fn has_webhooks(&self) -> bool {
        self.uses.iter().any(|planned| planned.kind == Use::Webhooks)
    }

    fn compose(&self, secret: Option<&Path>) -> Result<String, CommandError> {
        // A string of JSON is one of TOML.
        let quoted = |text: &Option<String>| serde_json::Value::from(text.as_deref().unwrap_or_default()).to_string();
        let mut text = format!(
            "#:schema ./{SCHEMA_FILE}\n\
             # Written by `oncegate init`. config/reference.toml describes each option and its danger. The package has it, and all\n\
             # pages that are named here, in /usr/share/doc/oncegate.\n\n\
             upstream = {}   # requests that no route guards pass to it as they are\n",
            quoted(&self.upstream)
        );
        let routes = self.routes()?;
        if routes.iter().any(|(planned, ..)| matches!(planned.kind, Use::ModelApi | Use::Egress)) {
            text.push_str("drain_timeout = \"120s\"   # the longest upstream_timeout; the supervisor's own limit must be longer\n");
        }
        if let Some(secret) = secret {
            let secret = quoted(&Some(format!("${{file:{}}}", secret.display())));
            text.push_str(&format!(
                "\n# Who can read the database cannot test guesses of credentials and bodies without it: docs/security.md. Each instance\n\
                 # needs the same one, and no key is found without it.\nsecret = {secret}\n"
            ));
        }
        if self.callers == Some(Callers::Jwt) {
            let (issuer, audience) = (quoted(&self.issuer), quoted(&self.audience));
            text.push_str(&format!(
                "\n[jwt]\nissuer = {issuer}   # its description names its keys; without one, write jwks\naudience = {audience}\n"
            ));
        }
        let admin = if self.unit { UNIT_ADMIN } else { "" };
        text.push_str(&format!("\n[store]\nurl = {}\n{admin}", quoted(&self.store)));
        let scope = match self.callers {
            Some(Callers::Jwt) => {
                "# A refreshed token is the same caller: the verified claim `sub` counts.\nscope = [\"jwt:sub\"]\n"
            }
            Some(Callers::One) => {
                "# All requests are one caller's: whoever knows a key gets its response.\nscope = [\"none\"]\n\
                 allow = [\"scope-none\"]   # so that `oncegate check` does not warn of it\n"
            }
            Some(Callers::ApiKey) | None => {
                "# A client with another token or key is another caller, and its retry runs again.\n\
                 scope = [\"authorization?\", \"header:x-api-key?\"]\n"
            }
        };
        let (mut names, mut explained) = (BTreeSet::new(), BTreeSet::new());
        for (planned, path, methods) in routes {
            let lines = planned.lines(if self.unit { "/etc/oncegate" } else { "/run/secrets" })?;
            let name = unused_name(&mut names, &path, planned.kind);
            let path = quoted(&Some(path));
            let scope = if planned.kind == Use::Webhooks { "" } else { scope };
            text.push_str(&format!("\n[[routes]]\nname = \"{name}\"\npath = {path}\nmethods = {methods:?}\n"));
            for line in lines.lines().chain(scope.lines()) {
                let (setting, comment) = line.split_at(line.find("# ").unwrap_or(line.len()));
                let line =
                    if comment.is_empty() || explained.insert(comment.to_owned()) { line } else { setting.trim_end() };
                if !line.is_empty() {
                    text.push_str(&format!("{line}\n"));
                }
            }
        }
        Ok(text)
    }

    fn routes(&self) -> Result<Vec<(PlannedUse, String, Vec<String>)>, CommandError> {
        let Some(spec) = &self.openapi else {
            let named = self.uses.iter().map(|planned| (planned.clone(), planned.path(), vec!["POST".to_owned()]));
            return Ok(named.collect());
        };
        let payments = PlannedUse { kind: Use::Payments, sender: WebhookSender::None, vendor: Vendor::Off, path: None };
        let first = self.uses.first().cloned().unwrap_or(payments);
        let mut paths: BTreeMap<String, Vec<String>> = BTreeMap::new();
        for operation in openapi::read(spec).map_err(failed)? {
            if [Method::POST, Method::PATCH].contains(&operation.method) && !operation.is_ignored {
                paths.entry(operation.template.to_string()).or_default().push(operation.method.to_string());
            }
        }
        if paths.is_empty() {
            return Err(CommandError::Usage(format!("{} has no POST and no PATCH", spec.display())));
        }
        Ok(paths.into_iter().map(|(path, methods)| (first.clone(), path, methods)).collect())
    }
}

/// Asks for an argument that the command line has not said.
fn fill_in<T>(
    argument: &mut Option<T>,
    flag: &str,
    question: &str,
    default: Option<&str>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<(), CommandError> {
    if argument.is_none() {
        *argument = Some(answer(flag, question, default, read)?);
    }
    Ok(())
}

/// The answer to a question, from a person or, if nobody can answer, the default.
fn answer<T>(
    flag: &str,
    question: &str,
    default: Option<&str>,
    read: impl Fn(&str) -> Result<T, String>,
) -> Result<T, CommandError> {
    if !(stdin().is_terminal() && stdout().is_terminal()) {
        let default = default.filter(|_| flag != "--upstream" && flag != "--for");
        let text = default.ok_or_else(|| {
            CommandError::Usage(format!(
                "{flag} is missing, and only a person is asked, where input and output are a terminal: {question}"
            ))
        })?;
        return read(text).map_err(CommandError::Usage);
    }
    loop {
        let shown = default.map_or_else(String::new, |default| format!(" [{default}]"));
        print(&format!("{question}{shown}: "))?;
        let mut line = String::new();
        if stdin().read_line(&mut line).map_err(failed)? == 0 {
            return Err(CommandError::Usage(format!("{flag} is missing, and the input has ended")));
        }
        let text = Some(line.trim()).filter(|line| !line.is_empty()).or(default);
        match text.map(&read) {
            Some(Ok(value)) => return Ok(value),
            Some(Err(problem)) => eprintln!("{flag} {problem}"),
            None => {}
        }
    }
}

/// A name for a route, made of the fixed parts of its path, or of its use where the path has none.
fn unused_name(names: &mut BTreeSet<String>, path: &str, kind: Use) -> String {
    let parts = path.split('/').filter(|part| !part.is_empty() && !part.starts_with('{') && *part != "v1");
    let words = parts.map(|part| part.replace(|letter: char| !letter.is_ascii_alphanumeric(), "-").to_lowercase());
    let name = Some(words.collect::<Vec<_>>().join("-")).filter(|name| !name.is_empty()).unwrap_or_else(|| kind.name());
    let numbered = (2..).map(|number| format!("{name}-{number}"));
    let name = std::iter::once(name.clone()).chain(numbered).find(|name| !names.contains(name));
    let name = name.expect("there are more numbers than routes");
    names.insert(name.clone());
    name
}

/// Writes the file, and the secret's where there is none yet. Removes what it has written if the configuration's reader
/// finds a problem. `is_for_unit` lets the unit's user read the files too.
fn write_checked(file: &Path, text: &str, secret: Option<&Path>, is_for_unit: bool) -> Result<(), CommandError> {
    let mut written = Vec::new();
    let write = |written: &mut Vec<PathBuf>| {
        if let Some(secret) = secret.filter(|secret| is_absent(secret)) {
            let mut random = [0; 32];
            fill_random(&mut random).map_err(failed)?;
            create(secret, 0o600, &format!("{}\n", BASE64_STANDARD.encode(random)))?;
            written.push(secret.to_owned());
        }
        let schema = file.with_file_name(SCHEMA_FILE);
        // One of an earlier version is replaced, and a file of somebody else's is not.
        if fs::read_to_string(&schema).is_ok_and(|found| found.contains(config::SCHEMA_ID)) {
            drop(fs::remove_file(&schema));
        }
        if is_absent(&schema) {
            create(&schema, 0o644, &format!("{:#}\n", config::schema()))?;
            written.push(schema);
        }
        let mode = if config::has_written_secret(text) { 0o600 } else { 0o644 };
        create(file, mode, text)?;
        written.push(file.to_owned());
        if is_for_unit {
            written.iter().try_for_each(|file| share(file)).map_err(failed)?;
        }
        let loaded = config::load(Some(file), &Overrides::default(), &ProcessEnvironment);
        loaded.map(drop).map_err(CommandError::Config)
    };
    let result = write(&mut written);
    if result.is_err() {
        written.iter().for_each(|file| drop(fs::remove_file(file)));
    }
    result
}

/// Lets root and the group of the folder read a file, whatever group and umask this process has. The package gives the
/// folder to the group of the unit's user.
fn share(file: &Path) -> std::io::Result<()> {
    let folder = file.parent().map(fs::metadata).transpose()?;
    chown(file, None, folder.map(|folder| folder.gid()))?;
    fs::set_permissions(file, fs::Permissions::from_mode(0o640))
}
