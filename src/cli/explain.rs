//! `oncegate explain`

use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri, request};

use super::request_arguments::{parse_field, parse_method, read_data};
use super::{CommandError, ConfigFile, block_on, failed, load_without_service, print};
use oncegate_domain::request_part::RequestPart;
use oncegate_engine::gate::admit::caller_token::{CallerToken, verify_token};
use oncegate_engine::gate::admit::explain::{Explained, ExplainedCaller, explain};
use oncegate_engine::instance::token_verifier::TokenVerifier;
use oncegate_engine::tasks::issuer_keys::read_keys;
use oncegate_http::protocol::refusal::Refusal;
use oncegate_http::upstream::connection_slots::UpstreamSlots;
use oncegate_settings::Config;
use oncegate_telemetry::terminal::escape_invisible;
use oncegate_trust::jwt::TokenFault;
use oncegate_trust::tls::{self, CertificateName};

#[derive(Args)]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    file: ConfigFile,
    /// The request's method, unless -X gives it, and its target, with its query
    #[arg(value_names = ["METHOD", "PATH"], num_args = 1..=2, required = true)]
    request: Vec<String>,
    /// The request's method, as curl takes it
    #[arg(short = 'X', long = "request", value_name = "METHOD", id = "request_method")]
    method: Option<String>,
    /// A field of the request; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE", value_parser = parse_field)]
    headers: Vec<(HeaderName, HeaderValue)>,
    /// The request's body, or @FILE
    #[arg(short, long, value_name = "BODY|@FILE", default_value = "", allow_hyphen_values = true)]
    data: String,
    /// The body of another request under the same key, or @FILE; tells where it differs, and what its client is told
    #[arg(long, value_name = "BODY|@FILE", allow_hyphen_values = true)]
    retry: Option<String>,
    /// A field of the other request (of --retry), in place of those with this name; may be given several times
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_field, requires = "retry")]
    retry_header: Vec<(HeaderName, HeaderValue)>,
    /// The client's certificate, as a PEM file
    #[arg(long, value_name = "FILE")]
    client_cert: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: ExplainArguments) -> Result<(), CommandError> {
    let (method, target) = read_request(&arguments.request, arguments.method.as_deref())?;
    let config = load_without_service(&arguments.file)?;
    let body = read_data(arguments.data)?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = target;
    request.headers_mut().extend(arguments.headers.into_iter().map(|(name, value)| (Some(name), value)));
    let (head, ()) = request.into_parts();
    let certificate = arguments.client_cert.as_deref().map(read_certificate).transpose()?.flatten();
    let explain = |head: &request::Parts, body: &[u8]| {
        let token = check_token(&config.live, &head.headers)?;
        Ok::<_, CommandError>(explain(&config, head, body, ExplainedCaller { token, certificate: certificate.clone() }))
    };
    let explained = match (explain(&head, &body)?, arguments.retry) {
        (Ok(first), Some(retry)) => {
            let mut head = head;
            arguments.retry_header.iter().for_each(|(name, _)| drop(head.headers.remove(name)));
            head.headers.extend(arguments.retry_header.into_iter().map(|(name, value)| (Some(name), value)));
            explain(&head, &read_data(retry)?)?.map(|retry| (first, Some(retry)))
        }
        (explained, _) => explained.map(|first| (first, None)),
    };
    let text = match (explained, arguments.json) {
        (Ok((first, retry)), false) => render_text(&first, retry.as_ref()),
        (Ok((first, retry)), true) => render_json(&first, retry.as_ref()),
        (Err(refused), json) => {
            let (status, code) = (refused.answer_shape.status(&refused.refusal).as_u16(), refused.refusal.slug());
            let detail = refused.refusal.detail();
            if json {
                format!("{:#}\n", serde_json::json!({ "status": status, "code": code, "detail": detail }))
            } else {
                format!("refused         {status} {code}\n                {detail}\n")
            }
        }
    };
    print(&text)
}

fn read_request(words: &[String], method: Option<&str>) -> Result<(Method, Uri), CommandError> {
    let (method, target) = match (words, method) {
        ([target], Some(method)) => (method, target),
        ([method, target], None) => (&**method, target),
        ([target], None) => {
            return Err(CommandError::Usage(format!(
                "say the method too: `oncegate explain POST {target}`, or with -X"
            )));
        }
        (_, _) => return Err(CommandError::Usage("the method is there twice: before the path, and with -X".into())),
    };
    let method = parse_method(method).map_err(|problem| CommandError::Usage(format!("{method:?} {problem}")))?;
    let uri = target.parse().map_err(|error| CommandError::Usage(format!("{target:?} is no target: {error}")))?;
    Ok((method, uri))
}

fn read_certificate(file: &str) -> Result<Option<CertificateName>, CommandError> {
    let text = std::fs::read(file).map_err(|error| failed(format!("{file}: {error}")))?;
    let chain = tls::parse_certificates(&text);
    let chain = chain.map_err(|problem| failed(format!("{file} {problem}")))?;
    Ok(chain.first().and_then(|certificate| CertificateName::read(certificate)))
}

