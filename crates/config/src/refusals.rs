//! Reads and checks `refusals`: the statuses and documents that a route's clients get for Oncegate's own errors.

use std::sync::Arc;

use http::{HeaderName, HeaderValue, StatusCode};
use serde_json::Value;

use super::options::options;
use super::reader::Section;
use super::value_parsers::{header_name, is_of_connection};
use oncegate_settings::{Dialect, DocumentForm, REFUSALS, RefusalForm, RefusalForms, RefusalMatch, Template};

options! {
    struct RefusalOptions {
        /// the status; 0 for the refusal's own
        status: Integer = 0 => Option<StatusCode>, made(|section| read_status(section, "status"));
        /// the status of the answer to a JSON-RPC call that was read; 0 for `status`
        call_status: Integer = 0 => Option<StatusCode>, made(|section| read_status(section, "call_status"));
        /// the media type of `body` and `call_body`
        media_type: Text = "application/json" => Option<HeaderValue>, parsed(|text| parse_media_type(text).map(Some));
        /// a template with `{code}`, `{detail}`, `{key}`, `{record}`, `{retry_after}` and others; `base64:` before what
        /// is no text
        body: Text = "";
        /// the same for a JSON-RPC call that was read; empty for `body`
        call_body: Text = "";
        /// the value of `{error_type}`
        error_type: Text = "" => String, string();
        /// the value of `{error_code}`, a text or a number; empty for the code with `_`
        error_code: Scalar = "" => Value, scalar();
        /// fields of the answer, each `"Name: value"`
        headers: Texts = [] => Vec<(HeaderName, HeaderValue)>, values(parse_field);
    }
}

pub(super) use RefusalOptions as Options;

/// Reads the forms, the most specific of each table first.
pub(super) fn read(section: &Section<'_>) -> Arc<RefusalForms> {
    let dialect = section.choice("dialect");
    let mut forms = Vec::new();
    for table in section.named("refusals", RefusalMatch::parse) {
        let mut named: Vec<_> =
            table.into_iter().map(|(covers, section)| (read_form(covers, &section), section)).collect();
        named.sort_by_key(|(form, _)| form.covers);
        for (form, section) in &named {
            check_unknown(form, section, dialect);
        }
        forms.extend(named.into_iter().map(|(form, _)| form));
    }
    Arc::new(RefusalForms::new(forms))
}

fn read_form(covers: RefusalMatch, section: &Section<'_>) -> RefusalForm {
    let RefusalOptions { status, call_status, media_type, error_type, error_code, headers } =
        RefusalOptions::read(section);
    let document = |name| {
        // An empty one that is written is an empty body.
        let media_type = media_type.clone().filter(|_| section.first_layer(name).is_some())?;
        let template = section.parsed(name, |text| Template::parse(text, media_type.to_str().unwrap_or_default()));
        Some(DocumentForm { media_type, template })
    };
    if section.first_layer("media_type").is_some()
        && ["body", "call_body"].map(|name| section.first_layer(name)) == [None; 2]
    {
        section.problem("media_type", "needs `body`");
    }
    RefusalForm {
        covers,
        status,
        call_status,
        error_type: (!error_type.is_empty()).then(|| error_type.into()),
        error_code: Some(error_code).filter(|code| *code != ""),
        headers,
        document: document("body"),
        call_document: document("call_body"),
    }
}

/// A success would end a client's retries, and a redirection would send the request elsewhere. JSON-RPC has its errors
/// in answers of status 200.
fn read_status(section: &Section<'_>, name: &str) -> Option<StatusCode> {
    let is_call = name == "call_status";
    let status: u16 = section.integer(name, 0..=599, "a refusal is an error, from 400 to 599");
    let is_right = matches!(status, 0 | 400..) || is_call && status == 200;
    if !is_right {
        let or_success = if is_call { "200, or " } else { "" };
        section.problem(name, format!("must be {or_success}400 to 599: a refusal is an error"));
    }
    StatusCode::from_u16(status).ok()
}

/// The refusals of requests that may have been executed before, beside those whose outcome nobody knows.
const MAY_HAVE_EXECUTED: [&str; 9] = [
    "authorize-unavailable",
    "draining",
    "duplicate-suspected",
    "in-flight",
    "issuer-unavailable",
    "key-expired",
    "overloaded",
    "request-too-old",
    "store-unavailable",
];

/// Refuses a status that clients take for "not executed" for an operation that may have been executed.
fn check_unknown(form: &RefusalForm, section: &Section<'_>, dialect: Dialect) {
    let mut refusals = REFUSALS.iter().filter(|(code, retry, _)| {
        *retry == "reconcile" || dialect.reads_pending_as_failed() && MAY_HAVE_EXECUTED.contains(code)
    });
    let Some((code, ..)) = refusals.find(|refusal| form.covers.covers(**refusal)) else { return };
    let call_status = form.call_status.filter(|status| *status != StatusCode::OK);
    for (name, status) in [("status", form.status), ("call_status", call_status)] {
        if let Some(status) = status.filter(|status| dialect.means_not_executed(status.as_u16())) {
            let message =
                format!("must not be {status} for `{code}`: clients take it for \"not executed\", and charge again");
            section.problem(name, message);
        }
    }
}

fn parse_media_type(text: &str) -> Result<HeaderValue, String> {
    let is_type = text.split_once('/').is_some_and(|(kind, rest)| !kind.is_empty() && !rest.is_empty());
    let value = HeaderValue::from_str(text).ok().filter(|_| is_type);
    value.ok_or_else(|| "is no media type: write one like `application/json`".into())
}

fn parse_field(text: &str) -> Result<(HeaderName, HeaderValue), String> {
    let wrong = || "is no field: write one like `X-Should-Retry: false`".to_owned();
    let (name, value) = text.split_once(':').ok_or_else(wrong)?;
    let name = header_name(name)?;
    let is_ours = ["access-control-", "content-", "idempoten", "oncegate-", "proxy-"]
        .iter()
        .any(|start| name.as_str().starts_with(start));
    let is_meaning =
        matches!(name.as_str(), "cache-control" | "http2-settings" | "link" | "retry-after" | "www-authenticate");
    if is_of_connection(&name) || is_ours || is_meaning {
        return Err("is a field that the refusal or its body sets".into());
    }
    Ok((name, HeaderValue::from_str(value.trim()).map_err(|_| wrong())?))
}
