//! gRPC-Web (`PROTOCOL-WEB.md` in the repository of gRPC): the trailers are the last frame of the body.

use std::borrow::Cow;

use data_encoding::BASE64;
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, HeaderValue};

/// The media type, also with a format like `+proto`.
const BINARY: &[u8] = b"application/grpc-web";
/// The media type of bodies in base64.
const TEXT: &[u8] = b"application/grpc-web-text";
/// Flag and length of a frame.
const FRAME_HEAD: usize = 5;
/// The flag of the frame with the trailers. With a lower bit set too it is compressed.
const TRAILERS: u8 = 0x80;

/// Whether a message is of a gRPC-Web call, by its media type.
pub(super) fn is_grpc_web(headers: &HeaderMap) -> bool {
    is_type(headers, BINARY) || is_type(headers, TEXT)
}

fn is_type(headers: &HeaderMap, essence: &[u8]) -> bool {
    let media_type = headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes);
    let begins = |value: &[u8]| value.get(..essence.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(essence));
    let format = media_type.filter(|value| begins(value)).map(|value| &value[essence.len()..]);
    format.is_some_and(|format| matches!(format.trim_ascii_start().first(), None | Some(b'+' | b';')))
}

/// The frames of a body with these fields; `None` if they cannot be decoded.
fn frames<'a>(headers: &HeaderMap, body: &'a [u8]) -> Option<Cow<'a, [u8]>> {
    if is_type(headers, TEXT) {
        // Each flush of a server ends with padding of its own; the decoder reads them one after the other.
        Some(Cow::Owned(BASE64.decode(body).ok()?))
    } else {
        is_type(headers, BINARY).then_some(Cow::Borrowed(body))
    }
}

/// Whether the body of a response with these fields begins with a message, or cannot be read.
pub(super) fn has_message(headers: &HeaderMap, body: &[u8]) -> bool {
    frames(headers, body).is_none_or(|frames| frames.first().is_some_and(|flag| flag & TRAILERS == 0))
}

/// The trailers in the body of a response with these fields; `None` if it does not end with a frame that can be read.
pub fn trailers(headers: &HeaderMap, body: &[u8]) -> Option<HeaderMap> {
    let body = frames(headers, body)?;
    let mut rest = &*body;
    loop {
        let (head, behind) = rest.split_at_checked(FRAME_HEAD)?;
        let length = u32::from_be_bytes([head[1], head[2], head[3], head[4]]);
        let (frame, behind) = behind.split_at_checked(usize::try_from(length).ok()?)?;
        match head[0] {
            TRAILERS if behind.is_empty() => return parse_fields(frame),
            flag if flag & TRAILERS != 0 => return None,
            _ => rest = behind,
        }
    }
}

/// Reads `name: value` lines.
fn parse_fields(block: &[u8]) -> Option<HeaderMap> {
    let mut fields = HeaderMap::new();
    for line in block.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        let (name, value) = line.split_at(memchr::memchr(b':', line)?);
        let (name, value) =
            (HeaderName::from_bytes(name).ok()?, HeaderValue::from_bytes(value[1..].trim_ascii()).ok()?);
        fields.try_append(name, value).ok()?;
    }
    Some(fields)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn typed(media_type: &'static str) -> HeaderMap {
        [(CONTENT_TYPE, HeaderValue::from_static(media_type))].into_iter().collect()
    }

    fn frame(flag: u8, data: &str) -> Vec<u8> {
        [&[flag][..], &(data.len() as u32).to_be_bytes(), data.as_bytes()].concat()
    }

    /// More fields than a map has room for.
    fn many_fields() -> String {
        (0..40_000).map(|number| format!("x-{number}: 1\r\n")).collect()
    }

    #[test]
    fn the_media_type_of_a_call_may_have_a_format_and_parameters() {
        for (media_type, is_web) in [
            ("application/grpc-web", true),
            ("application/grpc-web+proto", true),
            ("application/grpc-web+json; charset=utf-8", true),
            ("application/grpc-web-text", true),
            ("Application/gRPC-Web-Text+proto", true),
            ("application/grpc-web ;x=y", true),
            ("application/grpc", false),
            ("application/grpc-webx", false),
            ("application/json", false),
        ] {
            assert_eq!(is_grpc_web(&typed(media_type)), is_web, "{media_type}");
        }
    }

    #[test]
    fn the_trailers_are_the_last_frame_of_the_body() {
        let status = |body: &[u8]| {
            let found = trailers(&typed("application/grpc-web+proto"), body)?;
            Some(found["grpc-status"].to_str().unwrap().to_owned())
        };
        let end = frame(0x80, "grpc-status: 14\r\ngrpc-message:no\r\n");
        for (body, found) in [
            (end.clone(), Some("14")),
            (frame(0x80, "Grpc-Status:0"), Some("0")),
            ([frame(0, "a message"), end.clone()].concat(), Some("14")),
            ([frame(1, "compressed"), frame(0, ""), end.clone()].concat(), Some("14")),
            (frame(0, "a message"), None),
            (Vec::new(), None),
            ([&frame(0, "a message")[..], &end[..end.len() - 1]].concat(), None),
            ([end.clone(), frame(0, "a message")].concat(), None),
            (frame(0x81, "compressed"), None),
            (frame(0x80, "no colon"), None),
            (frame(0x80, &many_fields()), None),
            (b"<html>".to_vec(), None),
        ] {
            assert_eq!(status(&body).as_deref(), found, "{body:?}");
        }
    }

    #[test]
    fn a_body_in_base64_may_have_padding_after_each_frame() {
        let (message, end) = (frame(0, "ab"), frame(0x80, "grpc-status:5\r\n"));
        let headers = typed("application/grpc-web-text+proto");
        let each = format!("{}{}", BASE64.encode(&message), BASE64.encode(&end));
        let whole = BASE64.encode(&[message.clone(), end].concat());
        assert!(each.contains("==") && each != whole);
        for body in [each, whole] {
            assert_eq!(trailers(&headers, body.as_bytes()).unwrap()["grpc-status"], "5", "{body}");
        }
        assert_eq!(trailers(&headers, b"%%%"), None);
    }
}
