//! Reads a response's body by the rules of its route.
//!
//! A body that no rule can read may have the error for which the rules are there. It is neither replayed as the result
//! nor a reason to execute again: its attempt is unknown.

use std::borrow::Cow;

use http::header::{CONTENT_ENCODING, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue};

use super::{charset, event_stream, grpc};
use oncegate_domain::jsonrpc::find_response_ids;
use oncegate_domain::outcome_rules::{Unreadable, is_json};
use oncegate_domain::response_policy::ResponseVerdict;
use oncegate_settings::{Dialect, Route};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum JudgedBody<'a> {
    /// It is larger than the route keeps.
    TooLarge,
    /// `mode = "observe"` reads no bodies, so that the status decides.
    Unobserved,
    Whole(&'a [u8]),
}

impl JudgedBody<'_> {
    /// Whether a response to a gRPC call has a message.
    pub(super) fn has_message(self, headers: &HeaderMap) -> bool {
        match self {
            Self::TooLarge => true,
            Self::Unobserved => false,
            Self::Whole(body) => grpc::has_message(headers, Some(body)),
        }
    }

    /// The verdict of the route's rules; `None` where that of the status lists, `by_status`, stays. `is_named`: the
    /// list has the status by itself, and not only its class.
    pub(super) fn verdict(
        self,
        route: &Route,
        headers: &HeaderMap,
        by_status: ResponseVerdict,
        is_named: bool,
    ) -> Option<ResponseVerdict> {
        let is_jsonrpc = route.options.dialect.is_jsonrpc();
        let reason = match self {
            Self::Whole(body) if is_plain(headers) => {
                match route.options.outcome.verdict_on(&response_texts(is_jsonrpc, headers, body), by_status) {
                    Ok(verdict) => return verdict,
                    // A class of statuses is too wide for a message that may not be the service's own.
                    Err(Unreadable) if is_named && is_of_gateway(headers, body) => return None,
                    // An empty body hides nothing. But in these protocols it is no answer to a call.
                    Err(Unreadable)
                        if body.is_empty()
                            && by_status == ResponseVerdict::Store
                            && !is_jsonrpc
                            && route.options.dialect != Dialect::Graphql =>
                    {
                        return None;
                    }
                    Err(Unreadable) => "it is not the JSON that the rules are about",
                }
            }
            // Bodies are never decompressed.
            Self::Whole(_) => "its encoding is not plain UTF-8",
            Self::TooLarge => "it is larger than `max_response_body`",
            Self::Unobserved => return None,
        };
        tracing::warn!(route = %route.name, reason, "no rule of `outcome` can read a response, so its outcome is unknown");
        Some(ResponseVerdict::Unknown)
    }
}

/// Whether a body is neither compressed nor in an encoding of text in which ASCII is not ASCII.
fn is_plain(headers: &HeaderMap) -> bool {
    let is_identity = |coding: &HeaderValue| coding.as_bytes().eq_ignore_ascii_case(b"identity");
    headers.get_all(CONTENT_ENCODING).iter().all(is_identity) && charset::is_plain(headers)
}

/// The texts that rules read. In a stream, the data of each event with JSON is one; in JSON-RPC only the last response
/// is, because the others are notifications and requests of the server. A stream without any is read like an empty
/// text: it has no outcome yet. `[DONE]` ends the streams of models, and is no JSON.
fn response_texts<'a>(is_jsonrpc: bool, headers: &HeaderMap, body: &'a [u8]) -> Vec<Cow<'a, [u8]>> {
    if !event_stream::is_event_stream(headers) {
        return vec![Cow::Borrowed(body)];
    }
    let events = event_stream::events(body);
    let texts = events.iter().map(|event| event.text(body));
    let mut texts: Vec<_> = texts.filter(|text| begins_as_json(text) && **text != *b"[DONE]").collect();
    if is_jsonrpc {
        let last = texts.iter().rposition(|text| find_response_ids(text).next().is_some() || !is_json(text));
        texts = last.map(|last| texts.swap_remove(last)).into_iter().collect();
    }
    if texts.is_empty() {
        texts.push(Cow::Borrowed(b""));
    }
    texts
}

