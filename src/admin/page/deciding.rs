//! The pages on which something is decided: first what it means and what follows, then a form, then that it is done.

use std::collections::BTreeMap;

use askama::Template;
use http::{Response, StatusCode};
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::looking::Filter;
use super::seen::{Key, read};
use super::words::{self, Step};
use super::{Frame, Pairs, Visit, html, see_other};
use crate::admin::desk::Verb;
use crate::admin::desk::problem::Problem;
use crate::body::Body;

/// What somebody has typed in, to be shown again where it does not take.
struct Draft {
    name: String,
    note: String,
    status: String,
    headers: String,
    body: String,
    accept_risk: bool,
}

impl Draft {
    fn empty(name: &str) -> Self {
        Self {
            name: name.to_owned(),
            note: String::new(),
            status: "200".to_owned(),
            headers: "Content-Type: application/json".to_owned(),
            body: String::new(),
            accept_risk: false,
        }
    }

    fn of(form: &Pairs) -> Self {
        let text = |name: &str| form.get(name).trim().to_owned();
        Self {
            name: text("name"),
            note: text("note"),
            status: text("status"),
            headers: text("headers"),
            // Browsers end lines as mail does.
            body: form.get("body").replace("\r\n", "\n"),
            accept_risk: form.get("accept_risk") == "true",
        }
    }

    /// What is asked of the desk.
    fn asks(&self, step: Step) -> Result<Map<String, Value>, Problem> {
        if self.name.is_empty() {
            return Err(Problem::bad("name", "is empty: the audit log wants to know who you are"));
        }
        let mut fields = Map::new();
        if let (_, _, Some(outcome)) = step.asks() {
            fields.insert("outcome".into(), outcome.into());
        }
        if self.accept_risk {
            fields.insert("accept_risk".into(), true.into());
        }
        if !self.note.is_empty() {
            fields.insert("note".into(), self.note.as_str().into());
        }
        if step == Step::Completed {
            let status = self.status.parse::<u16>();
            let status = status.map_err(|_| Problem::bad("status", "is no status from 200 to 599"))?;
            let field = |line: &str| match line.split_once(':') {
                Some((name, value)) => Ok(json!([name.trim(), value.trim()])),
                None => Err(Problem::bad("headers", "has a line without a colon: write `Name: value`")),
            };
            let lines = self.headers.lines().filter(|line| !line.trim().is_empty());
            fields.insert("status".into(), status.into());
            fields.insert("headers".into(), lines.map(field).collect::<Result<Value, _>>()?);
            fields.insert("body".into(), self.body.as_str().into());
        }
        Ok(fields)
    }
}

#[derive(Template)]
#[template(path = "change.html")]
struct Change {
    frame: Frame,
    step: Step,
    key: Key,
    draft: Draft,
    /// What is accepted by accepting the risk, where there is one.
    risk: Option<&'static str>,
    /// Whether it is not done without.
    needs_risk: bool,
    trouble: Option<String>,
}

#[derive(Template)]
#[template(path = "several.html")]
struct Several {
    frame: Frame,
    step: Step,
    filter: Filter,
    draft: Draft,
    counted: Counted,
    risk: Option<&'static str>,
    trouble: Option<String>,
}

/// How many keys a change would be about, or was.
#[derive(Debug, Default, Deserialize)]
struct Counted {
    count: u64,
    changed: u64,
    #[serde(default)]
    by_state: BTreeMap<String, u64>,
    refused_count: u64,
    #[serde(default)]
    refused: Vec<Refused>,
    #[serde(default)]
    instances_behind: u64,
}

#[derive(Debug, Default, Deserialize)]
struct Refused {
    code: String,
}

impl Counted {
    /// Why keys were refused, as far as they are told: each reason once.
    fn codes(&self) -> Vec<&str> {
        let mut codes: Vec<_> = self.refused.iter().map(|refused| &*refused.code).collect();
        codes.sort_unstable();
        codes.dedup();
        codes
    }

    fn why(&self) -> String {
        self.codes().into_iter().map(words::refusal).collect::<Vec<_>>().join("; or ")
    }
}

