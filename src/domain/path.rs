//! Paths, spelt as they are matched.

use std::borrow::Cow;

/// The path as everything is matched with it: what RFC 3986 section 6.2.2 calls equivalent is spelt alike, so that
/// `/v1/p%61y` and `/v1/x/../pay` are guarded like `/v1/pay`, which is what a service may well take them for.
pub fn normal_form(path: &str) -> Cow<'_, str> {
    // Most paths have neither character, and are looked through once.
    let may_differ = memchr::memchr2(b'%', b'.', path.as_bytes()).is_some();
    if !may_differ || !(path.contains('%') || path.contains("/.")) {
        return Cow::Borrowed(path);
    }
    let decoded = decode_unreserved(path);
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in decoded.split('/').skip(1) {
        ends_in_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => {
                segments.pop();
            }
            other => segments.push(other),
        }
    }
    let mut resolved = String::with_capacity(decoded.len());
    for segment in &segments {
        resolved.push('/');
        resolved.push_str(segment);
    }
    if ends_in_directory || resolved.is_empty() {
        resolved.push('/');
    }
    Cow::Owned(resolved)
}

/// Decodes `%XX` of letters, digits, `-`, `.`, `_` and `~`, which mean the same either way. Others stay: `%2F` is no `/`.
pub(super) fn decode_unreserved(path: &str) -> String {
    let mut decoded = String::with_capacity(path.len());
    let mut rest = path;
    while let Some(at) = rest.find('%') {
        decoded.push_str(&rest[..at]);
        let byte = rest.get(at + 1..at + 3).and_then(|hex| u8::from_str_radix(hex, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                decoded.push(char::from(byte));
                rest = &rest[at + 3..];
            }
            _ => {
                decoded.push('%');
                rest = &rest[at + 1..];
            }
        }
    }
    decoded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equivalent_paths_are_matched_alike() {
        for (sent, matched) in [
            ("/v1/pay", "/v1/pay"),
            ("/v1/p%61y", "/v1/pay"),
            ("/v1/%70%61%79", "/v1/pay"),
            ("/v1/x/../pay", "/v1/pay"),
            ("/v1/./pay", "/v1/pay"),
            ("/v1/%2e%2E/pay", "/pay"),
            ("/../../pay", "/pay"),
            ("/v1/pay/..", "/v1/"),
            ("/v1/pay/.", "/v1/pay/"),
            ("/v1%2Fpay", "/v1%2Fpay"),
            ("/v1/%", "/v1/%"),
            ("/v1/%6", "/v1/%6"),
            ("/v1/%+1", "/v1/%+1"),
            ("/.well-known/x", "/.well-known/x"),
            ("/..", "/"),
        ] {
            assert_eq!(normal_form(sent), matched, "{sent}");
        }
    }
}
