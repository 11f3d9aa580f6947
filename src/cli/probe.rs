//! `oncegate probe`

use std::time::{Duration, SystemTime};

use bytes::Bytes;
use canonical_json::Pointer;
use clap::Args;
use clap::builder::RangedU64ValueParser;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::header::{CONTENT_LENGTH, TRANSFER_ENCODING};
use http::{HeaderMap, HeaderName, HeaderValue, Method, StatusCode};

use super::request_arguments::{parse_field, parse_method, read_data};
use super::{CommandError, block_on, failed, print};
use endpoint::ProbedEndpoint;
use finding::{Finding, ProbeCheck};
use judge::Baseline;
use oncegate_config as config;
use oncegate_trust::tls::Authorities;
use plan::{ProbeKeyPlace, ProbePlan, draw_key};
use report::{CheckedExpectation, ProbeReport};
use response::{NoResponse, ProbedResponse, ProbedResult};

mod endpoint;
mod finding;
mod judge;
mod plan;
mod report;
mod response;

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
    if !is_confirmed && !plan.endpoint.is_loopback() {
        let count = plan.requests_max();
        let host = plan.endpoint.authority.host();
        return Err(CommandError::Usage(format!(
            "this sends up to {count} requests to {host}, and each may execute the operation: use a test account, and say --yes"
        )));
    }
    let report = block_on(Prober { plan: &plan, requests: 0 }.probe())?;
    print(&if is_json { report.to_json() } else { report.to_text() })?;
    match report.failure() {
        None => Ok(()),
        Some(failure) => Err(failed(failure)),
    }
}

impl ProbeArguments {
    fn into_plan(self) -> Result<ProbePlan, CommandError> {
        let usage = |text: String| CommandError::Usage(text);
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
        let given: HeaderMap = self.headers.into_iter().collect();
        if let ProbeKeyPlace::Field { name, .. } = &key_place
            && given.contains_key(name)
        {
            return Err(usage(format!("the probe makes its own keys: leave -H '{name}: …' out")));
        }
        if given.contains_key(CONTENT_LENGTH) || given.contains_key(TRANSFER_ENCODING) {
            return Err(usage(
                "the probe frames its requests itself: leave Content-Length and Transfer-Encoding out".into(),
            ));
        }
        let given_fields = given.keys().map(ToString::to_string).collect();
        let body = Bytes::from(read_data(self.data)?);
        let fields = plan::complete_fields(given, &endpoint, &body);
        let other_body = match self.other_body {
            Some(other) => Ok((read_data(other)?.into(), None)),
            None => plan::change_body(&body, &fields, &key_place),
        };
        let plan = ProbePlan {
            endpoint,
            method: self.method,
            fields,
            given_fields,
            key_place,
            body,
            other_body,
            duplicates: self.duplicates,
            ignored: self.ignore,
        };
        plan.check_key_place().map_err(usage)?;
        Ok(plan)
    }
}

/// Sends the requests of a plan.
struct Prober<'a> {
    plan: &'a ProbePlan,
    requests: usize,
}

