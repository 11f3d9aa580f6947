//! `oncegate probe`

use std::time::Duration;

use canonical_json::Pointer;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::request_arguments::{parse_field, parse_method, read_data};
use super::{CommandError, block_on, failed, print};
use oncegate_config as config;
use oncegate_probe::{ProbeKeyPlace, ProbePlan, ProbedEndpoint, probe};
use oncegate_trust::tls::Authorities;

#[derive(Args)]
pub(super) struct ProbeArguments {
    /// The endpoint's URL, `http://` or `https://`
    url: String,
    /// The operation's method
    #[arg(short = 'X', long = "request", value_name = "METHOD", default_value = "POST", value_parser = parse_method)]
    method: Method,
    /// A field of each request; may be given several times. Its value is not in the report
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = parse_field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The operation's body, or @FILE. JSON is sent as `application/json`, anything else as a form, unless -H says otherwise
    #[arg(short, long, value_name = "BODY|@FILE", default_value = "", allow_hyphen_values = true)]
    data: String,
    /// The body that is sent with a key that had another one before; a valid one. Without it, one value of a JSON body or a form is
    /// changed
    #[arg(long, value_name = "BODY|@FILE", allow_hyphen_values = true)]
    other_body: Option<String>,
    /// The field that carries the key
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// The key's place in the JSON body, instead of a field: a JSON Pointer such as /idempotency_key
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer, conflicts_with_all = ["key_header", "quoted_key"])]
    key_body: Option<String>,
    /// Sends the key in quotes, as the draft writes it; most servers expect it without
    #[arg(long)]
    quoted_key: bool,
    /// The JSON Pointer of a value of the response that does not count, with all below it, where * is any name or index; may be given
    /// several times
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer)]
    ignore: Vec<String>,
    /// The number of duplicates that are sent at once
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = RangedU64ValueParser::<usize>::new().range(2..=20))]
    duplicates: usize,
    /// The longest wait for a connection, and for a response
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = config::parse_duration)]
    timeout: Duration,
    /// The certificate authorities that the server is verified with, as a PEM file, instead of the system's
    #[arg(long, value_name = "FILE")]
    cacert: Option<String>,
    /// Confirms that the operation may be executed several times on a server that is not this machine
    #[arg(long)]
    yes: bool,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

/// Checks a JSON Pointer to a value within a body.
fn parse_pointer(text: &str) -> Result<String, String> {
    Pointer::parse(text).map_err(|error| error.to_string())?;
    if text.is_empty() { Err("is the whole body: name a value in it".into()) } else { Ok(text.to_owned()) }
}

pub(super) fn run(arguments: ProbeArguments) -> Result<(), CommandError> {
    let (is_json, is_confirmed) = (arguments.json, arguments.yes);
    let plan = arguments.into_plan()?;
    let authority = &plan.endpoint.authority;
    if !is_confirmed && !plan.endpoint.is_loopback() {
        let (count, host) = (plan.requests_max(), authority.host());
        return Err(CommandError::Usage(format!(
            "this sends up to {count} requests to {host}, and each may execute the operation: use a test account, and say --yes"
        )));
    }
    let unreachable = |reason| CommandError::Unreachable(format!("{authority}: {reason}"));
    let report = block_on(async { probe(&plan).await.map_err(unreachable) })?;
    print(&if is_json { report.to_json() } else { report.to_text() })?;
    report.failure().map_or(Ok(()), |failure| Err(failed(failure)))
}

impl ProbeArguments {
    fn into_plan(self) -> Result<ProbePlan, CommandError> {
        let usage = CommandError::Usage;
        let cacert = self.cacert;
        let authorities = || match &cacert {
            None => Ok(Authorities::from_system()),
            Some(file) => {
                let text = std::fs::read(file).map_err(|error| format!("cannot be probed: {file}: {error}"))?;
                Authorities::parse(&text).map_err(|problem| format!("cannot be probed: {file} {problem}"))
            }
        };
        let endpoint = ProbedEndpoint::parse(&self.url, authorities, self.timeout);
        let endpoint = endpoint.map_err(|problem| usage(format!("the URL {problem}")))?;
        let key_place = match self.key_body {
            Some(pointer) => ProbeKeyPlace::Body(pointer),
            None => ProbeKeyPlace::Field { name: self.key_header, is_quoted: self.quoted_key },
        };
        let fields: HeaderMap = self.headers.into_iter().collect();
        if let ProbeKeyPlace::Field { name, .. } = &key_place
            && fields.contains_key(name)
        {
            return Err(usage(format!("the probe makes its own keys: leave -H '{name}: …' out")));
        }
        if fields.contains_key(CONTENT_LENGTH) || fields.contains_key(TRANSFER_ENCODING) {
            let text = "the probe frames its requests itself: leave Content-Length and Transfer-Encoding out";
            return Err(usage(text.into()));
        }
        let plan = ProbePlan {
            endpoint,
            method: self.method,
            fields,
            key_place,
            body: read_data(self.data)?.into(),
            other_body: self.other_body.map(read_data).transpose()?.map(Into::into),
            duplicates: self.duplicates,
            ignored: self.ignore,
        };
        let no_place = |pointer| format!("the body has no place for a key at {pointer}: it needs a JSON object there");
        match plan.missing_key_place().map(no_place) {
            None => Ok(plan),
            Some(text) => Err(usage(text)),
        }
    }
}