/// Whether a message without JSON is that of a gateway in front of the service: it is empty, a page or a line of text.
fn is_of_gateway(headers: &HeaderMap, body: &[u8]) -> bool {
    let is_text =
        |value: &HeaderValue| value.as_bytes().get(..5).is_some_and(|kind| kind.eq_ignore_ascii_case(b"text/"));
    let is_page = headers.get(CONTENT_TYPE).is_some_and(is_text) && !event_stream::is_event_stream(headers);
    body.is_empty() || is_page && !begins_as_json(body) && !body.contains(&0)
}

fn begins_as_json(text: &[u8]) -> bool {
    let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text).trim_ascii_start();
    text.starts_with(b"{") || text.starts_with(b"[")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(fields: &[(http::HeaderName, &'static str)]) -> HeaderMap {
        fields.iter().map(|(name, value)| (name.clone(), HeaderValue::from_static(value))).collect()
    }

    #[test]
    fn rules_read_the_data_of_events_and_of_json_rpc_the_last_response() {
        let progress = r#"{"method":"notifications/progress","params":{}}"#;
        let (error, result) = (r#"{"id":1,"error":{"message":"\ud83d"}}"#, r#"{"id":1,"result":1}"#);
        for (kind, body, of_jsonrpc, of_others) in [
            ("application/json", result.to_owned(), vec![result], vec![result]),
            ("application/json", String::new(), vec![""], vec![""]),
            ("text/event-stream", format!("data: {progress}\n\ndata: {error}\n\n"), vec![error], vec![progress, error]),
            ("text/event-stream", format!("data: {error}\r\rdata: {result}\r\r"), vec![result], vec![error, result]),
            ("text/event-stream", format!("data: {result}\n\ndata: ping\n\n"), vec![result], vec![result]),
            ("text/event-stream", format!("data: {result}\n\ndata: [DONE]\n\n"), vec![result], vec![result]),
            ("text/event-stream", "data: [DONE]\n\n".to_owned(), vec![""], vec![""]),
            ("text/event-stream", format!("data: {result}\n\ndata: [DONE\n\n"), vec!["[DONE"], vec![result, "[DONE"]),
            ("text/event-stream", format!("data: {result}\n\ndata: {{NaN\n\n"), vec!["{NaN"], vec![result, "{NaN"]),
            (
                "text/event-stream",
                format!("data: {result}\n\ndata: {{\"id\":1,"),
                vec!["{\"id\":1,"],
                vec![result, "{\"id\":1,"],
            ),
            ("text/event-stream", format!("data: {progress}\n\n"), vec![""], vec![progress]),
            ("text/event-stream", "data: ping\n\n".to_owned(), vec![""], vec![""]),
            ("text/event-stream", String::new(), vec![""], vec![""]),
        ] {
            let headers = headers(&[(CONTENT_TYPE, kind)]);
            for (is_jsonrpc, expected) in [(true, of_jsonrpc), (false, of_others)] {
                let texts = response_texts(is_jsonrpc, &headers, body.as_bytes());
                let texts: Vec<_> = texts.iter().map(|text| str::from_utf8(text).unwrap()).collect();
                assert_eq!(texts, expected, "{body:?}");
            }
        }
    }

    #[test]
    fn a_body_is_plain_if_its_fields_name_no_coding_and_no_foreign_encoding() {
        for (kind, coding, expected) in [
            ("application/json", "identity", true),
            ("application/json; charset=UTF-8", "Identity", true),
            ("application/json; charset=utf-7", "identity", false),
            ("application/json", "gzip", false),
            ("application/json", "identity, br", false),
        ] {
            let headers = headers(&[(CONTENT_TYPE, kind), (CONTENT_ENCODING, coding)]);
            assert_eq!(is_plain(&headers), expected, "{kind} {coding}");
        }
        assert!(is_plain(&HeaderMap::new()));
    }

    #[test]
    fn a_gateways_message_is_empty_or_a_text_that_is_not_meant_to_be_json() {
        for (kind, body, expected) in [
            ("text/html", "<html>", true),
            ("Text/Plain; charset=utf-8", "no healthy upstream", true),
            ("application/json", "", true),
            ("", "", true),
            ("text/html", " {\"error\":NaN}", false),
            ("text/html", "\u{feff}[NaN]", false),
            ("text/html", "\0{\0}", false),
            ("text/event-stream", "<html>", false),
            ("application/json", "<html>", false),
            ("", "<html>", false),
        ] {
            assert_eq!(is_of_gateway(&headers(&[(CONTENT_TYPE, kind)]), body.as_bytes()), expected, "{kind} {body}");
        }
    }
}
