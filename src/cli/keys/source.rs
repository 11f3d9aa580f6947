//! Where keys are looked at: through a running instance, or straight in the store.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode};
use serde_json::Value;
use tokio::sync::watch;

use super::super::client::{Instance, Met, NotMet, Unanswered};
use super::super::{Ended, load_without_service};
use crate::admin::desk::{self, Desk, Question, Verb};
use crate::config::Location;
use crate::store::{self, OpenError, Settings};

/// Changes of many keys take their time, and a purge waits for a lease.
const ANSWER_MAX: Duration = Duration::from_secs(600);

/// The desk, near or far.
pub(super) enum Source {
    /// Of an instance.
    Instance(Met),
    /// Of our own, on the store.
    Store(Box<Desk>, Location),
}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(met) => write!(f, "through the instance at {}", met.address),
            Self::Store(_, location) => write!(f, "in {location}"),
        }
    }
}

impl Source {
    /// An instance, if one listens where one should; else the store that the configuration names.
    pub async fn open(instance: &Instance) -> Result<Self, Ended> {
        match instance.meet().await {
            Ok(met) => Ok(Self::Instance(met)),
            Err(NotMet::Unanswered(address, Unanswered::Gone)) if !instance.is_named() => {
                Self::store(instance, address).await
            }
            Err(why) => Err(why.into()),
        }
    }

    async fn store(instance: &Instance, nobody: SocketAddr) -> Result<Self, Ended> {
        let config = load_without_service(&instance.file)?;
        let location = config.store.location.clone();
        let missing = |why: String| Ended::Store(location.clone(), OpenError::Missing(why.into()));
        match &location {
            Location::Memory => {
                return Err(missing(format!("it is within an instance, and none answers at {nobody}")));
            }
            // Looking must not make a file.
            Location::Sqlite(path) if !path.exists() => return Err(missing("there is no such file".into())),
            Location::Postgres(_) | Location::Sqlite(_) => {}
        }
        // Nor change a schema that an older instance uses.
        let settings = Settings { migrate: false, ..Settings::from(&config.store) };
        let store = store::open(&settings).await.map_err(|error| {
            if let OpenError::InUse { .. } = error {
                eprintln!("oncegate: no instance answers at {nobody}; say where it is with --admin");
            }
            Ended::Store(location.clone(), error)
        })?;
        let (_, config) = watch::channel(Arc::new(config));
        Ok(Self::Store(Box::new(Desk::new(store, config)), location))
    }

    /// Asks, and tells a refusal as an error.
    pub async fn ask(&self, verb: Verb, id: &str, query: &str, body: Option<Value>) -> Result<Value, Ended> {
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        // Where there is no such variable there is nobody to name.
        let user = ["ONCEGATE_ACTOR", "USER", "LOGNAME"].iter().find_map(std::env::var_os).unwrap_or_default();
        let user = user.as_encoded_bytes();
        let (status, answer) = match self {
            Self::Store(desk, _) => {
                if body.len() > desk::BODY_BYTES_MAX {
                    return Err(told(
                        &desk::document(&desk::body_too_large(desk::BODY_BYTES_MAX)),
                        StatusCode::PAYLOAD_TOO_LARGE,
                    ));
                }
                let actor = desk::actor_here(Some(user));
                match desk.answer(Question { verb, id, query, body: &body, actor }).await {
                    Ok(answer) => (StatusCode::OK, answer),
                    Err(problem) => (problem.status, desk::document(&problem)),
                }
            }
            Self::Instance(met) => {
                if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    return Err(Ended::Usage(format!("{id:?} is no id: ids are hexadecimal digits")));
                }
                let (method, path) = place(verb, id);
                let mut request = Request::builder().method(method).uri(format!("{path}?{query}"));
                if let Ok(user) = http::HeaderValue::from_bytes(user) {
                    request = request.header("x-oncegate-actor", user);
                }
                let asked = met.ask(request, Bytes::from(body), ANSWER_MAX).await;
                asked.map_err(|error| Ended::Other(format!("{}: {error}", met.address).into()))?
            }
        };
        if status.is_success() { Ok(answer) } else { Err(told(&answer, status)) }
    }
}

/// Where the admin listener answers it.
fn place(verb: Verb, id: &str) -> (Method, String) {
    match verb {
        Verb::Act => (Method::POST, "/api/v1/keys/actions".into()),
        Verb::Audit => (Method::GET, "/api/v1/audit".into()),
        Verb::List => (Method::GET, "/api/v1/keys".into()),
        Verb::Purge => (Method::DELETE, format!("/api/v1/keys/{id}")),
        Verb::Release => (Method::POST, format!("/api/v1/keys/{id}/release")),
        Verb::Requeue => (Method::POST, format!("/api/v1/keys/{id}/requeue")),
        Verb::Resolve => (Method::POST, format!("/api/v1/keys/{id}/resolve")),
        Verb::Show => (Method::GET, format!("/api/v1/keys/{id}")),
        Verb::Stats => (Method::GET, "/api/v1/stats".into()),
    }
}

/// A refusal: what was asked wrongly is usage, all else has failed.
fn told(answer: &Value, status: StatusCode) -> Ended {
    let detail = answer["detail"].as_str().or(answer["error"].as_str());
    let detail = detail.map_or_else(|| format!("the instance answers {status}"), str::to_owned);
    let detail = by_flags(&detail, answer["field"].as_str());
    match status {
        StatusCode::BAD_REQUEST => Ended::Usage(detail),
        _ => Ended::Other(detail.into()),
    }
}

/// A refusal as somebody at a shell knows its parts: by the flags, not by the API's fields.
fn by_flags(detail: &str, field: Option<&str>) -> String {
    let flag = match field {
        Some("id" | "ids") => Some("ID"),
        Some("status") => Some("--completed"),
        Some("headers") => Some("--header"),
        Some("body_base64") => Some("--body"),
        Some("older_than") => Some("--older-than"),
        Some("body") => Some("--body"),
        Some("key") => Some("--key"),
        Some("limit") => Some("--limit"),
        Some("note") => Some("--note"),
        Some("route") => Some("--route"),
        Some("scope") => Some("--scope"),
        Some("state") => Some("--state"),
        _ => None,
    };
    let detail = match (field, flag) {
        (Some(field), Some(flag)) => detail.replacen(&format!("`{field}`"), &format!("`{flag}`"), 1),
        _ => detail.to_owned(),
    };
    detail.replace("accept_risk overrules", "--accept-risk overrules")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_what_was_typed() {
        assert_eq!(by_flags("`older_than` has no unit", Some("older_than")), "`--older-than` has no unit");
        assert_eq!(by_flags("`status` is missing", Some("status")), "`--completed` is missing");
        assert_eq!(by_flags("it is unknown; accept_risk overrules", None), "it is unknown; --accept-risk overrules");
        assert_eq!(by_flags("`key` has gone", None), "`key` has gone");
    }
}
