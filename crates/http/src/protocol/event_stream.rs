//! Responses that stream: which ones, and the events of `text/event-stream` (the HTML standard, section 9.2).

use std::borrow::Cow;
use std::ops::Range;

use http::header::{ACCEPT, CONTENT_TYPE, HeaderMap, HeaderName};

/// The field of a client that has received the event with this id.
pub const LAST_EVENT_ID: HeaderName = HeaderName::from_static("last-event-id");

const EVENT_STREAM: &str = "text/event-stream";

/// The media types whose parts count one by one.
const STREAMED: [&str; 4] = [EVENT_STREAM, "application/x-ndjson", "application/jsonl", "multipart/x-mixed-replace"];

pub fn is_streamed(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|media_type| STREAMED.iter().any(|name| media_type.eq_ignore_ascii_case(name)))
}

pub fn is_event_stream(headers: &HeaderMap) -> bool {
    media_type(headers).is_some_and(|media_type| media_type.eq_ignore_ascii_case(EVENT_STREAM))
}

pub fn is_accepted(headers: &HeaderMap) -> bool {
    let ranges = headers.get_all(ACCEPT).iter().filter_map(|value| value.to_str().ok());
    ranges.flat_map(|value| value.split(',')).any(|range| essence(range).eq_ignore_ascii_case(EVENT_STREAM))
}

/// The byte after the last event with this id; `None` if there is none.
pub fn end_of_event(stream: &[u8], id: &[u8]) -> Option<usize> {
    let (mut found, mut is_wanted) = (None, false);
    for (line, next) in lines_of(stream) {
        if line.is_empty() {
            if std::mem::take(&mut is_wanted) {
                found = Some(next);
            }
        } else if let Some(value) = stream[line].strip_prefix(b"id:") {
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

/// The data of an event, as places in its stream: one for each line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventData(Vec<Range<usize>>);

impl EventData {
    /// The data, its lines joined as clients join them.
    pub fn text<'a>(&self, stream: &'a [u8]) -> Cow<'a, [u8]> {
        match &*self.0 {
            [only] => Cow::Borrowed(&stream[only.clone()]),
            lines => Cow::Owned(lines.iter().map(|line| &stream[line.clone()]).collect::<Vec<_>>().join(&b'\n')),
        }
    }

    /// The place in the stream of a part of the data that is within one line.
    pub fn locate(&self, part: &Range<usize>) -> Option<Range<usize>> {
        let mut begin = 0;
        for line in &self.0 {
            let end = begin + line.len();
            if part.start >= begin && part.end <= end {
                return Some(line.start + part.start - begin..line.start + part.end - begin);
            }
            begin = end + 1;
        }
        None
    }
}

/// The data of the events in a whole stream, in order. The last event counts without the blank line that should end it,
/// as some clients read it.
pub fn events(stream: &[u8]) -> Vec<EventData> {
    let (mut events, mut lines) = (Vec::new(), Vec::new());
    for (line, _) in lines_of(stream) {
        let text = &stream[line.clone()];
        if text.is_empty() {
            events.extend((!lines.is_empty()).then(|| EventData(std::mem::take(&mut lines))));
        } else if let Some(value) = text.strip_prefix(b"data:") {
            let blank = usize::from(value.first() == Some(&b' '));
            lines.push(line.end - value.len() + blank..line.end);
        } else if text == b"data" {
            lines.push(line.end..line.end);
        }
    }
    events.extend((!lines.is_empty()).then_some(EventData(lines)));
    events
}

/// The number of events of a stream that are complete and have data.
pub fn count_events(stream: &[u8]) -> usize {
    let (mut events, mut has_data) = (0, false);
    for (line, _) in lines_of(stream) {
        let text = &stream[line];
        if text.is_empty() {
            events += usize::from(std::mem::take(&mut has_data));
        } else {
            has_data |= text == b"data" || text.starts_with(b"data:");
        }
    }
    events
}

/// The lines of a stream without their ends, each with the place of the next one. A line ends with CR LF, LF or CR. A
/// byte order mark before the first one does not count.
fn lines_of(stream: &[u8]) -> impl Iterator<Item = (Range<usize>, usize)> {
    let mut begin = if stream.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    std::iter::from_fn(move || {
        let rest = stream.get(begin..).filter(|rest| !rest.is_empty())?;
        let length = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let line = begin..begin + length;
        let end = if rest[length..].starts_with(b"\r\n") { 2 } else { 1 };
        begin = (line.end + end).min(stream.len());
        Some((line, begin))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_complete_events_with_data_are_counted() {
        for (stream, events) in [
            ("", 0),
            ("data: 1", 0),
            ("data: 1\n", 0),
            ("data: 1\n\n", 1),
            ("id: 7\n\n: idle\n\ndatum: x\n\n", 0),
            ("data: 1\r\ndata: 2\r\n\r\ndata\r\rdata:3", 2),
        ] {
            assert_eq!(count_events(stream.as_bytes()), events, "{stream:?}");
        }
    }

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

    #[test]
    fn the_data_of_each_event_is_found_whatever_the_lines_end_with() {
        for (stream, expected) in [
            ("data: a\n\n", &["a"][..]),
            ("event: message\nid: 7\ndata: a\n\ndata:b\n\n", &["a", "b"]),
            ("data: a\r\ndata: b\r\n\r\ndata: c\r\r", &["a\nb", "c"]),
            ("\u{feff}data:  a\n\n: comment\n\nretry: 5\n\n", &[" a"]),
            ("data\ndata\n\n", &["\n"]),
            ("data: a\n\ndata: cut", &["a", "cut"]),
            ("database: a\n\n", &[]),
            ("\n\n\r\n", &[]),
            ("", &[]),
        ] {
            let found = events(stream.as_bytes());
            let texts: Vec<_> = found.iter().map(|event| event.text(stream.as_bytes())).collect();
            assert_eq!(texts, expected.iter().map(|text| text.as_bytes()).collect::<Vec<_>>(), "{stream:?}");
        }
    }

    #[test]
    fn a_part_of_the_data_is_at_its_place_in_the_stream() {
        let stream = b"id: 1\r\ndata: ab\r\ndata:cd\r\n\r\n";
        let event = &events(stream)[0];
        for (part, expected) in
            [(0..2, Some(&b"ab"[..])), (1..2, Some(b"b")), (3..5, Some(b"cd")), (1..4, None), (5..6, None)]
        {
            assert_eq!(event.locate(&part).map(|place| &stream[place]), expected, "{part:?}");
        }
    }
}
