//! The encoding of text that a message names for its body.

use http::HeaderMap;
use http::header::CONTENT_TYPE;

/// The encodings in which ASCII is ASCII. A JSON-RPC method, the names of a document's members and a key are ASCII.
const PLAIN: [&[u8]; 6] = [b"utf-8", b"\"utf-8\"", b"utf8", b"us-ascii", b"iso-8859-1", b"\"iso-8859-1\""];

/// Whether the ASCII in a body is the same text for a service that decodes by the `Content-Type`. In UTF-7, `+AHQ-` is
/// a `t`. A value that has `charset` anywhere else than in its plain form does not count as one that names a plain
/// encoding.
pub fn is_plain(headers: &HeaderMap) -> bool {
    let lines = headers.get_all(CONTENT_TYPE).iter();
    lines.flat_map(|line| line.as_bytes().split(|byte| *byte == b';')).all(|part| {
        let part = part.trim_ascii().to_ascii_lowercase();
        match part.strip_prefix(b"charset=") {
            Some(name) => PLAIN.contains(&name),
            None => memchr::memmem::find(&part, b"charset").is_none(),
        }
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn a_body_is_plain_unless_a_content_type_may_name_another_encoding() {
        for (lines, expected) in [
            (&[][..], true),
            (&["application/json"], true),
            (&["application/json; charset=utf-8"], true),
            (&["application/json;charset=\"UTF-8\"; profile=a"], true),
            (&["application/x-www-form-urlencoded; charset=ISO-8859-1"], true),
            (&["application/json; charset=utf8", "text/plain"], true),
            (&["application/json; charset=utf-16"], false),
            (&["application/json; charset=utf-7"], false),
            (&["application/json; charset=IBM037"], false),
            (&["application/json; charset="], false),
            (&["application/json; a=b;Charset=\"utf-7\""], false),
            (&["application/json; charset=utf-8; charset=utf-7"], false),
            (&["application/json; charset*=utf-8''utf-7"], false),
            (&["application/json; charset = utf-8"], false),
            (&["application/json; a=\";charset=utf-7\""], false),
            (&["application/json charset=utf-7"], false),
            (&["application/json", "application/json; charset=utf-7"], false),
        ] {
            let mut headers = HeaderMap::new();
            for line in lines {
                headers.append(CONTENT_TYPE, HeaderValue::from_static(line));
            }
            assert_eq!(is_plain(&headers), expected, "{lines:?}");
        }
    }
}
