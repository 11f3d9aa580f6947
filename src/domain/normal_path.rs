//! The normal form of paths, by which requests are matched with routes, and the paths that lenient services take them for.

use std::borrow::Cow;

use super::percent::{escaped_byte, normalize_escapes};

/// The normal form of a path: paths that are equivalent by RFC 3986, section 6.2.2, have the same one. So `/v1/p%61y`
/// and `/v1/x/../pay` are guarded like `/v1/pay`, which a service may well take them for.
pub fn normal_form(path: &str) -> Cow<'_, str> {
    // Most paths have neither character, and are scanned once.
    let may_differ = memchr::memchr2(b'%', b'.', path.as_bytes()).is_some();
    if !may_differ || !(path.contains('%') || path.contains("/.")) {
        return Cow::Borrowed(path);
    }
    let decoded = normalize_escapes(path);
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
    let mut resolved = join(&segments);
    if ends_in_directory && !resolved.ends_with('/') {
        resolved.push('/');
    }
    Cow::Owned(resolved)
}

/// Whether a path has a character that no path needs and that programs read in different ways: a backslash, or a
/// control character, encoded or not.
pub fn has_unsafe_character(path: &str) -> bool {
    let is_unsafe = |byte: u8| byte.is_ascii_control() || byte == b'\\';
    path.bytes().any(is_unsafe)
        || memchr::memchr_iter(b'%', path.as_bytes())
            .any(|at| path.get(at..).and_then(escaped_byte).is_some_and(|byte| byte.is_ascii_control()))
}

/// The paths that lenient services take a path for. None has an empty segment; the root is `/`.
pub enum LenientForms<'a> {
    /// The path itself, without a `/` at its end.
    Plain(&'a str),
    /// Paths that are spelled otherwise; at least one.
    Respelled(Vec<String>),
}

impl LenientForms<'_> {
    /// The forms, each once.
    pub fn iter(&self) -> impl Iterator<Item = &str> {
        let (plain, respelled) = match self {
            Self::Plain(path) => (Some(*path), &[][..]),
            Self::Respelled(forms) => (None, &forms[..]),
        };
        plain.into_iter().chain(respelled.iter().map(String::as_str))
    }

    /// Whether services differ in what they take the path for.
    pub fn are_several(&self) -> bool {
        matches!(self, Self::Respelled(forms) if forms.len() > 1)
    }

    /// The form that RFC 3986 suggests: parameters and dot segments are removed first.
    pub fn first(&self) -> &str {
        self.iter().next().expect("there is at least one form")
    }
}

/// Reads a path as lenient services do: `//` as `/`, without a `/` at the end, without `;parameters`, and with `%2F` and
/// `%5C` as `/`.
///
/// There are several forms where these steps and the removal of dot segments give other results in another order: services
/// differ in it.
pub fn lenient_forms(path: &str) -> LenientForms<'_> {
    let bytes = path.as_bytes();
    let is_plain = memchr::memchr3(b'%', b';', b'\\', bytes).is_none()
        && memchr::memmem::find(bytes, b"//").is_none()
        && memchr::memmem::find(bytes, b"/.").is_none();
    if is_plain {
        let trimmed = path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path);
        return LenientForms::Plain(trimmed);
    }
    let unescaped = normalize_escapes(path);
    let parameters_first = decode_slashes(&remove_parameters(&unescaped));
    let slashes_first = remove_parameters(&decode_slashes(&unescaped));
    let mut forms: Vec<String> = Vec::new();
    for text in [&parameters_first, &slashes_first] {
        for form in [resolve_then_merge(text), merge_then_resolve(text)] {
            if !forms.contains(&form) {
                forms.push(form);
            }
        }
    }
    LenientForms::Respelled(forms)
}

fn decode_slashes(path: &str) -> String {
    path.replace("%2F", "/").replace("%5C", "/").replace('\\', "/")
}

/// Removes the parameters of each segment: what follows a `;` (RFC 3986, section 3.3).
fn remove_parameters(path: &str) -> String {
    let segments: Vec<_> = path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
    segments.join("/")
}

fn resolve_then_merge(path: &str) -> String {
    let mut resolved = resolve(path.split('/').skip(1));
    resolved.retain(|segment| !segment.is_empty());
    join(&resolved)
}

fn merge_then_resolve(path: &str) -> String {
    join(&resolve(path.split('/').filter(|segment| !segment.is_empty())))
}

/// Removes dot segments.
fn resolve<'a>(segments: impl Iterator<Item = &'a str>) -> Vec<&'a str> {
    let mut resolved = Vec::new();
    for segment in segments {
        match segment {
            "." => {}
            ".." => drop(resolved.pop()),
            other => resolved.push(other),
        }
    }
    resolved
}

fn join(segments: &[&str]) -> String {
    if segments.is_empty() { "/".to_owned() } else { segments.iter().flat_map(|segment| ["/", *segment]).collect() }
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
            ("/v1%2fpay", "/v1%2Fpay"),
            ("/v1/caf%c3%a9", "/v1/caf%C3%A9"),
            ("/v1/%", "/v1/%"),
            ("/v1/%6", "/v1/%6"),
            ("/v1/%+1", "/v1/%+1"),
            ("/.well-known/x", "/.well-known/x"),
            ("/..", "/"),
        ] {
            assert_eq!(normal_form(sent), matched, "{sent}");
        }
    }

    #[test]
    fn a_lenient_service_takes_many_spellings_for_one_path() {
        for (sent, forms) in [
            ("/", &["/"][..]),
            ("/v1/pay", &["/v1/pay"]),
            ("/v1/pay/", &["/v1/pay"]),
            ("//v1/pay", &["/v1/pay"]),
            ("/v1//pay", &["/v1/pay"]),
            ("/v1/pay//", &["/v1/pay"]),
            ("/v1/pay;x=1", &["/v1/pay"]),
            ("/v1;a/pay;", &["/v1/pay"]),
            ("/v1%2Fpay", &["/v1/pay"]),
            ("/v1%5cpay", &["/v1/pay"]),
            ("/v1/x/../pay", &["/v1/pay"]),
            ("/v1/x/..;/pay", &["/v1/pay"]),
            ("/v1/x/..%2fpay", &["/v1/pay"]),
            ("/v1/x/%2e%2e%2fpay", &["/v1/pay"]),
            // RFC 3986 removes the empty segment, nginx the one before it.
            ("/v1//../pay", &["/v1/pay", "/pay"]),
            // The encoded slash is a part of the parameter, or ends it.
            ("/v1;x%2Fy/pay", &["/v1/pay", "/v1/y/pay"]),
            ("/..", &["/"]),
            ("//", &["/"]),
        ] {
            assert_eq!(lenient_forms(sent).iter().collect::<Vec<_>>(), forms, "{sent}");
        }
    }

    #[test]
    fn control_characters_and_backslashes_are_unsafe() {
        for path in ["/a\\b", "/a%00", "/a%0a", "/%1Fa", "/a%7f", "/a\u{1}", "/a\u{7f}"] {
            assert!(has_unsafe_character(path), "{path:?}");
        }
        for path in ["/", "/a%20b", "/a%5Cb", "/a%2Fb", "/caf%C3%A9", "/%", "/%0", "/%+1", "/100%\u{e9}"] {
            assert!(!has_unsafe_character(path), "{path:?}");
        }
    }
}