impl<'a> Prober<'a> {
    async fn probe(mut self) -> Result<ProbeReport<'a>, CommandError> {
        let at = SystemTime::now();
        let plan = self.plan;
        // Nothing is sent yet: a server that cannot be reached is no finding.
        let connection = plan.endpoint.connect().await.map_err(|NoResponse(reason)| {
            CommandError::Unreachable(format!("{}: {reason}", plan.endpoint.authority))
        })?;
        let key = draw_key();
        self.requests += 1;
        let first = plan.endpoint.send(connection, plan.request(Some(&key), &plan.body)).await;
        let checks = match (judge::judge_first(&first), &first) {
            (finding, Ok(response)) if finding == Finding::EXECUTED => self.check_all(key, response).await,
            (finding, _) => vec![check(ProbeCheck::FIRST, finding, &[&first], Some(key))],
        };
        Ok(ProbeReport { plan, at, requests: self.requests, checks })
    }

    /// Sends all other requests, one after the other except the duplicates.
    async fn check_all(&mut self, key: String, first: &ProbedResponse) -> Vec<CheckedExpectation> {
        let plan = self.plan;
        let (other_key, duplicates_key) = (draw_key(), draw_key());
        let control = self.send(Some(&other_key), &plan.body).await;
        let retry = self.send(Some(&key), &plan.body).await;
        let duplicates = self.send_at_once(&duplicates_key).await;
        let baseline = Baseline { first, control: &control, ignored: &plan.ignored };
        let marker = |result: &ProbedResult| result.as_ref().ok().and_then(|response| response.replay_marker(first));
        let executed = Ok(first.clone());

        let mut checks = vec![
            check(ProbeCheck::FIRST, Finding::EXECUTED, &[&executed], Some(key.clone())),
            check(ProbeCheck::OTHER_KEY, baseline.judge_other_key(&retry), &[&control], Some(other_key)),
            CheckedExpectation {
                marker: marker(&retry),
                ..check(ProbeCheck::RETRY, baseline.judge_retry(&retry), &[&retry], Some(key.clone()))
            },
            CheckedExpectation {
                marker: duplicates.iter().find_map(marker),
                ..check(
                    ProbeCheck::DUPLICATES,
                    baseline.judge_duplicates(&duplicates),
                    &duplicates.iter().collect::<Vec<_>>(),
                    Some(duplicates_key),
                )
            },
        ];
        let mut seen: Vec<ProbedResult> = duplicates;
        match &plan.other_body {
            Err(finding) => checks.push(check(ProbeCheck::OTHER_BODY, finding.clone(), &[], None)),
            Ok((body, place)) => {
                let reuse = self.send(Some(&key), body).await;
                let own_key = judge::is_refused(&reuse).then(draw_key);
                let own = match &own_key {
                    Some(own_key) => Some(self.send(Some(own_key), body).await),
                    None => None,
                };
                let finding = baseline.judge_other_body(&reuse, own.as_ref());
                let sent = place.as_ref().map(|place| format!("sent with `{place}` changed"));
                let marker = marker(&reuse);
                checks.push(CheckedExpectation {
                    marker,
                    sent,
                    own_key,
                    ..check(ProbeCheck::OTHER_BODY, finding, &[&reuse], Some(key))
                });
                seen.push(reuse);
            }
        }
        let no_key = self.send(None, &plan.body).await;
        checks.push(check(ProbeCheck::NO_KEY, judge::judge_no_key(&no_key), &[&no_key], None));
        seen.extend([no_key, control.clone(), retry]);
        checks.push(check(ProbeCheck::POLICY, judge::judge_policy(seen.iter().flatten()), &[], None));
        checks
    }

    /// Sends one request on a connection of its own.
    async fn send(&mut self, key: Option<&str>, body: &Bytes) -> ProbedResult {
        let connection = self.plan.endpoint.connect().await?;
        self.requests += 1;
        self.plan.endpoint.send(connection, self.plan.request(key, body)).await
    }

    /// Sends the duplicates, once all their connections are open.
    async fn send_at_once(&mut self, key: &str) -> Vec<ProbedResult> {
        let plan = self.plan;
        let mut connections = Vec::new();
        for _ in 0..plan.duplicates {
            match plan.endpoint.connect().await {
                Ok(connection) => connections.push(connection),
                Err(failure) => return vec![Err(failure)],
            }
        }
        self.requests += connections.len();
        let send = |connection| plan.endpoint.send(connection, plan.request(Some(key), &plan.body));
        connections.into_iter().map(send).collect::<FuturesUnordered<_>>().collect().await
    }
}

fn check(check: ProbeCheck, finding: Finding, results: &[&ProbedResult], key: Option<String>) -> CheckedExpectation {
    let responses = results.iter().filter_map(|result| result.as_ref().ok());
    let statuses: Vec<StatusCode> = responses.map(|response| response.status).collect();
    CheckedExpectation { check, finding, statuses, key, own_key: None, marker: None, sent: None }
}
