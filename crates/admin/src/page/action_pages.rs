//! Pages for decisions: first the meaning and the consequences with a form, then the change, then a redirect.

use askama::Template;
use bytes::Bytes;
use http::{Response, StatusCode};

use super::format::KeyTexts;
use super::format::{Shown, ShownTime};
use super::selection::{SelectionForm, result_address};
use super::text::{ActionTexts, CauseText, DOUBTFUL_RESPONSE_RISK, SHARED_RESPONSE_RISK};
use super::text::{explain_refusals, parse_action, risk_acceptance};
use super::{FormParams, Frame, PageAnswer, Visit, redirect_to, render_page};
use crate::key_admin::BODY_BYTES_MAX;
use crate::key_admin::actors::remote_actor;
use crate::key_admin::dto::{BulkChange, KeyDetails};
use crate::key_admin::four_eyes::KeyProposal;
use crate::key_admin::params::{build_response, check_note, check_typed_headers};
use crate::key_admin::problem::ApiProblem;
use crate::key_admin::typed_response::{ResponseExample, find_doubt};
use oncegate_domain::execution_risk::{ActionKind, ActionRisk};
use oncegate_domain::quantity::quantity;
use oncegate_domain::response::StoredResponse;
use oncegate_http::body::Body;
use oncegate_store::admin::{KeyEntry, OperatorAction, OperatorDecision};

impl BulkChange {
    fn quantity(&self) -> String {
        quantity(self.count, "key", "keys")
    }

    /// The reasons why keys are not changed, each once.
    fn refusals(&self) -> String {
        explain_refusals(self.refused.iter().map(|refused| refused.problem.code))
    }
}

fn read_decision(form: &FormParams, action: ActionKind, actor: String) -> Result<OperatorDecision, ApiProblem> {
    let change = match action {
        ActionKind::Completed => OperatorAction::Complete(read_response(form)?.into()),
        ActionKind::Replace => OperatorAction::Replace(read_response(form)?.into()),
        ActionKind::NotExecuted => OperatorAction::NotExecuted,
        ActionKind::Purge => OperatorAction::Purge,
        ActionKind::Redact => OperatorAction::Redact,
        ActionKind::Release => OperatorAction::Release,
        ActionKind::Requeue => OperatorAction::Requeue,
    };
    let (note, accept_risk) = (check_note(form.text("note").to_owned())?, form.get("accept_risk") == "true");
    Ok(OperatorDecision { change, actor, note, accept_risk, means_empty_body: false })
}

fn read_response(form: &FormParams) -> Result<StoredResponse, ApiProblem> {
    let (headers, body) = (form.text("headers"), form.get("body"));
    if headers.len() + body.len() > BODY_BYTES_MAX {
        return Err(ApiProblem::body_too_large(BODY_BYTES_MAX));
    }
    let status = form.text("status").parse::<u16>();
    let status = status.map_err(|_| ApiProblem::bad("status", "is not a status from 200 to 599"))?;
    let field = |line: &str| match line.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err(ApiProblem::bad("headers", "has a line without a colon: write `Name: value`")),
    };
    let lines = headers.lines().filter(|line| !line.trim().is_empty());
    let headers = lines.map(field).collect::<Result<_, _>>()?;
    let response = build_response(status.into(), headers, Bytes::from(body.to_owned()))?;
    check_typed_headers(&response)?;
    Ok(response)
}

fn is_doubtful(form: &FormParams, example: Option<&ResponseExample>) -> bool {
    read_response(form).is_ok_and(|response| {
        find_doubt(&response).is_some() || example.is_some_and(|example| example.is_missed_by(&response))
    })
}

#[derive(Template)]
#[template(path = "change.html")]
struct ChangePage<'a> {
    frame: Frame,
    action: ActionKind,
    key: &'a KeyEntry,
    details: &'a KeyDetails,
    /// The texts that the operator has typed in, to be shown again where they are refused.
    draft: &'a FormParams,
    /// The form of the service's own responses, for a decision with a response.
    example: Option<ResponseExample>,
    /// The risk that the checkbox accepts; `None` where there is no risk.
    risk: Option<&'static str>,
    /// Whether the decision is refused without the risk accepted.
    needs_risk: bool,
    /// The effect of the form where two persons are needed.
    four_eyes: Option<String>,
    /// The number of the proposal that the form confirms.
    proposal: Option<i64>,
    trouble: Option<String>,
}

