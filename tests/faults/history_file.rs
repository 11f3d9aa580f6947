//! The history as JSON lines in the form of Jepsen's histories, for checkers that share no code with ours. `history.md`
//! describes the lines.

use std::collections::{BTreeSet, HashMap};
use std::fs::{File, create_dir_all};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

use data_encoding::HEXLOWER;
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::fault::Injection;
use crate::history::{Answer, AnswerKind, Effect, History, Op, ServiceCall, TargetRoute};

/// The folder of the histories, if they are wanted.
const FOLDER: &str = "ONCEGATE_TORTURE_HISTORY";

/// What a line is about.
#[derive(Clone, Copy)]
enum Event<'a> {
    FaultBegan(&'a Injection),
    Invoked(&'a Op),
    Happened(&'a Effect),
    Served(&'a ServiceCall),
    Completed(&'a Op),
    FaultEnded(&'a Injection),
}

/// Returns the folder of the histories and of the results, if they are wanted.
pub fn wanted_folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

/// Writes the history to a file of that name, if `ONCEGATE_TORTURE_HISTORY` names a folder. Returns the file's path.
pub fn write_if_wanted(name: &str, start: Value, history: &History, injections: &[Injection]) -> Option<PathBuf> {
    let folder = wanted_folder()?;
    create_dir_all(&folder).unwrap();
    let path = folder.join(name).with_extension("jsonl");
    write(&path, start, history, injections).unwrap();
    Some(path)
}

/// Writes all lines in the order of time. `start` is the value of the first one.
pub fn write(path: &Path, start: Value, history: &History, injections: &[Injection]) -> io::Result<()> {
    let mut file = BufWriter::new(File::create(path)?);
    let mut processes = Processes::default();
    let first = line(Duration::ZERO, json!("nemesis"), "info", "start", start);
    let lines = events(history, injections).into_iter().map(|(time, event)| to_line(time, event, &mut processes));
    for (index, mut line) in [first].into_iter().chain(lines).enumerate() {
        line["index"] = json!(index);
        writeln!(file, "{line}")?;
    }
    file.flush()
}

fn events<'a>(history: &'a History, injections: &'a [Injection]) -> Vec<(Duration, Event<'a>)> {
    let mut events = Vec::new();
    events.extend(injections.iter().map(|injection| (injection.began, Event::FaultBegan(injection))));
    events.extend(history.ops.iter().map(|op| (op.invoked, Event::Invoked(op))));
    events.extend(history.effects.iter().map(|effect| (effect.at, Event::Happened(effect))));
    events.extend(history.service_calls.iter().map(|call| (call.ended, Event::Served(call))));
    events.extend(history.ops.iter().map(|op| (op.returned, Event::Completed(op))));
    events.extend(injections.iter().map(|injection| (injection.ended, Event::FaultEnded(injection))));
    // The sort is stable, so that of one moment's events the invocation comes first.
    events.sort_by_key(|(time, _)| *time);
    events
}

/// The logical processes: each has one request at a time, and none after one whose outcome it does not know.
#[derive(Default)]
struct Processes {
    free: BTreeSet<usize>,
    started: usize,
    busy: HashMap<u64, usize>,
}

impl Processes {
    fn take(&mut self, op: u64) -> usize {
        let process = self.free.pop_first().unwrap_or_else(|| {
            self.started += 1;
            self.started - 1
        });
        self.busy.insert(op, process);
        process
    }

    fn give_back(&mut self, op: u64, is_certain: bool) -> usize {
        let process = self.busy.remove(&op).unwrap();
        if is_certain {
            self.free.insert(process);
        }
        process
    }
}

fn to_line(time: Duration, event: Event<'_>, processes: &mut Processes) -> Value {
    match event {
        Event::FaultBegan(injection) | Event::FaultEnded(injection) => {
            let phase = if matches!(event, Event::FaultBegan(_)) { "start" } else { "end" };
            let value = json!({ "phase": phase, "proxy": injection.proxy });
            line(time, json!("nemesis"), "info", &injection.fault, value)
        }
        Event::Invoked(op) => line(time, json!(processes.take(op.id)), "invoke", f(op.route), request(op)),
        Event::Happened(effect) => line(time, json!("service"), "info", "effect", effect_value(effect)),
        Event::Served(call) => line(time, json!("service"), "info", "call", call_value(call)),
        Event::Completed(op) => {
            let (kind, outcome) = certainty(op.kind());
            let mut value = request(op);
            value["outcome"] = json!(outcome);
            if let Some(answer) = &op.answer {
                value["status"] = json!(answer.status);
                value["effect"] = json!(answer.effect);
                value["response"] = json!(digest(answer));
                value["operation"] = json!(answer.operation);
            }
            line(time, json!(processes.give_back(op.id, kind != "info")), kind, f(op.route), value)
        }
    }
}

fn line(time: Duration, process: Value, kind: &str, f: &str, value: Value) -> Value {
    let time = u64::try_from(time.as_nanos()).unwrap();
    json!({ "time": time, "process": process, "type": kind, "f": f, "value": value })
}

fn f(route: TargetRoute) -> &'static str {
    match route {
        TargetRoute::Pay | TargetRoute::Placed | TargetRoute::Refreshed => "pay",
        TargetRoute::Later | TargetRoute::Preferred => "enqueue",
        TargetRoute::Batched => "batch",
        TargetRoute::Messages => "publish",
    }
}

fn request(op: &Op) -> Value {
    let Op { id, name, body, proxy, last, .. } = op;
    json!({ "op": id, "caller": name.caller, "key": name.key, "body": body, "proxy": proxy, "last": last })
}

fn effect_value(effect: &Effect) -> Value {
    let Effect { id, op, name, body, attempt, .. } = effect;
    json!({
        "effect": id, "op": op, "caller": name.caller, "key": name.key, "body": body,
        "record": attempt.record, "attempt": attempt.number,
    })
}

fn call_value(call: &ServiceCall) -> Value {
    let ServiceCall { op, name, attempt, began, was_refused, .. } = call;
    json!({
        "op": op, "caller": name.caller, "key": name.key, "record": attempt.record, "attempt": attempt.number,
        "began": u64::try_from(began.as_nanos()).unwrap(), "refused": was_refused,
    })
}

/// Whether the request is confirmed (`ok`), was not executed by itself (`fail`), or is either (`info`), and the
/// outcome's name.
fn certainty(kind: Option<AnswerKind>) -> (&'static str, &'static str) {
    match kind {
        None => ("info", "no-answer"),
        Some(AnswerKind::First) => ("ok", "executed"),
        Some(AnswerKind::Replay) => ("ok", "replayed"),
        Some(AnswerKind::Accepted) => ("ok", "accepted"),
        Some(AnswerKind::Unstored) => ("info", "unstored"),
        Some(AnswerKind::Released) => ("fail", "released"),
        Some(AnswerKind::Broken) => ("info", "broken"),
        Some(AnswerKind::Unknown) => ("fail", "unknown"),
        Some(AnswerKind::InFlight) => ("fail", "in-flight"),
        Some(AnswerKind::Misuse) => ("fail", "key-reused"),
        Some(AnswerKind::Rejected) => ("fail", "rejected"),
        Some(AnswerKind::Nonsense) => ("info", "undocumented"),
    }
}

/// A hash of all that two answers to one key must have in common.
fn digest(answer: &Answer) -> String {
    let Answer { status, body, fields, .. } = answer;
    HEXLOWER.encode(&Sha256::digest(format!("{status} {body:?} {fields:?}"))[..8])
}
