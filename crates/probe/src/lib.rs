//! Two black-box tests against draft-ietf-httpapi-idempotency-key-header: of any service's idempotency keys
//! ([`probe`]), and of any client's retries ([`conform`]).
//!
//! [`finding`] and [`report`] are the words of the result, which know nothing of how it was found.

#![allow(missing_docs, reason = "a name that says it all has no comment")]

use std::time::SystemTime;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use http::{HeaderName, StatusCode};
use serde_json::json;

use finding::{Finding, IdempotencyCheck};
use judge::Baseline;
use oncegate_domain::rfc3339;
use plan::draw_key;
use report::{CheckedExpectation, IdempotencyReport, ReportWords};
use response::{ProbedResponse, ProbedResult};

pub use endpoint::ProbedEndpoint;
pub use plan::{ProbeKeyPlace, ProbePlan};

mod badge;
pub mod conform;
mod endpoint;
pub mod finding;
mod judge;
mod plan;
pub mod report;
mod response;

/// Executes the operation with one key and another, and judges the responses.
/// An error is the reason why the server cannot be reached: nothing is sent then.
pub async fn probe(plan: &ProbePlan) -> Result<IdempotencyReport, String> {
    let at = rfc3339::format(SystemTime::now());
    // Nothing is sent yet: a server that cannot be reached is no finding.
    let connection = plan.endpoint.connect().await?;
    let key = draw_key();
    let first = plan.endpoint.send(connection, plan.request(Some(&key), &plan.body)).await;
    let mut prober = Prober { plan, requests: 1 };
    let checks = match (judge::judge_first(&first), &first) {
        (finding, Ok(response)) if finding == Finding::EXECUTED => prober.check_all(key, response).await,
        (finding, _) => vec![check(IdempotencyCheck::FIRST, finding, &[&first], Some(key))],
    };
    Ok(report(plan, prober.requests, &at, checks))
}

fn report(plan: &ProbePlan, requests: usize, at: &str, checks: Vec<CheckedExpectation>) -> IdempotencyReport {
    let ProbePlan { endpoint, method, fields, key_place, ignored, .. } = plan;
    let url = endpoint.public_url();
    let list = |before: &str, list: &[&str]| match list.is_empty() {
        true => String::new(),
        false => format!("{before} {}", list.join(", ")),
    };
    let fields = list(" and the fields", &fields.keys().map(HeaderName::as_str).collect::<Vec<_>>());
    let left_out = list(" and not the values at", &ignored.iter().map(String::as_str).collect::<Vec<_>>());
    IdempotencyReport {
        words: ReportWords::SERVER,
        subject: format!("{method} {url}"),
        procedure: format!(
            "oncegate {} sent {requests} requests on {at}, with the key in {key_place}{fields}.",
            env!("CARGO_PKG_VERSION")
        ),
        comparison: format!(
            "Compared: status, Location, Content-Location and body (JSON by its values), no other fields{left_out}."
        ),
        list: titles_by_key(&checks).iter().map(|(key, titles)| format!("`{key}`: {}", titles.join("; "))).collect(),
        facts: json!({
            "url": url,
            "method": method.as_str(),
            "at": at,
            "key_place": key_place.to_string(),
            "requests": requests,
            "ignored": ignored,
        }),
        checks,
    }
}

/// The keys in the order of their first use, each with its uses.
fn titles_by_key(checks: &[CheckedExpectation]) -> Vec<(&str, Vec<&str>)> {
    let uses = checks.iter().flat_map(|check| {
        let own = check.own_key.as_deref().map(|key| (key, "another body, its own key"));
        check.key.as_deref().map(|key| (key, check.check.title)).into_iter().chain(own)
    });
    let mut keys: Vec<(&str, Vec<&str>)> = Vec::new();
    for (key, title) in uses {
        match keys.iter_mut().find(|(known, _)| *known == key) {
            Some((_, titles)) => titles.push(title),
            None => keys.push((key, vec![title])),
        }
    }
    keys
}

/// Sends the requests of a plan, and counts them.
struct Prober<'a> {
    plan: &'a ProbePlan,
    requests: usize,
}

impl Prober<'_> {
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
            check(IdempotencyCheck::FIRST, Finding::EXECUTED, &[&executed], Some(key.clone())),
            check(IdempotencyCheck::OTHER_KEY, baseline.judge_other_key(&retry), &[&control], Some(other_key)),
            CheckedExpectation {
                marker: marker(&retry),
                ..check(IdempotencyCheck::RETRY, baseline.judge_retry(&retry), &[&retry], Some(key.clone()))
            },
            CheckedExpectation {
                marker: duplicates.iter().find_map(marker),
                ..check(
                    IdempotencyCheck::DUPLICATES,
                    baseline.judge_duplicates(&duplicates),
                    &duplicates.iter().collect::<Vec<_>>(),
                    Some(duplicates_key),
                )
            },
        ];
        let mut seen: Vec<ProbedResult> = duplicates;
        match plan.other_body() {
            Err(finding) => checks.push(check(IdempotencyCheck::OTHER_BODY, finding, &[], None)),
            Ok((body, place)) => {
                let reuse = self.send(Some(&key), &body).await;
                let own_key = judge::is_refused(&reuse).then(draw_key);
                let own = match &own_key {
                    Some(own_key) => Some(self.send(Some(own_key), &body).await),
                    None => None,
                };
                let finding = baseline.judge_other_body(&reuse, own.as_ref());
                let sent = place.map(|place| format!("sent with `{place}` changed"));
                let marker = marker(&reuse);
                checks.push(CheckedExpectation {
                    marker,
                    sent,
                    own_key,
                    ..check(IdempotencyCheck::OTHER_BODY, finding, &[&reuse], Some(key))
                });
                seen.push(reuse);
            }
        }
        let no_key = self.send(None, &plan.body).await;
        checks.push(check(IdempotencyCheck::NO_KEY, judge::judge_no_key(&no_key), &[&no_key], None));
        seen.extend([no_key, control.clone(), retry]);
        checks.push(check(IdempotencyCheck::POLICY, judge::judge_policy(seen.iter().flatten()), &[], None));
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

fn check(
    check: IdempotencyCheck,
    finding: Finding,
    results: &[&ProbedResult],
    key: Option<String>,
) -> CheckedExpectation {
    let responses = results.iter().filter_map(|result| result.as_ref().ok());
    let statuses: Vec<StatusCode> = responses.map(|response| response.status).collect();
    CheckedExpectation { check, finding, statuses, key, own_key: None, marker: None, sent: None }
}
