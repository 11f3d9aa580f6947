//! Access to keys: through a running instance, or straight in the store.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use http::StatusCode;
use serde_json::Value;

use super::super::client::{Connected, InstanceArguments, explain_refusal, user};
use super::super::{CommandError, failed, load_without_service, require_file};
use crate::app::StartError;
use oncegate_admin::{self as admin, AdminMethod, AdminRequest};
use oncegate_settings::{Config, StartConfig, StoreLocation};
use oncegate_store::{self as store, OpenError, Store, StoreSettings, salts};

/// The time for a response: changes of many keys take long, and a purge waits for a lease.
const RESPONSE_MAX: Duration = Duration::from_secs(600);

/// The place where requests about keys are answered.
pub(in crate::cli) enum KeyAdminSource {
    Instance(Connected),
    /// This process, on the store.
    Store(Arc<Store>, Arc<StartConfig>, Arc<Config>, Arc<str>),
}

impl fmt::Display for KeyAdminSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Instance(instance) => write!(f, "through the instance at {}", instance.address),
            Self::Store(_, start, ..) => write!(f, "in {}", start.store.url),
        }
    }
}

impl KeyAdminSource {
    /// Opens the instance, if one listens where it should; else the store that the configuration names.
    pub async fn open(arguments: &InstanceArguments) -> Result<Self, CommandError> {
        match arguments.connect().await? {
            Some(instance) => Ok(Self::Instance(instance)),
            None if arguments.is_named() => Err(arguments.nobody_listens()),
            None => Self::open_store(arguments, arguments.address()?).await,
        }
    }

    async fn open_store(arguments: &InstanceArguments, silent: SocketAddr) -> Result<Self, CommandError> {
        let config = load_without_service(&arguments.file)?;
        let location = config.start.store.url.clone();
        let service = match arguments.service()? {
            Some(named) if config.live.service(&named).is_some() => named,
            None if config.live.services.len() == 1 => Arc::clone(&config.live.services[0].name),
            _ => {
                let names = config.live.service_names().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                return Err(CommandError::Usage(format!("the file has the services {names}: name one with --service")));
            }
        };
        if let StoreLocation::Memory = location {
            let inside = format!("it is inside an instance, and none answers at {silent}");
            return Err(CommandError::Store(location, OpenError::Missing(inside.into())));
        }
        require_file(&location, &arguments.file)?;
        // Nor may it change a schema that an older instance uses.
        let settings = StoreSettings { migrate: false, ..StoreSettings::from(&config) };
        let store = store::open(&settings).await.map_err(|error| {
            if let OpenError::InUse { .. } = error {
                eprintln!("oncegate: no instance answers at {silent}; say with --admin where it is");
            }
            CommandError::Store(location.clone(), error)
        })?;
        if config.start.store.encrypt {
            // No instance could replay a response that is encrypted under another secret than theirs.
            let checked = salts::check_current(&store, &service, &config.live.secrets).await;
            checked.map_err(|error| CommandError::Failure(StartError::Salt(error)))?;
        }
        let (start, config) = (config.start, config.live);
        Ok(Self::Store(store, Arc::new(start), Arc::new(config), service))
    }

    /// Sends a request, and returns the response's JSON, or a refusal as an error.
    pub async fn request(
        &self,
        method: AdminMethod,
        id: &str,
        query: &str,
        body: Option<Value>,
    ) -> Result<Value, CommandError> {
        let (status, answer) = self.send(method, id, query, body).await?;
        check(status, answer)
    }

    /// Sends a request, and returns the response's status and JSON.
    pub async fn send(
        &self,
        method: AdminMethod,
        id: &str,
        query: &str,
        body: Option<Value>,
    ) -> Result<(StatusCode, Value), CommandError> {
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        Ok(match self {
            Self::Store(store, start, config, service) => {
                let request = AdminRequest {
                    method,
                    id,
                    query,
                    body: &body,
                    actor: admin::terminal_actor(user().as_encoded_bytes()),
                };
                admin::answer_on_store(store, start, Arc::clone(config), Arc::clone(service), request).await
            }
            Self::Instance(instance) => {
                if !id.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                    let remedy = "ids are hexadecimal digits, and `oncegate keys list --key KEY` shows that of a key";
                    return Err(CommandError::Usage(format!("`ID` {id:?} is not an id: {remedy}")));
                }
                let (method, path) = admin::endpoint_of(method, id);
                let response = instance.request(method, &format!("{path}?{query}"), body.into(), RESPONSE_MAX).await;
                response.map_err(|error| failed(format!("{}: {error}", instance.address)))?
            }
        })
    }
}

/// Returns the answer, or a refusal as an error: a wrong request is wrong usage, all else is a failure.
pub(super) fn check(status: StatusCode, answer: Value) -> Result<Value, CommandError> {
    if status.is_success() {
        return Ok(answer);
    }
    let detail = name_flags(&explain_refusal(status, &answer), answer["field"].as_str());
    Err(match status {
        StatusCode::BAD_REQUEST => CommandError::Usage(detail),
        _ => failed(detail),
    })
}

/// Names the flags of the command line in a refusal, in place of the API's fields.
pub(super) fn name_flags(detail: &str, field: Option<&str>) -> String {
    let flag = match field {
        Some("id" | "ids") => "ID",
        Some("status") => "--completed",
        Some("headers") => "--header",
        Some("body" | "body_base64") => "--body",
        Some("older_than") => "--older-than",
        Some("created_from") => "--from",
        Some("created_until") => "--until",
        Some(name @ ("caller" | "key" | "limit" | "note" | "path" | "route" | "scope" | "state" | "where")) => {
            &format!("--{name}")
        }
        _ => "",
    };
    let detail = match field {
        Some(field) if !flag.is_empty() => detail.replacen(&format!("`{field}`"), &format!("`{flag}`"), 1),
        _ => detail.to_owned(),
    };
    let detail = detail.replace("use accept_risk", "use --accept-risk").replace("use replace", "use --replace");
    detail.replace("`\"body\": \"\"`", "`--body ''`")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refusals_name_the_flags_that_were_typed() {
        assert_eq!(name_flags("`older_than` has no unit", Some("older_than")), "`--older-than` has no unit");
        assert_eq!(name_flags("`status` is missing", Some("status")), "`--completed` is missing");
        assert_eq!(name_flags("it is unknown; use accept_risk", None), "it is unknown; use --accept-risk");
        assert_eq!(name_flags("`key` has gone", None), "`key` has gone");
        assert_eq!(name_flags("use replace to correct it", None), "use --replace to correct it");
        assert_eq!(name_flags("an explicit `\"body\": \"\"`", None), "an explicit `--body ''`");
    }
}
