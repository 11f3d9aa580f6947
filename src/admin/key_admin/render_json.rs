//! The typed results as JSON, for the API and for `oncegate keys`.

use std::time::SystemTime;

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Map, Value, json};

use super::dto::{
    AdminResponse, AuditLog, BulkChange, InstanceStats, KeyChange, KeyDetails, KeyList, KeyStats, ResponseSummary,
};
use super::problem::{ApiProblem, ProblemMember};
use super::timeline::{TimelineEvent, timeline};
use crate::domain::rfc3339;
use crate::domain::state::StateKind;
use crate::store::admin::{AuditEntry, KeyEntry};

/// Renders a result.
pub fn render_response(response: &AdminResponse) -> Value {
    match response {
        AdminResponse::Audit(log) => render_audit_log(log),
        AdminResponse::BulkChange(change) => render_bulk_change(change),
        AdminResponse::Change(change) => render_change(change),
        AdminResponse::Details(details) => render_details(details),
        AdminResponse::List(list) => render_list(list),
        AdminResponse::Stats(stats) => render_stats(stats),
    }
}

/// Renders a problem document (RFC 9457).
pub fn render_problem(problem: &ApiProblem) -> Value {
    let status = problem.status();
    let mut document = json!({
        "type": "about:blank",
        "title": status.canonical_reason().unwrap_or("Error"),
        "status": status.as_u16(),
        "detail": problem.detail,
        "code": problem.code.name(),
    });
    for member in &problem.members {
        let (name, value) = match member {
            ProblemMember::Changed(count) => ("changed", (*count).into()),
            ProblemMember::Count(count) => ("count", (*count).into()),
            ProblemMember::Field(name) => ("field", name.as_str().into()),
            ProblemMember::Id(id) => ("id", id.as_str().into()),
            ProblemMember::QuietIn(left) => ("quiet_in_ms", u64::try_from(left.as_millis()).unwrap_or(u64::MAX).into()),
            ProblemMember::Route(name) => ("route", name.as_str().into()),
            ProblemMember::Service(name) => ("service", name.as_str().into()),
            ProblemMember::State(state) => ("state", state.name().into()),
        };
        document[name] = value;
    }
    document
}

fn render_list(list: &KeyList) -> Value {
    json!({
        "keys": list.keys.iter().map(render_entry).collect::<Vec<_>>(),
        "next_cursor": list.next.map(|next| next.to_string()),
    })
}

/// A key as a list shows it: without its token, and of its response only the status and the body's length.
fn render_entry(entry: &KeyEntry) -> Value {
    let mut rendered = json!({
        "id": entry.id.to_string(),
        "key": String::from_utf8_lossy(&entry.key),
        "scope": entry.scope.to_string(),
        "space": entry.space.to_string(),
        "route": entry.route,
        "state": entry.state.name(),
        "attempts": entry.attempts,
        "created_at": rfc3339::format(entry.created_at),
        "reserved_at": rfc3339::format(entry.reserved_at),
        "deadline": rfc3339::format(entry.deadline),
        "settled_at": render_time(entry.settled_at),
        "expires_at": render_time(entry.expires_at),
        "lapsed": entry.lapsed(),
        "instance": entry.instance.to_string(),
        "status": entry.status,
        "body_bytes": entry.body_bytes,
        "probes": entry.probes,
        "absences": entry.absences,
        "probe_at": render_time(entry.probe_at),
        "accepted_at": render_time(entry.accepted_at),
        "cause": entry.cause.map(|cause| cause.to_string()),
    });
    if str::from_utf8(&entry.key).is_err() {
        rendered["key_base64"] = BASE64_STANDARD.encode(&entry.key).into();
    }
    rendered
}

fn render_details(details: &KeyDetails) -> Value {
    let mut key = render_entry(&details.entry);
    key["path"] = details.entry.path.clone().into();
    key["quiet"] = details.is_quiet.into();
    key["quiet_at"] = render_time(details.quiet_at);
    key["recovery_point"] = details.recovery_point.as_ref().map(ToString::to_string).into();
    key["fingerprint"] = match &details.fingerprint {
        Some(fingerprint) => json!({ "hash": fingerprint.hash, "recipe": fingerprint.recipe }),
        None => Value::Null,
    };
    key["response"] = match &details.response {
        Some(ResponseSummary::Stored { status, headers, trailers, body_bytes }) => json!({
            "status": status.as_u16(),
            "headers": headers,
            "trailers": trailers,
            "body_kept": body_bytes.is_some(),
            "body_bytes": body_bytes,
        }),
        Some(ResponseSummary::Corrupt(row)) => json!({ "corrupt": row.to_string() }),
        None => Value::Null,
    };
    key["timeline"] = timeline(&details.entry, &details.audit).iter().map(render_event).collect();
    key["audit"] = details.audit.iter().map(render_audit_entry).collect();
    key
}