impl Visit<'_> {
    /// What a decision about one key means, and the form for it.
    pub(super) async fn change_page(&self, id: &str, step: Step) -> Result<Response<Body>, Problem> {
        let key: Key = read(self.ask(Verb::Show, id, "", None).await?);
        Ok(self.ask_about(StatusCode::OK, step, key, Draft::empty(&self.visitor.name), None).await)
    }

    /// Carries a decision about one key out, if the key is still as it was seen.
    pub(super) async fn change(&self, id: &str, step: Step, form: &Pairs) -> Result<Response<Body>, Problem> {
        let key: Key = read(self.ask(Verb::Show, id, "", None).await?);
        let draft = Draft::of(form);
        if form.get("seen") != key.seen() {
            let trouble = format!(
                "The key has changed since you looked: it is {} now, after attempt {}. Nothing was done. Look again.",
                key.state, key.attempts
            );
            return Ok(self.ask_about(StatusCode::CONFLICT, step, key, draft, Some(trouble)).await);
        }
        let done = match draft.asks(step) {
            Ok(fields) => self.ask_as(&draft.name, step.asks().0, &key.id, "", Some(Value::Object(fields))).await,
            Err(problem) => Err(problem),
        };
        match done {
            Ok(told) => {
                let behind = told["instances_behind"].as_u64().unwrap_or(0);
                Ok(see_other(&format!("/keys/{}?done={}&behind={behind}", key.id, step.name())))
            }
            Err(problem) => {
                let trouble = format!("It was not done: {}.", in_words(&problem));
                Ok(self.ask_about(problem.status, step, key, draft, Some(trouble)).await)
            }
        }
    }

    async fn ask_about(
        &self,
        status: StatusCode,
        step: Step,
        key: Key,
        draft: Draft,
        trouble: Option<String>,
    ) -> Response<Body> {
        let risk = step.risk(&key.state).filter(|_| !(step == Step::NotExecuted && key.quiet));
        let needs_risk = step == Step::Purge && risk.is_some();
        html(status, &Change { frame: self.frame().await, step, key, draft, risk, needs_risk, trouble })
    }

    /// How many keys a decision would be about, what it means, and the form for it.
    pub(super) async fn several_page(&self) -> Result<Response<Body>, Problem> {
        let (step, filter) = which(&self.query)?;
        self.ask_about_several(StatusCode::OK, step, filter, Draft::empty(&self.visitor.name), None).await
    }

    /// Carries a decision about several keys out: about so many as were counted, and no more.
    pub(super) async fn several(&self, form: &Pairs) -> Result<Response<Body>, Problem> {
        let (step, filter) = which(form)?;
        let draft = Draft::of(form);
        let expect = form.get("expect").parse::<u64>().map_err(|_| Problem::bad("expect", "is no count"))?;
        let done = match draft.asks(step) {
            Ok(mut fields) => {
                fields.insert("expect".into(), expect.into());
                self.act(&draft.name, step, &filter, fields).await
            }
            Err(problem) => Err(problem),
        };
        match done {
            Ok(told) => {
                let (changed, refused, behind) = (told.changed, told.refused_count, told.instances_behind);
                let (step, why) = (step.name(), told.codes().join("."));
                Ok(see_other(&format!("/?done={step}&changed={changed}&refused={refused}&why={why}&behind={behind}")))
            }
            Err(problem) => {
                let trouble = format!("It was not done: {}.", in_words(&problem));
                self.ask_about_several(problem.status, step, filter, draft, Some(trouble)).await
            }
        }
    }

    async fn ask_about_several(
        &self,
        status: StatusCode,
        step: Step,
        filter: Filter,
        draft: Draft,
        trouble: Option<String>,
    ) -> Result<Response<Body>, Problem> {
        // What is counted does not hang on the response that retries shall get.
        let mut fields = Draft::empty("nobody").asks(step)?;
        if draft.accept_risk {
            fields.insert("accept_risk".into(), true.into());
        }
        let counted = self.act("", step, &filter, fields).await?;
        let risks = counted.by_state.keys().map(String::as_str).chain([&*filter.state]);
        let risk = risks.into_iter().find_map(|state| step.risk(state));
        let page = Several { frame: self.frame().await, step, filter, draft, counted, risk, trouble };
        Ok(html(status, &page))
    }

    async fn act(
        &self,
        name: &str,
        step: Step,
        filter: &Filter,
        mut fields: Map<String, Value>,
    ) -> Result<Counted, Problem> {
        fields.insert("action".into(), step.asks().1.into());
        let conditions: BTreeMap<_, _> = filter.conditions().into_iter().collect();
        fields.insert("filter".into(), json!(conditions));
        Ok(read(self.ask_as(name, Verb::Act, "", "", Some(Value::Object(fields))).await?))
    }
}

/// What is decided, and about which keys. All keys at once are for the command line.
fn which(said: &Pairs) -> Result<(Step, Filter), Problem> {
    let step = Step::parse(said.get("step")).ok_or_else(|| Problem::bad("step", "is nothing that can be decided"))?;
    Ok((step, Filter::of(said)))
}

/// A refusal, in the words of a page that has a box to tick.
fn in_words(problem: &Problem) -> String {
    problem.detail.replace("accept_risk overrules", "the box below overrules")
}
