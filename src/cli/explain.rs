//! `oncegate explain`

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use clap::Args;
use http::{HeaderName, HeaderValue, Method, Request, Uri, request};
use serde_json::{Value, json};

use super::client::InstanceArguments;
use super::keys::source::KeyAdminSource;
use super::request_arguments::{parse_field, parse_method, read_data};
use super::{CommandError, block_on, failed, load_without_service, print};
use oncegate_admin::{AdminMethod, render_explanation as render};
use oncegate_engine::gate::admit::explain::{ExplainedCaller, explain};
use oncegate_engine::tasks::issuer_keys::verify_now;
use oncegate_telemetry::terminal::escape_invisible;
use oncegate_trust::tls::{self, CertificateName};

#[derive(Args)]
pub(super) struct ExplainArguments {
    #[command(flatten)]
    instance: InstanceArguments,
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
    /// Asks the running instance, or the store: prints the caller's hash and the record's id as they are there
    #[arg(long)]
    connect: bool,
    /// Compares the request with that of this record (its id, or the first 8 digits), by the record's own rules
    #[arg(long, value_name = "ID", conflicts_with = "retry")]
    against: Option<String>,
    /// The client's certificate, as a PEM file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["against", "connect"])]
    client_cert: Option<String>,
    /// Prints JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(arguments: ExplainArguments) -> Result<(), CommandError> {
    let (method, target) = read_request(&arguments.request, arguments.method.as_deref())?;
    let body = read_data(arguments.data)?;
    let mut request = Request::new(());
    *request.method_mut() = method;
    *request.uri_mut() = target;
    request.headers_mut().extend(arguments.headers.into_iter().map(|(name, value)| (Some(name), value)));
    let (head, ()) = request.into_parts();
    if arguments.connect || arguments.against.is_some() {
        let asked = ask_store(&arguments.instance, &head, &body, arguments.against.as_deref());
        return show(&block_on(asked)?, arguments.json);
    }
    let config = load_without_service(&arguments.instance.file)?;
    let certificate = arguments.client_cert.as_deref().map(read_certificate).transpose()?.flatten();
    let explain = |head: &request::Parts, body: &[u8]| {
        let (token, problem) = block_on(async { Ok(verify_now(&config.live, &head.headers).await) })?;
        problem.iter().for_each(|problem| eprintln!("{problem}"));
        let caller = ExplainedCaller { token, certificate: certificate.clone() };
        Ok::<_, CommandError>(explain((None, &config.live), head, body, caller, (None, None)))
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
    let document = match &explained {
        Ok((first, retry)) => render(Ok(first), retry.as_ref()),
        Err(refused) => render(Err(refused), None),
    };
    show(&document, arguments.json)
}

fn show(document: &Value, json: bool) -> Result<(), CommandError> {
    print(&if json { format!("{document:#}\n") } else { render_text(document) })
}

/// Has the request explained where the store is.
async fn ask_store(
    instance: &InstanceArguments,
    head: &request::Parts,
    body: &[u8],
    against: Option<&str>,
) -> Result<Value, CommandError> {
    let source = KeyAdminSource::open(instance).await?;
    let headers =
        head.headers.iter().map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]));
    let question = json!({
        "method": head.method.as_str(),
        "target": head.uri.to_string(),
        "headers": headers.collect::<Vec<_>>(),
        "body_base64": BASE64_STANDARD.encode(body),
    });
    let method = if against.is_some() { AdminMethod::Compare } else { AdminMethod::Explain };
    let document = source.request(method, against.unwrap_or_default(), "", Some(question)).await?;
    document["warning"].as_str().iter().for_each(|problem| eprintln!("{problem}"));
    Ok(document)
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

/// The document as a table.
fn render_text(document: &Value) -> String {
    if document["code"].is_string() {
        let (status, code, detail) = (&document["status"], text(document, "code"), text(document, "detail"));
        return format!("refused         {status} {code}\n                {detail}\n");
    }
    if document["route"].is_null() {
        return "route           none: the request streams through unguarded\n".into();
    }
    let decoded = if document["body_decoded"] == true { ", decoded" } else { "" };
    let body = format!("as {}{decoded}: {}", text(document, "body_form"), text(document, "canonical_body"));
    let key = document["key"].as_str().unwrap_or("none: the request streams through unguarded");
    let parts: Vec<_> = document["parts"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let parts = parts.join(", ");
    let of = |name: &'static str| (name, text(document, name));
    let rows = [
        of("route"),
        of("mode"),
        ("key", key),
        of("scope"),
        of("space"),
        of("recipe"),
        ("body", &body),
        ("parts", &parts),
    ];
    let stored = ["caller", "record"].into_iter().filter(|name| document[*name].is_string()).map(of);
    let compared = ["against", "retry"].into_iter().filter(|name| document[*name].is_object());
    let compared: Vec<_> = compared.map(|name| (name, compared_text(&document[name]))).collect();
    let compared = compared.iter().map(|(label, text)| (*label, text.as_str()));
    let rows = rows.into_iter().chain([of("fingerprint")]).chain(stored).chain(compared);
    // A body may have any bytes, and values of forms count with their lengths before them.
    rows.map(|(label, value)| format!("{label:<16}{}\n", escape_invisible(value))).collect()
}

fn text<'a>(document: &'a Value, name: &str) -> &'a str {
    document[name].as_str().unwrap_or_default()
}

/// The request beside another one.
fn compared_text(compared: &Value) -> String {
    match text(compared, "code") {
        "same" if compared["is_record"] == false => {
            "is the same request under another record: its key, its caller or its space differs, and it would be a first one"
                .into()
        }
        "another-key" => "has a key of its own: another key, caller or space".into(),
        "same" => "is the same request".into(),
        "unguarded" => "has no key: it streams through unguarded".into(),
        "secret-gone" => "cannot be compared: the secret of the record's fingerprint is not configured any more".into(),
        code if compared["differs"].is_null() => {
            format!("{code}: another request; the record does not say in which parts")
        }
        code => {
            let names: Vec<_> =
                compared["differs"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
            let parts = if names.is_empty() { "in no part that has a name".to_owned() } else { names.join(", ") };
            format!("{code} ({}), differs: {parts}. {}", text(compared, "retry"), text(compared, "detail"))
        }
    }
}