/// Verifies the request's token as the proxy would, with the keys as they are now.
fn check_token(config: &Config, headers: &HeaderMap) -> Result<Result<CallerToken, Refusal>, CommandError> {
    let Some(jwt) = config.jwt.as_ref().filter(|jwt| !jwt.rules.claims.is_empty()) else {
        return Ok(Ok(CallerToken::Absent));
    };
    block_on(async {
        let verifier = TokenVerifier::new(Arc::clone(jwt));
        let keys = read_keys(&jwt.keys, &config.trust, &UpstreamSlots::new(1)).await;
        if let Err(problem) = verifier.note_read(keys) {
            eprintln!("jwt.jwks: {}: {problem}", jwt.keys);
        }
        // The keys are those of now: a token with an unknown `kid` causes no second read.
        Ok(tokio::time::timeout(Duration::ZERO, verify_token(&verifier, headers))
            .await
            .unwrap_or(Err(Refusal::TokenInvalid(TokenFault::UnknownKey))))
    })
}

/// The fate of another request under the same key.
enum RetryFate {
    AnotherKey,
    Unguarded,
    Same,
    Refused(Refusal),
}

impl RetryFate {
    fn of(first: &Explained, retry: &Explained) -> Self {
        let record = |explained: &Explained| (explained.key.clone(), explained.scope.clone(), explained.space.clone());
        if record(first) != record(retry) {
            return Self::AnotherKey;
        }
        if first.key.is_none() {
            return Self::Unguarded;
        }
        first.refuse_retry(retry).map_or(Self::Same, Self::Refused)
    }

    fn to_text(&self) -> String {
        match self {
            Self::AnotherKey => "has a key of its own: another key, caller or space".into(),
            Self::Same => "is the same request".into(),
            Self::Unguarded => "has no key: it streams through unguarded".into(),
            Self::Refused(refusal) => {
                let parts = match refusal.differs() {
                    [] => "in no part that has a name".into(),
                    names => names.join(", "),
                };
                format!("{} ({}), differs: {parts}. {}", refusal.slug(), refusal.client_action(), refusal.detail())
            }
        }
    }

    fn to_json(&self) -> serde_json::Value {
        match self {
            Self::AnotherKey => serde_json::json!({ "code": "another-key" }),
            Self::Same => serde_json::json!({ "code": "same" }),
            Self::Unguarded => serde_json::json!({ "code": "unguarded" }),
            Self::Refused(refusal) => serde_json::json!({
                "code": refusal.slug(),
                "retry": refusal.client_action(),
                "differs": refusal.differs(),
                "detail": refusal.detail(),
            }),
        }
    }
}

fn render_text(explained: &Explained, retry: Option<&Explained>) -> String {
    let Some(route) = &explained.route else {
        return "route           none: the request streams through unguarded\n".into();
    };
    let body = explained.body.content.to_text();
    let decoded = if explained.body.is_decoded { ", decoded" } else { "" };
    let key = match &explained.key {
        Some(key) => key,
        None => "none: the request streams through unguarded",
    };
    let fingerprint = explained.fingerprint.map_or_else(String::new, |fingerprint| fingerprint.to_string());
    let rows = [
        ("route", route.as_str()),
        ("mode", explained.mode),
        ("key", key),
        ("scope", &describe_scope(explained)),
        ("space", &explained.space),
        ("recipe", &explained.recipe),
        ("body", &format!("as {}{decoded}: {body}", explained.body.form)),
        ("parts", &explained.parts.iter().map(RequestPart::place).collect::<Vec<_>>().join(", ")),
        ("fingerprint", &fingerprint),
    ];
    let retry = retry.map(|retry| ("retry", RetryFate::of(explained, retry).to_text()));
    let retry = retry.iter().map(|(label, text)| (*label, text.as_str()));
    // A body may have any bytes, and values of forms count with their lengths before them.
    rows.into_iter().chain(retry).map(|(label, value)| format!("{label:<16}{}\n", escape_invisible(value))).collect()
}

fn describe_scope(explained: &Explained) -> String {
    if explained.key.is_none() {
        return "none: the request has no key".into();
    }
    if explained.scope.is_empty() {
        return "none: all callers share their keys".into();
    }
    let part = |(name, hash): &(String, Option<String>)| match hash {
        Some(hash) => format!("{name} (sha256 {hash}...)"),
        None => format!("{name} (missing)"),
    };
    explained.scope.iter().map(part).collect::<Vec<_>>().join(", ")
}

fn render_json(explained: &Explained, retry: Option<&Explained>) -> String {
    let mut document = serde_json::json!({
        "route": explained.route,
        "mode": explained.mode,
        "key": explained.key,
        "scope": describe_scope(explained),
        "space": explained.space,
        "recipe": explained.recipe,
        "canonical_body": explained.body.content.to_text(),
        "body_form": explained.body.form,
        "body_decoded": explained.body.is_decoded,
        "parts": explained.parts.iter().map(RequestPart::place).collect::<Vec<_>>(),
        "fingerprint": explained.fingerprint.map(|fingerprint| fingerprint.to_string()),
    });
    if let Some(retry) = retry {
        document["retry"] = RetryFate::of(explained, retry).to_json();
    }
    format!("{document:#}\n")
}
