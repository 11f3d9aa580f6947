//! The form of Oncegate's own answers: the document and the status of a refusal, and the fields of a dialect.
//!
//! The forms of the route and of its dialect come first. Where they say nothing, a refusal is a problem document in the
//! format of the request.

use std::sync::{Arc, LazyLock};

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use http::{Response, StatusCode};
use serde_json::Value;

use super::refusal::{Refusal, RetryAfter};
use super::status::OncegateStatus;
use crate::body::Body;
use oncegate_domain::jsonrpc::RpcId;
use oncegate_settings::{Dialect, DocumentForm, Placeholder, PlaceholderValue, RefusalForms, Route, Template};

/// Tells Stripe's SDKs whether to send the request again, whatever its status.
const SHOULD_RETRY: HeaderName = HeaderName::from_static("stripe-should-retry");
/// Whether a repeatable request was taken as one (OASIS Repeatable Requests 1.0).
const REPEATABILITY_RESULT: HeaderName = HeaderName::from_static("repeatability-result");

/// The form of Oncegate's own answers to a request: that of its route, and problem documents without one.
#[derive(Clone, Debug)]
pub struct AnswerShape {
    dialect: Dialect,
    forms: Option<Arc<RefusalForms>>,
    format: RequestFormat,
}

/// The parts of a refused request that its answer may have.
#[derive(Clone, Copy, Default)]
pub struct RefusedRequest<'a> {
    /// The id of a JSON-RPC call that was read.
    pub rpc_id: Option<&'a RpcId>,
    /// The key as the client sent it, if that may be shown.
    pub key: Option<&'a str>,
    /// The id of the key's record.
    pub record: Option<&'a str>,
}

/// The format that a request's client reads and writes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RequestFormat {
    Cbor,
    #[default]
    Json,
    Xml,
}

impl RequestFormat {
    /// The format of a request's body; without one, that which its client accepts, if it accepts no other.
    pub fn of(headers: &HeaderMap) -> Self {
        let text = |name| headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
        match text(CONTENT_TYPE) {
            "" => {
                let mut accepted = text(ACCEPT).split(',').map(Self::of_type);
                let first = accepted.next().unwrap_or_default();
                if accepted.all(|format| format == first) { first } else { Self::Json }
            }
            kind => Self::of_type(kind),
        }
    }

    fn of_type(kind: &str) -> Self {
        let essence = kind.split(';').next().unwrap_or_default().trim().as_bytes();
        let ends_with = |suffix: &[u8]| {
            let (before, end) = essence.split_at(essence.len().saturating_sub(suffix.len()));
            (before.ends_with(b"/") || before.ends_with(b"+")) && end.eq_ignore_ascii_case(suffix)
        };
        match () {
            () if ends_with(b"xml") => Self::Xml,
            () if ends_with(b"cbor") => Self::Cbor,
            () => Self::Json,
        }
    }

    fn document(self) -> &'static DocumentForm {
        let [cbor, json, xml] = &*PROBLEMS;
        match self {
            Self::Cbor => cbor,
            Self::Json => json,
            Self::Xml => xml,
        }
    }
}

/// Problem documents (RFC 9457, and its appendix B for XML), with the members of JSON in reading order. CBOR has the
/// same members: the numbers of RFC 9290 have none for a code.
static PROBLEMS: LazyLock<[DocumentForm; 3]> = LazyLock::new(|| {
    let json = r#"{"type":"{type}","title":"{title}","status":"{status}","detail":"{detail}","code":"{code}","retry":"{retry}","differs":"{differs}"}"#;
    let xml = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<problem xmlns=\"urn:ietf:rfc:7807\"><type>{type}</type>\
               <title>{title}</title><status>{status}</status><detail>{detail}</detail><code>{code}</code>\
               <retry>{retry}</retry><differs>{differs}</differs></problem>";
    [("application/cbor", json), ("application/problem+json", json), ("application/problem+xml", xml)].map(
        |(media_type, template)| DocumentForm {
            media_type: HeaderValue::from_static(media_type),
            template: Template::parse(template, media_type).expect("it is a template"),
        },
    )
});

impl Default for AnswerShape {
    /// That of a request without a route.
    fn default() -> Self {
        Self { dialect: Dialect::Ietf, forms: None, format: RequestFormat::Json }
    }
}

impl AnswerShape {
    pub fn of_no_route(format: RequestFormat) -> Self {
        Self { format, ..Self::default() }
    }

    pub fn new(dialect: Dialect, forms: Arc<RefusalForms>, format: RequestFormat) -> Self {
        Self { dialect, forms: Some(forms), format }
    }

    /// That of a route. A route without forms costs no count of its references, which all workers share.
    pub fn of_route(route: &Route, format: RequestFormat) -> Self {
        let forms = &route.options.refusals;
        let forms = (!forms.is_empty()).then(|| Arc::clone(forms));
        Self { dialect: route.options.dialect, forms, format }
    }

    pub fn format(&self) -> RequestFormat {
        self.format
    }

