//! Streams of server-sent events: where the data of each event is.

use std::borrow::Cow;
use std::ops::Range;

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

/// The data of the events in a whole stream, in order. The last event counts without the blank line that should end it, as some
/// clients read it.
pub fn events(stream: &[u8]) -> Vec<EventData> {
    let (mut events, mut lines) = (Vec::new(), Vec::new());
    for line in lines_of(stream) {
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

/// The lines of a stream without their ends: CR LF, LF or CR. A byte order mark before the first one does not count.
fn lines_of(stream: &[u8]) -> impl Iterator<Item = Range<usize>> {
    let mut begin = if stream.starts_with(b"\xef\xbb\xbf") { 3 } else { 0 };
    std::iter::from_fn(move || {
        let rest = stream.get(begin..).filter(|rest| !rest.is_empty())?;
        let length = memchr::memchr2(b'\r', b'\n', rest).unwrap_or(rest.len());
        let line = begin..begin + length;
        let end = if rest[length..].starts_with(b"\r\n") { 2 } else { 1 };
        begin = line.end + end;
        Some(line)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
