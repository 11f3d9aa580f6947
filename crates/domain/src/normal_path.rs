//! The forms of a request's path: the normal form, by which requests are matched with routes, and the path that lenient
//! services take it for.

use std::borrow::Cow;
use std::sync::OnceLock;

use super::percent::{escaped_byte, normalize_escapes};

/// A path as it was sent, and the forms in which it is read. Each form is made once for a request.
#[derive(Debug)]
pub struct RequestPath<'a> {
    sent: &'a str,
    normal: Cow<'a, str>,
    lenient: OnceLock<LenientReading>,
}

/// The path that lenient services read.
#[derive(Debug)]
enum LenientReading {
    /// The path as it was sent, without a `/` at the end.
    AsSent,
    Other(Box<str>),
    Several,
}

impl<'a> RequestPath<'a> {
    /// A path without its query.
    pub fn new(sent: &'a str) -> Self {
        Self { sent, normal: normal_form(sent), lenient: OnceLock::new() }
    }

    pub fn sent(&self) -> &'a str {
        self.sent
    }

    pub fn normal(&self) -> &str {
        &self.normal
    }

    pub fn lenient(&self) -> Option<&str> {
        let reading = self.lenient.get_or_init(|| match lenient_form(self.sent) {
            Some(Cow::Borrowed(_)) => LenientReading::AsSent,
            Some(Cow::Owned(form)) => LenientReading::Other(form.into()),
            None => LenientReading::Several,
        });
        match reading {
            LenientReading::AsSent => Some(without_last_slash(self.sent)),
            LenientReading::Other(form) => Some(form),
            LenientReading::Several => None,
        }
    }

    /// The path by which keys are found: the same for all spellings that a lenient service may take for one path,
    /// whatever route guards them. So a key is found again when another route takes the path over. Letters are in lower
    /// case: many services take fixed segments in any case, and which segments are fixed is known to the service alone.
    // See docs/decisions/0018-read-paths-as-services-do.md.
    pub fn key_path(&self) -> String {
        // Only a route whose `spelling` is `pass` guards a path that is one of several.
        self.lenient().unwrap_or(&self.normal).to_ascii_lowercase()
    }
}

/// The normal form of a path: paths that are equivalent by RFC 3986, section 6.2.2, have the same one. So `/v1/p%61y`
/// and `/v1/x/../pay` are guarded like `/v1/pay`, which a service may well take them for.
pub fn normal_form(path: &str) -> Cow<'_, str> {
    // Most paths have neither character, and are scanned once.
    let may_differ = memchr::memchr2(b'%', b'.', path.as_bytes()).is_some();
    if !may_differ || !(path.contains('%') || path.contains("/.")) {
        return Cow::Borrowed(path);
    }
    Cow::Owned(resolve_dots(&normalize_escapes(path)))
}

/// Removes dot segments (RFC 3986, section 5.2.4).
fn resolve_dots(path: &str) -> String {
    let mut segments: Vec<&str> = Vec::new();
    let mut ends_in_directory = false;
    for segment in path.split('/').skip(1) {
        ends_in_directory = matches!(segment, "." | "..");
        match segment {
            "." => {}
            ".." => drop(segments.pop()),
            other => segments.push(other),
        }
    }
    let mut resolved = join(&segments);
    if ends_in_directory && !resolved.ends_with('/') {
        resolved.push('/');
    }
    resolved
}

/// The path behind an authority, where a path begins with `//`. Services that parse their target as a URL reference
/// take `//x/v1/pay` for the path `/v1/pay` at the authority `x` (RFC 3986, section 4.2); some skip further slashes
/// (WHATWG URL).
// See docs/decisions/0018-read-paths-as-services-do.md.
pub fn path_behind_authority(path: &str) -> Option<&str> {
    let authority = path.strip_prefix("//")?.trim_start_matches('/');
    (!authority.is_empty()).then(|| authority.find('/').map_or("/", |at| &authority[at..]))
}

/// Whether a path has a character that no path needs and that programs read in different ways: a plain backslash, or a
/// control character, plain or encoded.
pub fn has_unsafe_character(path: &str) -> bool {
    let is_unsafe = |byte: u8| byte.is_ascii_control() || byte == b'\\';
    path.bytes().any(is_unsafe)
        || memchr::memchr_iter(b'%', path.as_bytes())
            .any(|at| path.get(at..).and_then(escaped_byte).is_some_and(|byte| byte.is_ascii_control()))
}

/// What some services undo before they look a path up. `None` for a path that has nothing of it.
const RESPELLINGS: [fn(&str) -> Option<String>; 6] = [
    // `.` and `..` (RFC 3986, section 5.2.4).
    |path| {
        let has_dots = path.contains("/.") && path.split('/').any(|segment| matches!(segment, "." | ".."));
        has_dots.then(|| resolve_dots(path))
    },
    // `%2F` for `/`.
    |path| path.contains("%2F").then(|| path.replace("%2F", "/")),
    // `%5C` and `\` for `/`.
    |path| (path.contains("%5C") || path.contains('\\')).then(|| path.replace("%5C", "/").replace('\\', "/")),
    // `;parameters` of the last segment, as RFC 1808 had them.
    |path| {
        let last = path.rfind('/').map_or(0, |slash| slash + 1);
        path[last..].find(';').map(|at| path[..last + at].to_owned())
    },
    // `//` for `/`.
    |path| {
        path.contains("//").then(|| {
            let segments: Vec<_> = path.split('/').filter(|segment| !segment.is_empty()).collect();
            let end = if path.ends_with('/') && !segments.is_empty() { "/" } else { "" };
            join(&segments) + end
        })
    },
    // `;parameters` of a segment (RFC 3986, section 3.3).
    |path| {
        let segments = || path.split('/').map(|segment| segment.split(';').next().unwrap_or_default());
        path.contains(';').then(|| segments().collect::<Vec<_>>().join("/"))
    },
];

