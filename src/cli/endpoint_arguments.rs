//! The arguments that `oncegate probe` and `oncegate conform` share: the service, the key's place, and the report.

use std::path::PathBuf;
use std::time::Duration;

use canonical_json::Pointer;
use clap::Args;
use http::HeaderName;

use super::{CommandError, failed, print};
use oncegate_probe::report::IdempotencyReport;
use oncegate_probe::{ProbeKeyPlace, ProbedEndpoint};
use oncegate_settings as settings;
use oncegate_trust::tls::Authorities;

#[derive(Args)]
pub(super) struct EndpointArguments {
    /// The field that carries the key
    #[arg(long, value_name = "NAME", default_value = "Idempotency-Key")]
    key_header: HeaderName,
    /// The key's place in the JSON body, instead of a field: a JSON Pointer such as /idempotency_key
    #[arg(long, value_name = "POINTER", value_parser = parse_pointer, conflicts_with = "key_header")]
    key_body: Option<String>,
    /// The longest wait for a connection, and for a response
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = settings::parse_duration)]
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
    /// Writes the verdict as a picture in SVG
    #[arg(long, value_name = "FILE")]
    badge: Option<PathBuf>,
}

/// Checks a JSON Pointer to a value within a body.
pub(super) fn parse_pointer(text: &str) -> Result<String, String> {
    Pointer::parse(text).map_err(|error| error.to_string())?;
    if text.is_empty() { Err("is the whole body: name a value in it".into()) } else { Ok(text.to_owned()) }
}

impl EndpointArguments {
    pub(super) fn endpoint(&self, url: &str) -> Result<ProbedEndpoint, CommandError> {
        let authorities = || match &self.cacert {
            None => Ok(Authorities::from_system()),
            Some(file) => {
                let text = std::fs::read(file).map_err(|error| format!("cannot be verified: {file}: {error}"))?;
                Authorities::parse(&text).map_err(|problem| format!("cannot be verified: {file} {problem}"))
            }
        };
        let endpoint = ProbedEndpoint::parse(url, authorities, self.timeout);
        endpoint.map_err(|problem| CommandError::Usage(format!("the URL {problem}")))
    }

    pub(super) fn key_place(&self, is_quoted: bool) -> ProbeKeyPlace {
        match &self.key_body {
            Some(pointer) => ProbeKeyPlace::Body(pointer.clone()),
            None => ProbeKeyPlace::Field { name: self.key_header.clone(), is_quoted },
        }
    }

    /// Refuses an endpoint on another machine without `--yes`. `effect` says what happens there.
    pub(super) fn require_confirmation(&self, endpoint: &ProbedEndpoint, effect: &str) -> Result<(), CommandError> {
        match self.yes || endpoint.is_loopback() {
            true => Ok(()),
            false => Err(CommandError::Usage(format!("{effect}: use a test account, and say --yes"))),
        }
    }

    /// Prints the report and writes the badge. A report that is not all good is a failure.
    pub(super) fn publish(&self, report: &IdempotencyReport) -> Result<(), CommandError> {
        print(&if self.json { report.to_json() } else { report.to_text() })?;
        if let Some(file) = &self.badge {
            std::fs::write(file, report.to_badge()).map_err(|error| failed(format!("{}: {error}", file.display())))?;
        }
        report.failure().map_or(Ok(()), |failure| Err(failed(failure)))
    }
}