#[derive(Template)]
#[template(path = "bulk_change.html")]
struct BulkChangePage<'a> {
    frame: Frame,
    action: ActionKind,
    selection: SelectionForm,
    draft: &'a FormParams,
    /// For one key: several may be of several routes.
    example: Option<ResponseExample>,
    counted: BulkChange,
    risk: Option<String>,
    trouble: Option<String>,
}

impl Visit<'_> {
    pub(super) async fn show_change(&self, id: &str, action: ActionKind) -> PageAnswer {
        let details = self.key_admin().show_key(id).await?;
        Ok(self.render_change(StatusCode::OK, action, &details, None, None).await)
    }

    /// Carries a decision about one key out, if the key is still as the form was about.
    pub(super) async fn change_key(&self, id: &str, action: ActionKind, form: &FormParams) -> PageAnswer {
        let details = self.key_admin().show_key(id).await?;
        let key = &details.entry;
        if form.get("seen") != key.version() {
            let trouble = format!(
                "The key has changed since you looked: it is {} now, after attempt {}. Nothing was done. Look again.",
                key.state, key.attempts
            );
            return Ok(self.render_change(StatusCode::CONFLICT, action, &details, Some(form), Some(trouble)).await);
        }
        let changed = match self.actor(form).and_then(|actor| read_decision(form, action, actor)) {
            Ok(decision) => {
                let seen = form.get("proposal").parse().ok();
                self.key_admin().change_key(&key.id.to_string(), decision, seen).await
            }
            Err(problem) => Err(problem),
        };
        match changed {
            Ok(change) if change.is_proposal => {
                Ok(redirect_to(&format!("/keys/{}?proposed={}", key.id, action.text().name)))
            }
            Ok(change) => {
                let behind = change.instances_behind.unwrap_or(0);
                Ok(redirect_to(&format!("/keys/{}?done={}&behind={behind}", key.id, action.text().name)))
            }
            Err(problem) => {
                let trouble = Some(explain_problem(&problem));
                Ok(self.render_change(problem.status(), action, &details, Some(form), trouble).await)
            }
        }
    }

    async fn render_change(
        &self,
        status: StatusCode,
        action: ActionKind,
        details: &KeyDetails,
        form: Option<&FormParams>,
        trouble: Option<String>,
    ) -> Response<Body> {
        let example = match action.has_response() {
            // The form is a help: without it the page is as useful.
            true => self.key_admin().find_example(&details.entry.route).await.unwrap_or_default(),
            false => None,
        };
        let draft = &form.cloned().unwrap_or_else(|| self.new_draft(example.as_ref()));
        let risk = details.risks.iter().find(|(kind, _)| *kind == action).map(|(_, risk)| *risk);
        let is_doubtful = form.is_some() && action.has_response() && is_doubtful(draft, example.as_ref());
        // The attempt may be quiet by the time the form comes back.
        let needs_risk = is_doubtful || risk.is_some_and(|risk| risk != ActionRisk::AttemptRunning);
        let risk = risk.map(risk_acceptance).or(is_doubtful.then_some(DOUBTFUL_RESPONSE_RISK));
        let proposal = details.proposal.as_ref().filter(|proposal| proposal.action == action.text().name);
        let four_eyes = self.explain_four_eyes(action, proposal);
        let (frame, key, proposal) = (self.build_frame().await, &details.entry, proposal.map(|proposal| proposal.seq));
        render_page(
            status,
            &ChangePage { frame, action, key, details, draft, example, risk, needs_risk, four_eyes, proposal, trouble },
        )
    }

    /// Explains the effect of a form where two persons are needed; `None` where one decides.
    fn explain_four_eyes(&self, action: ActionKind, proposal: Option<&KeyProposal>) -> Option<String> {
        self.key_admin().four_eyes_action(action)?;
        Some(match proposal {
            Some(proposal) => {
                format!("{} has proposed this. If you are another person, the button below does it.", proposal.actor)
            }
            None => "Two persons decide this. The button below proposes it, and nothing changes until another person presses it \
                     too, within 24 hours."
                .to_owned(),
        })
    }

    pub(super) async fn show_bulk_change(&self) -> PageAnswer {
        let (action, selection) = read_bulk_change(&self.query)?;
        self.render_bulk_change(StatusCode::OK, action, selection, &self.new_draft(None), None).await
    }

    /// Carries a decision about several keys out, if they are no more than were counted. A chosen key that is not as
    /// the operator saw it is left alone.
    pub(super) async fn change_keys(&self, form: &FormParams) -> PageAnswer {
        let (action, selection) = read_bulk_change(form)?;
        let expect = form.get("expect").parse::<u64>().map_err(|_| ApiProblem::bad("expect", "is not a count"))?;
        let changed = match self.actor(form).and_then(|actor| read_decision(form, action, actor)) {
            Ok(decision) => self.request_bulk_change(&selection, decision, Some(expect)).await,
            Err(problem) => Err(problem),
        };
        match changed {
            Ok(change) => Ok(redirect_to(&result_address(action, &change))),
            Err(problem) => {
                let trouble = Some(explain_problem(&problem));
                self.render_bulk_change(problem.status(), action, selection, form, trouble).await
            }
        }
    }

    async fn render_bulk_change(
        &self,
        status: StatusCode,
        action: ActionKind,
        selection: SelectionForm,
        draft: &FormParams,
        trouble: Option<String>,
    ) -> PageAnswer {
        // The count does not depend on the response that is typed in, which may still be wrong.
        let is_completion = action.has_response();
        let accept_risk = is_completion || draft.get("accept_risk") == "true";
        let counting = [("status", "200"), ("accept_risk", if accept_risk { "true" } else { "" })];
        let decision = read_decision(&FormParams::new(&counting), action, String::new())?;
        let counted = self.request_bulk_change(&selection, decision, None).await?;
        let mut risks = counted.risks.clone();
        // An attempt that is quiet when the keys are counted may be followed by one that is not.
        if action == ActionKind::NotExecuted {
            risks.insert(ActionRisk::AttemptRunning);
        }
        let example = match &*counted.keys {
            [key] if is_completion => self.key_admin().find_example(&key.route).await.unwrap_or_default(),
            _ => None,
        };
        let mut accepted: Vec<_> = risks.into_iter().map(risk_acceptance).collect();
        if is_completion && counted.count > 1 {
            accepted.push(SHARED_RESPONSE_RISK);
        } else if is_completion && trouble.is_some() && is_doubtful(draft, example.as_ref()) {
            accepted.push(DOUBTFUL_RESPONSE_RISK);
        }
        let risk = (!accepted.is_empty()).then(|| accepted.join(" "));
        let frame = self.build_frame().await;
        Ok(render_page(status, &BulkChangePage { frame, action, selection, draft, example, counted, risk, trouble }))
    }

    async fn request_bulk_change(
        &self,
        selection: &SelectionForm,
        decision: OperatorDecision,
        expect: Option<u64>,
    ) -> Result<BulkChange, ApiProblem> {
        self.key_admin().change_keys(selection.to_key_selection()?, decision, expect).await
    }

    /// A form that nobody has filled in yet, but for the form of the service's own responses.
    fn new_draft(&self, example: Option<&ResponseExample>) -> FormParams {
        let Some(example) = example else { return FormParams::new(&[("name", &self.visitor.name)]) };
        let kind = example.content_type.as_ref().map(|kind| format!("Content-Type: {kind}")).unwrap_or_default();
        FormParams::new(&[("name", &self.visitor.name), ("status", example.status.as_str()), ("headers", &kind)])
    }

    /// The actor for the audit log: the person who has signed in, or the name that the form claims.
    fn actor(&self, form: &FormParams) -> Result<String, ApiProblem> {
        match &self.visitor.person {
            Some(person) => Ok(person.actor(self.peer)),
            None if form.text("name").is_empty() => {
                Err(ApiProblem::bad("name", "is empty: the audit log needs to know who you are"))
            }
            None => Ok(remote_actor(self.peer, Some(form.text("name").as_bytes()))),
        }
    }
}

fn read_bulk_change(params: &FormParams) -> Result<(ActionKind, SelectionForm), ApiProblem> {
    let action = parse_action(params.get("step"));
    let action = action.ok_or_else(|| ApiProblem::bad("step", "is not a decision"))?;
    Ok((action, SelectionForm::from_params(params)))
}

/// Explains a refusal on a page that has a checkbox for the risk.
fn explain_problem(problem: &ApiProblem) -> String {
    let detail = problem.detail.replace(" or an explicit `\"body\": \"\"`", "");
    let detail = detail.replace("use accept_risk", "tick the box below");
    format!("It was not done: {detail}.")
}