fn render_event(event: &TimelineEvent) -> Value {
    match event {
        TimelineEvent::Attempt(attempt) => json!({
            "event": "attempt",
            "at": rfc3339::format(attempt.began_at),
            "attempt": attempt.number,
            "instance": attempt.instance.to_string(),
            "ended_at": render_time(attempt.ended_at),
            "duration_ms": attempt.duration().map(|took| u64::try_from(took.as_millis()).unwrap_or(u64::MAX)),
            "state": attempt.state.map(StateKind::name),
            "cause": attempt.cause.map(|cause| cause.to_string()),
        }),
        TimelineEvent::Decision(entry) => {
            let mut rendered = render_audit_entry(entry);
            rendered["event"] = "decision".into();
            rendered
        }
    }
}

fn render_audit_log(log: &AuditLog) -> Value {
    json!({
        "entries": log.entries.iter().map(render_audit_entry).collect::<Vec<_>>(),
        "next_cursor": log.next.map(|place| place.to_string()),
    })
}

fn render_audit_entry(entry: &AuditEntry) -> Value {
    json!({
        "at": rfc3339::format(entry.at),
        "actor": entry.actor,
        "action": entry.action,
        "id": entry.id.to_string(),
        "before": entry.before,
        "after": entry.after,
        "note": entry.note,
    })
}

fn render_stats(stats: &KeyStats) -> Value {
    let counts = stats.counts.counts.iter().map(
        |count| json!({ "route": count.route, "state": count.state.name(), "keys": count.keys, "exact": count.exact }),
    );
    let without_route = stats.without_route.iter().map(|gone| {
        let keys: Map<_, _> = gone.keys.iter().map(|(state, keys)| (state.name().into(), (*keys).into())).collect();
        json!({ "route": gone.route, "keys": keys })
    });
    let mut rendered = json!({
        "service": &*stats.service,
        "counts": counts.collect::<Vec<_>>(),
        "without_route": without_route.collect::<Vec<_>>(),
        "sample": { "rows": stats.counts.sampled, "share": stats.counts.share },
    });
    if let Some(InstanceStats { instance, callers, unguarded, renewed }) = &stats.instance {
        let callers = callers.iter().map(|caller| {
            json!({
                "scope": caller.scope.to_string(),
                "duplicates": caller.duplicates,
                "mismatches": caller.mismatches,
            })
        });
        let unguarded = unguarded.iter().map(|path| {
            json!({
                "method": path.method,
                "path": path.path,
                "requests": path.requests,
                "with_key": path.with_key,
                "at_most_more": path.at_most_more,
            })
        });
        let renewed = renewed
            .iter()
            .map(|part| json!({ "route": &*part.route, "part": &*part.part, "responses": part.responses }));
        rendered["callers"] = callers.collect();
        rendered["renewed_scope_parts"] = renewed.collect();
        rendered["unguarded"] = unguarded.collect();
        rendered["instance"] = instance.to_string().into();
    }
    rendered
}

fn render_change(change: &KeyChange) -> Value {
    let mut rendered = json!({
        "id": change.id.to_string(),
        "action": change.action,
        "before": change.before.name(),
        "after": change.after.map_or("none", StateKind::name),
    });
    if let Some(behind) = change.instances_behind {
        rendered["instances_behind"] = behind.into();
    }
    rendered
}

fn render_bulk_change(change: &BulkChange) -> Value {
    let by_state: Map<_, _> =
        change.by_state.iter().map(|(state, count)| (state.name().to_owned(), Value::from(*count))).collect();
    let refused = change.refused.iter().map(|refused| {
        let mut rendered = render_problem(&refused.problem);
        rendered["id"] = refused.id.as_str().into();
        rendered
    });
    let mut rendered = json!({
        "action": change.action,
        "count": change.count,
        "by_state": by_state,
        "changed": change.changed.unwrap_or(0),
        "dry_run": change.changed.is_none(),
        "refused": refused.collect::<Vec<_>>(),
        "refused_count": change.refused_count,
    });
    if let Some(behind) = change.instances_behind {
        rendered["instances_behind"] = behind.into();
    }
    rendered
}

fn render_time(time: Option<SystemTime>) -> Value {
    time.map(rfc3339::format).into()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::problem::ProblemCode;
    use super::*;

    #[test]
    fn a_problem_is_a_document_with_its_members() {
        let plain = render_problem(&ApiProblem::no_such_key());
        let expected = json!({ "type": "about:blank", "title": "Not Found", "status": 404, "code": "no-such-key",
                               "detail": "there is no key with this id; it may have been forgotten" });
        assert_eq!(plain, expected);
        let members = [
            ProblemMember::Changed(1),
            ProblemMember::Count(2),
            ProblemMember::Field("f".into()),
            ProblemMember::Id("i".into()),
            ProblemMember::QuietIn(Duration::from_millis(1500)),
            ProblemMember::Route("r".into()),
            ProblemMember::Service("s".into()),
            ProblemMember::State(StateKind::InFlight),
        ];
        let problem = ApiProblem { members: members.into(), ..ApiProblem::new(ProblemCode::NotQuiet, "d") };
        let expected = json!({ "type": "about:blank", "title": "Conflict", "status": 409, "code": "not-quiet",
                               "detail": "d", "changed": 1, "count": 2, "field": "f", "id": "i", "quiet_in_ms": 1500,
                               "route": "r", "service": "s", "state": "in_flight" });
        assert_eq!(render_problem(&problem), expected);
    }
}
