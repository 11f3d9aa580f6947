//! Responses that stream: which ones, and the events of `text/event-stream` (the HTML standard, section 9.2).

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName};

/// The field of a client that has received the event with this id.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const EVENT_STREAM: &str = "text/event-stream";

/// The media types whose parts count one by one.
const STREAMED: [&str; 4] = [EVENT_STREAM, "application/x-ndjson", "application/jsonl", "multipart/x-mixed-replace"];

/// Whether the message is a stream by its media type.
pub fn is_streamed(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|media_type| STREAMED.iter().any(|name| media_type.eq_ignore_ascii_case(name)))
}

/// Whether the message is a stream of events.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|media_type| media_type.eq_ignore_ascii_case(EVENT_STREAM))
}

/// Whether the client asks for a stream of events.
pub fn is_accepted(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| essence(range).eq_ignore_ascii_case(EVENT_STREAM))
}

/// The byte after the last event with this id; `None` if there is none.
pub fn end_of_event(body: &[u8], id: &[u8]) -> Option<usize> {
    let (mut found, mut is_wanted) = (None, false);
    let mut rest = body;
    while let Some(length) = rest.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
        let (line, after) = rest.split_at(length);
        rest = after.strip_prefix(b"\r\n").unwrap_or(&after[1..]);
        if line.is_empty() {
            if std::mem::take(&mut is_wanted) {
                found = Some(body.len() - rest.len());
            }
        } else if let Some(value) = line.strip_prefix(b"id:") {
            is_wanted = value.strip_prefix(b" ").unwrap_or(value) == id;
        }
    }
    found
}

fn media_type(headers: &HeaderMap) -> Option<&str> {
    headers.get(CONTENT_TYPE)?.to_str().ok().map(essence)
}

fn essence(value: &str) -> &str {
    value.split(';').next().unwrap_or_default().trim()
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn streams_are_known_by_their_media_type() {
        for (value, is_stream, has_events) in [
            ("text/event-stream", true, true),
            ("Text/Event-Stream; charset=utf-8", true, true),
            ("application/x-ndjson", true, false),
            ("application/jsonl", true, false),
            ("multipart/x-mixed-replace;boundary=x", true, false),
            ("application/json", false, false),
            ("text/event-streams", false, false),
            ("", false, false),
        ] {
            let headers = HeaderMap::from_iter([(CONTENT_TYPE, HeaderValue::from_static(value))]);
            assert_eq!((is_streamed(&headers), is_event_stream(&headers)), (is_stream, has_events), "{value}");
        }
        for (value, accepts) in [
            ("text/event-stream", true),
            ("application/json, text/event-stream;q=0.5", true),
            ("*/*", false),
            ("text/*", false),
        ] {
            let headers = HeaderMap::from_iter([(ACCEPT, HeaderValue::from_static(value))]);
            assert_eq!(is_accepted(&headers), accepts, "{value}");
        }
    }

    #[test]
    fn an_event_ends_after_its_empty_line() {
        for (body, id, rest) in [
            ("id: 1\ndata: a\n\nid: 2\ndata: b\n\n", "1", Some("id: 2\ndata: b\n\n")),
            ("id: 1\ndata: a\n\nid: 2\ndata: b\n\n", "2", Some("")),
            ("id:1\r\ndata: a\r\n\r\ndata: b\r\n\r\n", "1", Some("data: b\r\n\r\n")),
            ("id: 1\rdata: a\r\rdata: b\r\r", "1", Some("data: b\r\r")),
            ("data: a\nid: 1\n\ndata: b\n\n", "1", Some("data: b\n\n")),
            ("id: 1\ndata: a\n", "1", None),
            ("id: 1\nid: 2\n\n", "1", None),
            ("data: id: 1\n\n", "1", None),
            ("id: 1\n\nid: 1\n\nx", "1", Some("x")),
            ("id:  1\n\n", " 1", Some("")),
            ("", "", None),
        ] {
            let found = end_of_event(body.as_bytes(), id.as_bytes());
            assert_eq!(found.map(|end| &body[end..]), rest, "{body:?} {id:?}");
        }
    }
}