/// The bound of the work for one path: the bytes of it and of all that it becomes on the way. The longest target with
/// one respelling takes a quarter of it; a path that takes more counts as ambiguous.
const SEEN_BYTES_MAX: usize = 64 * 1024;

/// Reads a path as lenient services do: without a `/` at the end, and with every respelling undone (dot segments,
/// `%2F`, `%5C`, `//`, `;parameters`). The result has no empty segment; the root is `/`. `None` for a path that is one
/// of several.
///
/// A service may undo some respellings and not others, in any order: `/a%2Fb/../pay` is `/pay` for one and `/a/pay` for
/// another. All selections and orders are tried. A result that still has a respelling in it belongs to no route. The
/// results without one must all be the same path.
pub fn lenient_form(path: &str) -> Option<Cow<'_, str>> {
    let bytes = path.as_bytes();
    let is_plain = memchr::memchr3(b'%', b';', b'\\', bytes).is_none()
        && memchr::memmem::find(bytes, b"//").is_none()
        && memchr::memmem::find(bytes, b"/.").is_none();
    if is_plain {
        return Some(Cow::Borrowed(without_last_slash(path)));
    }
    let mut seen = vec![normalize_escapes(path)];
    let mut only_form: Option<String> = None;
    let (mut next, mut bytes_seen) = (0, 0);
    while let Some(current) = seen.get(next).cloned() {
        next += 1;
        bytes_seen += current.len();
        if bytes_seen > SEEN_BYTES_MAX {
            return None;
        }
        let undone: Vec<_> = RESPELLINGS.iter().filter_map(|undo| undo(&current)).collect();
        if undone.is_empty() {
            let form = without_last_slash(&current);
            if only_form.get_or_insert_with(|| form.to_owned()) != form {
                return None;
            }
        }
        for path in undone {
            if !seen.contains(&path) {
                seen.push(path);
            }
        }
    }
    only_form.map(Cow::Owned)
}

fn without_last_slash(path: &str) -> &str {
    path.strip_suffix('/').filter(|rest| !rest.is_empty()).unwrap_or(path)
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
        for (sent, form) in [
            ("/", "/"),
            ("/v1/pay", "/v1/pay"),
            ("/v1/pay/", "/v1/pay"),
            ("//v1/pay", "/v1/pay"),
            ("/v1//pay", "/v1/pay"),
            ("/v1/pay//", "/v1/pay"),
            ("/v1/pay;x=1", "/v1/pay"),
            ("/v1/pay;x=1/", "/v1/pay"),
            ("/v1;a/pay;", "/v1/pay"),
            ("/v1%2Fpay", "/v1/pay"),
            ("/v1%5cpay", "/v1/pay"),
            ("/v1/x/../pay", "/v1/pay"),
            ("/v1/./pay/", "/v1/pay"),
            ("/v1/x/..;/pay", "/v1/pay"),
            ("/v1/x/..%2fpay", "/v1/pay"),
            ("/v1/x/%2e%2e%2fpay", "/v1/pay"),
            ("//v1;a/pay//", "/v1/pay"),
            ("/v1%2F%5Cpay", "/v1/pay"),
            ("//../v1/pay", "/v1/pay"),
            ("/..", "/"),
            ("//", "/"),
            ("/v1/a%20b.c/%", "/v1/a%20b.c/%"),
            ("/.well-known/pay", "/.well-known/pay"),
        ] {
            assert_eq!(lenient_form(sent), Some(form.into()), "{sent}");
        }
    }

    #[test]
    fn a_path_that_takes_more_work_than_its_bound_is_taken_for_several() {
        // It becomes three others, by merging, by decoding and by both: n, n - 2, n - 2 and n - 4 bytes.
        let path = |length: usize| format!("/a//b//c%2F{}", "x".repeat(length - 11));
        let longest = (SEEN_BYTES_MAX + 8) / 4;
        assert_eq!(lenient_form(&path(longest)), Some(format!("/a/b/c/{}", "x".repeat(longest - 11)).into()));
        assert_eq!(lenient_form(&path(longest + 1)), None);
    }

    #[test]
    fn a_path_may_be_taken_for_several() {
        for sent in [
            // What the dots remove is one segment or two, or one of the dots' own.
            "/v1/..;x/../pay",
            "/v1/a%2Fb/../pay",
            "/v1/a%5Cb/../pay",
            "/v1/a%5Cb/..%2fpay",
            "/v1/pay/a%2Fb/..",
            "/v1/pay/..;x/..",
            "/x/..;%2Fpay",
            // RFC 3986 removes the empty segment, nginx the one before it.
            "/v1//../pay", // The encoded slash is a part of the parameter, or ends it.
            "/v1;x%2Fy/pay",
            "/v1;x%5Ca%2fpay",
        ] {
            assert_eq!(lenient_form(sent), None, "{sent}");
        }
    }

    #[test]
    fn all_spellings_of_a_path_share_their_keys() {
        for (path, key_path_of_all) in [
            ("/", "/"),
            ("/v1/pay", "/v1/pay"),
            ("/V1//p%61y/", "/v1/pay"),
            ("/v1/orders/aB;x/PAY", "/v1/orders/ab/pay"),
            ("/v1/a%2fb", "/v1/a/b"),
            ("/x/../v1/./pay", "/v1/pay"),
        ] {
            assert_eq!(RequestPath::new(path).key_path(), key_path_of_all, "{path}");
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
