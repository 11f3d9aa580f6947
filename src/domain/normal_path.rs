//! The normal form of paths, by which requests are matched with routes.

use std::borrow::Cow;

use super::percent::decode_unreserved;

/// The normal form of a path: paths that are equivalent by RFC 3986, section 6.2.2, have the same one. So `/v1/p%61y`
/// and
/// `/v1/x/../pay` are guarded like `/v1/pay`, which a service may well take them for.
pub fn normal_form(path: &str) -> Cow<'_, str> {
    // Most paths have neither character, and are scanned once.
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
