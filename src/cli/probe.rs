//! `oncegate probe`

use clap::Args;
use clap::builder::RangedU64ValueParser;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method};

use super::endpoint_arguments::{EndpointArguments, parse_pointer};
use super::request_arguments::{parse_field, parse_method, read_data};
use super::{CommandError, block_on};
use oncegate_probe::{ProbeKeyPlace, ProbePlan, probe};

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
    /// The operation's body, or @FILE. JSON is sent as `application/json`, anything else as a form, unless -H says
    /// otherwise
    #[arg(short, long, value_name = "BODY|@FILE", default_value = "", allow_hyphen_values = true)]
    data: String,
    /// The body that is sent with a key that had another one before; a valid one. Without it, one value of a JSON body
    /// or a form is changed
    #[arg(long, value_name = "BODY|@FILE", allow_hyphen_values = true)]
    other_body: Option<String>,
    /// Sends the key in quotes, as the draft writes it; most servers expect it without
    #[arg(long, conflicts_with = "key_body")]
    quoted_key: bool,
    /// The JSON Pointer of a value of the response that does not count, with all below it, where * is any name or
    /// index; may be given several times
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer)]
    ignore: Vec<String>,
    /// The number of duplicates that are sent at once
    #[arg(long, value_name = "NUMBER", default_value = "5", value_parser = RangedU64ValueParser::<usize>::new().range(2..=20))]
    duplicates: usize,
    #[command(flatten)]
    endpoint: EndpointArguments,
}

pub(super) fn run(arguments: ProbeArguments) -> Result<(), CommandError> {
    let (plan, shared) = arguments.into_plan()?;
    let authority = &plan.endpoint.authority;
    let (count, host) = (plan.requests_max(), authority.host());
    let effect = format!("this sends up to {count} requests to {host}, and each may execute the operation");
    shared.require_confirmation(&plan.endpoint, &effect)?;
    let unreachable = |reason| CommandError::Unreachable(format!("{authority}: {reason}"));
    let report = block_on(async { probe(&plan).await.map_err(unreachable) })?;
    shared.publish(&report)
}

impl ProbeArguments {
    fn into_plan(self) -> Result<(ProbePlan, EndpointArguments), CommandError> {
        let usage = CommandError::Usage;
        let shared = self.endpoint;
        let endpoint = shared.endpoint(&self.url)?;
        let key_place = shared.key_place(self.quoted_key);
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
            None => Ok((plan, shared)),
            Some(text) => Err(usage(text)),
        }
    }
}
