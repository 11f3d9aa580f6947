//! A stored response: the status, the fields and trailers as one block, and the raw body.

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

/// The most names of fields that are read from anything but HTTP, whose readers have narrower limits. A [`HeaderMap`]
/// panics beyond 24,576 names: this leaves room for those that are added.
pub const FIELDS_MAX: usize = 16_384;

/// An upstream's response, as it is stored and replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredResponse {
    pub status: StatusCode,
    /// The end-to-end header fields: all values, in order.
    pub headers: HeaderMap,
    /// The body; `None` where it was too large to keep: a retry is then refused with `response-not-kept`.
    pub body: Option<Bytes>,
    /// The trailer fields; mostly empty.
    pub trailers: HeaderMap,
}

/// A row that does not decode. It is an error, and never taken for a free key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored record does not decode: {0}")]
pub struct CorruptRow(pub &'static str);

/// Writes a field as a line of HTTP/1.1.
pub fn write_field(block: &mut Vec<u8>, name: &HeaderName, value: &HeaderValue) {
    for piece in [name.as_str().as_bytes(), b": ", value.as_bytes(), b"\r\n"] {
        block.extend_from_slice(piece);
    }
}

impl StoredResponse {
    /// Fields and trailers as one block: a line `name: value\r\n` for each field, an empty line, then the trailers
    /// alike.
    ///
    /// It is the form of RFC 9112 section 5 because that has no ambiguity (a value holds neither CR nor LF), because a
    /// function in SQL can write it, and because an operator can read it.
    pub fn encode_fields(&self) -> Vec<u8> {
        let size = |map: &HeaderMap| map.iter().map(|(n, v)| n.as_str().len() + v.len() + 4).sum::<usize>();
        let mut block = Vec::with_capacity(size(&self.headers) + size(&self.trailers) + 2);
        for (map, end) in [(&self.headers, &b"\r\n"[..]), (&self.trailers, &b""[..])] {
            for (name, value) in map {
                write_field(&mut block, name, value);
            }
            block.extend_from_slice(end);
        }
        block
    }

    /// Decodes a response from its columns.
    ///
    /// Every name and value is checked again, so that a changed row cannot split a response. The values share the
    /// block's memory.
    /// An error: the status is not 200 to 599, or the block is not of the form of [`Self::encode_fields`] or
    /// has more than [`FIELDS_MAX`] names.
    pub fn decode(status: i16, fields: &Bytes, body: Option<Bytes>) -> Result<Self, CorruptRow> {
        let status = u16::try_from(status)
            .ok()
            .filter(|code| (200..600).contains(code))
            .and_then(|code| StatusCode::from_u16(code).ok())
            .ok_or(CorruptRow("status"))?;
        let mut maps = [HeaderMap::new(), HeaderMap::new()];
        let mut part = 0;
        let mut rest = &fields[..];
        while !rest.is_empty() {
            let end = memchr::memmem::find(rest, b"\r\n").ok_or(CorruptRow("a field line without an end"))?;
            let line = &rest[..end];
            rest = &rest[end + 2..];
            if line.is_empty() {
                part += 1;
                if part == maps.len() {
                    return Err(CorruptRow("more than two sections of fields"));
                }
                continue;
            }
            let colon = memchr::memchr(b':', line).ok_or(CorruptRow("a field line without a colon"))?;
            let value = line[colon + 1..].strip_prefix(b" ").ok_or(CorruptRow("a field line without its space"))?;
            let name = HeaderName::from_bytes(&line[..colon]).map_err(|_| CorruptRow("a field name"))?;
            let value =
                HeaderValue::from_maybe_shared(fields.slice_ref(value)).map_err(|_| CorruptRow("a field value"))?;
            if maps[part].keys_len() == FIELDS_MAX {
                return Err(CorruptRow("too many fields"));
            }
            maps[part].append(name, value);
        }
        if part == 0 {
            return Err(CorruptRow("the fields' end is missing"));
        }
        let [headers, trailers] = maps;
        Ok(Self { status, headers, body, trailers })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> StoredResponse {
        let mut headers = HeaderMap::new();
        headers.append("x-b", HeaderValue::from_static("2"));
        headers.append("x-a", HeaderValue::from_bytes(b"caf\xe9: yes").unwrap());
        headers.append("x-b", HeaderValue::from_static(""));
        let mut trailers = HeaderMap::new();
        trailers.append("checksum", HeaderValue::from_static("abc"));
        StoredResponse { status: StatusCode::CREATED, headers, body: Some(Bytes::from_static(b"\0\xff")), trailers }
    }

    #[test]
    fn a_response_survives_its_encoding() {
        let response = sample();
        let again = StoredResponse::decode(201, &response.encode_fields().into(), response.body.clone()).unwrap();
        assert_eq!(again, response);
    }

    #[test]
    fn no_row_can_split_a_response() {
        for (fields, why) in [
            (&b"a: b\nc: d\r\n\r\n"[..], "a field value"),
            (b"a: b\rc\r\n\r\n", "a field value"),
            (b"a b: c\r\n\r\n", "a field name"),
            (b"a:c\r\n\r\n", "a field line without its space"),
            (b"abc\r\n\r\n", "a field line without a colon"),
            (b"a: b\r\n\r\na: b\r\n\r\n", "more than two sections of fields"),
            (b"a: b", "a field line without an end"),
            (b"a: b\r\n", "the fields' end is missing"),
            (b"", "the fields' end is missing"),
        ] {
            let fields = Bytes::from_static(fields);
            assert_eq!(StoredResponse::decode(200, &fields, None), Err(CorruptRow(why)), "{fields:?}");
        }
        let many: String = (0..40_000).map(|number| format!("x-{number}: 1\r\n")).chain(["\r\n".into()]).collect();
        assert_eq!(StoredResponse::decode(200, &many.into(), None), Err(CorruptRow("too many fields")));
        for status in [-1, 0, 99, 101, 600, 999] {
            assert_eq!(StoredResponse::decode(status, &Bytes::from_static(b"\r\n"), None), Err(CorruptRow("status")));
        }
    }
}
