//! JSON-RPC in responses: the id of a replay.
//!
//! A client finds its answer by the id of its request, and a retry has another one than the first try. So the id is
//! replaced in a response from the store, in place: the rest of the response keeps its bytes.

use bytes::Bytes;
use http::header::{ETAG, HeaderName};

use super::event_stream::{events, is_event_stream};
use super::fields;
use oncegate_domain::jsonrpc::{RpcId, find_response_ids, with_id, with_id_at};
use oncegate_domain::response::StoredResponse;

/// Fields that describe the bytes of a body. They are wrong for a body with another id.
const OF_BYTES: [HeaderName; 7] = [
    HeaderName::from_static("content-digest"),
    HeaderName::from_static("content-md5"),
    HeaderName::from_static("digest"),
    ETAG,
    HeaderName::from_static("repr-digest"),
    HeaderName::from_static("signature"),
    HeaderName::from_static("signature-input"),
];

/// Gives a stored response the id of the request that it answers, and drops the fields that described its bytes before.
pub fn set_id(response: &mut StoredResponse, id: &RpcId) {
    let Some(body) = &response.body else { return };
    let replaced = if is_event_stream(&response.headers) { with_id_in_events(body, id) } else { with_id(body, id) };
    if let Some(replaced) = replaced {
        response.body = Some(Bytes::from(replaced));
        fields::remove(&mut response.headers, |name| OF_BYTES.contains(name));
    }
}

/// Writes a stream with another id in each response. `None` for a stream without a response that has another one.
fn with_id_in_events(stream: &[u8], id: &RpcId) -> Option<Vec<u8>> {
    let events = events(stream);
    let places = events.iter().flat_map(|event| {
        let ids: Vec<_> = find_response_ids(&event.text(stream)).collect();
        ids.into_iter().filter_map(|place| event.locate(&place))
    });
    with_id_at(stream, places, id)
}

#[cfg(test)]
mod tests {
    use http::header::CONTENT_TYPE;
    use http::{HeaderMap, HeaderValue, StatusCode};

    use super::*;
    use oncegate_domain::jsonrpc::RpcMessage;

    fn id(text: &str) -> RpcId {
        match RpcMessage::read(format!("{{\"id\":{text},\"method\":\"a\"}}").as_bytes(), false, Vec::new) {
            RpcMessage::Call(call) => call.id,
            other => panic!("{other:?}"),
        }
    }

    fn stored(media_type: &'static str, body: &str) -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static(media_type));
        for name in ["content-digest", "signature", "x-kept"] {
            headers.insert(name, HeaderValue::from_static("a"));
        }
        let body = Some(Bytes::from(body.to_owned()));
        StoredResponse { status: StatusCode::OK, headers, body, trailers: HeaderMap::new() }
    }

    #[test]
    fn a_replay_has_the_retrys_id_and_the_bytes_of_the_stored_response() {
        let progress = r#"{"method":"notifications/progress","params":{"id":7}}"#;
        let asked = r#"{"id":7,"method":"roots/list"}"#;
        for (media_type, body, expected) in [
            ("application/json", r#"{"id":7,"result":1.0}"#.to_owned(), Some(r#"{"id":8,"result":1.0}"#.to_owned())),
            ("application/json", r#"{"id":8,"result":1}"#.to_owned(), None),
            ("application/json", "data: {\"id\":7,\"result\":1}\n\n".to_owned(), None),
            (
                "text/event-stream; charset=utf-8",
                format!(
                    "id: 7\r\nevent: message\r\ndata: {progress}\r\n\r\ndata: {asked}\r\n\r\ndata: {{\"result\":1.0,\r\ndata:\"id\":7}}\r\n\r\n"
                ),
                Some(format!(
                    "id: 7\r\nevent: message\r\ndata: {progress}\r\n\r\ndata: {asked}\r\n\r\ndata: {{\"result\":1.0,\r\ndata:\"id\":8}}\r\n\r\n"
                )),
            ),
            (
                "Text/Event-Stream",
                "data: {\"id\":7,\"result\":1}\n\ndata: {\"id\":\"x\",\"error\":{}}\n\n: end".to_owned(),
                Some("data: {\"id\":8,\"result\":1}\n\ndata: {\"id\":8,\"error\":{}}\n\n: end".to_owned()),
            ),
            ("text/event-stream", format!("data: {progress}\n\n"), None),
            (
                "text/event-stream",
                format!(
                    "\u{feff}data: [{asked},\rdata: {{\"id\":7,\"result\":NaN}}]\r\rdata: {{\"id\":7,\"error\":1}}\r\r"
                ),
                Some(format!(
                    "\u{feff}data: [{asked},\rdata: {{\"id\":8,\"result\":NaN}}]\r\rdata: {{\"id\":8,\"error\":1}}\r\r"
                )),
            ),
            (
                "application/json",
                "\u{feff}[{\"id\":7,\"result\":1}]".to_owned(),
                Some("\u{feff}[{\"id\":8,\"result\":1}]".to_owned()),
            ),
        ] {
            let mut response = stored(media_type, &body);
            set_id(&mut response, &id("8"));
            assert_eq!(response.body.as_deref(), Some(expected.as_ref().unwrap_or(&body).as_bytes()), "{body}");
            let names: Vec<_> = response.headers.keys().map(HeaderName::as_str).collect();
            let unchanged = ["content-type", "content-digest", "signature", "x-kept"];
            let kept = if expected.is_some() { &["content-type", "x-kept"][..] } else { &unchanged };
            assert_eq!(names, kept, "{body}");
        }
    }
}