    /// The status of a refused request that is no JSON-RPC call.
    pub fn status(&self, refusal: &Refusal) -> StatusCode {
        let row = refusal.row();
        let form = (row.slug, row.action.name(), row.status);
        let said = self.forms.as_ref().and_then(|forms| forms.find(form, |form| form.status));
        said.unwrap_or_else(|| refusal.status())
    }

    /// Builds the answer to a refused request. The type of a problem document is `problem_base`, followed by the slug.
    pub fn render(&self, refusal: &Refusal, problem_base: &str, request: RefusedRequest<'_>) -> Response<Body> {
        let (row, differs, is_call) = (refusal.row(), refusal.differs(), request.rpc_id.is_some());
        let (own_form, no_forms) = ((row.slug, row.action.name(), row.status), RefusalForms::default());
        let forms = self.forms.as_deref().unwrap_or(&no_forms);
        let call_status = forms.find(own_form, |form| form.call_status).filter(|_| is_call);
        let status = call_status.unwrap_or_else(|| self.status(refusal));
        let call_document = forms.find(own_form, |form| form.call_document.as_ref()).filter(|_| is_call);
        let document = call_document.or_else(|| forms.find(own_form, |form| form.document.as_ref()));
        let document = document.unwrap_or_else(|| self.format.document());
        let snake = || row.slug.replace('-', "_");
        let id = || request.rpc_id.map(|id| PlaceholderValue::Raw(id.as_raw().get().into()));
        let value = |placeholder| {
            Some(PlaceholderValue::Json(match placeholder {
                Placeholder::Code => row.slug.into(),
                Placeholder::SnakeCode => snake().into(),
                Placeholder::UpperCode => snake().to_ascii_uppercase().into(),
                Placeholder::Detail => (*row.detail).into(),
                Placeholder::Differs if differs.is_empty() => return None,
                Placeholder::Differs => differs.into(),
                Placeholder::ErrorCode => {
                    forms.find(own_form, |form| form.error_code.clone()).unwrap_or_else(|| snake().into())
                }
                Placeholder::ErrorType => forms.find(own_form, |form| form.error_type.clone())?,
                Placeholder::Id => return id(),
                Placeholder::IdOrNull => return Some(id().unwrap_or(PlaceholderValue::Json(Value::Null))),
                Placeholder::Key => request.key?.into(),
                Placeholder::Record => request.record?.into(),
                Placeholder::Retry => refusal.client_action().into(),
                Placeholder::RetryAfter => row.retry_after.map(RetryAfter::seconds)?.into(),
                Placeholder::Status => status.as_u16().into(),
                Placeholder::Title => row.title.into(),
                Placeholder::Type => format!("{problem_base}{}", row.slug).into(),
            }))
        };
        let mut response = Response::new(Body::whole(document.template.render(value)));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, document.media_type.clone());
        refusal.add_fields(headers);
        for (name, value) in
            forms.find(own_form, |form| Some(&form.headers).filter(|list| !list.is_empty())).into_iter().flatten()
        {
            headers.insert(name, value.clone());
        }
        response
    }

    /// Adds the fields that the dialect has on answers to guarded requests.
    pub fn add_fields(&self, (code, headers): (StatusCode, &mut HeaderMap), status: OncegateStatus) {
        let field = match (self.dialect, status) {
            (Dialect::Repeatability, _) => repeatability_result(status).map(|result| (REPEATABILITY_RESULT, result)),
            // A retry gets the same error again.
            (Dialect::Stripe, OncegateStatus::Replayed | OncegateStatus::Unstored) => {
                let is_error = code.is_client_error() || code.is_server_error();
                is_error.then_some((SHOULD_RETRY, "false"))
            }
            // A retry gets 409 until somebody knows the outcome.
            (Dialect::Stripe, OncegateStatus::Unknown) => Some((SHOULD_RETRY, "false")),
            (
                Dialect::Stripe | Dialect::A2a | Dialect::Acp | Dialect::Graphql | Dialect::Iceberg | Dialect::Ietf,
                _,
            ) => None,
            (Dialect::Jsonrpc | Dialect::Mcp | Dialect::Ucp | Dialect::X402, _) => None,
        };
        if let Some((name, value)) = field {
            headers.insert(name, HeaderValue::from_static(value));
        }
    }
}

/// Whether the request was taken as a repeatable one; `None` where nothing is promised about its retries.
fn repeatability_result(status: OncegateStatus) -> Option<&'static str> {
    match status {
        OncegateStatus::Bypassed | OncegateStatus::Observed => None,
        OncegateStatus::KeyReused | OncegateStatus::Rejected => Some("rejected"),
        OncegateStatus::Attached
        | OncegateStatus::Executed
        | OncegateStatus::InFlight
        | OncegateStatus::Queued
        | OncegateStatus::Released
        | OncegateStatus::Replayed
        | OncegateStatus::Streaming
        | OncegateStatus::Unknown
        | OncegateStatus::Unstored => Some("accepted"),
    }
}

#[cfg(test)]
mod tests;
