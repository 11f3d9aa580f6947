//! Paths in other spellings.

use std::sync::LazyLock;

use http::Method;
use oncegate_domain::normal_path::{RequestPath, has_unsafe_character, lenient_form, normal_form};
use oncegate_domain::path_pattern::PathPattern;
use oncegate_domain::route_table::{RouteMatch, RouteTable, Spelling};

use super::bytes_reader::BytesReader;

static ROUTES: LazyLock<RouteTable<&'static str>> = LazyLock::new(|| {
    let mut table = RouteTable::default();
    for path in ["/v1/pay", "/v1/orders/{id}", "/v2/{*rest}"] {
        let pattern = PathPattern::parse(path).expect("it is one");
        table.insert(&[Method::POST], &pattern, Spelling::Refuse, &path);
    }
    table
});

/// Checks a path. The input's first line is the steps of a lenient server; it parses the path as a URL reference
/// before, if the first is above 127.
///
/// - A normal form is its own normal form, and a lenient form its own lenient form, unless a `%` has no two digits
///   behind it.
/// - A path that no route guards is read as no guarded path by the server.
/// - A path that the server reads as a guarded one, and that is not ambiguous, has its keys.
pub fn check(input: &[u8]) {
    let mut input = BytesReader::new(input);
    let steps = input.line();
    let Some(path) = std::str::from_utf8(input.rest()).ok().filter(|path| is_path(path)) else { return };
    if is_well_escaped(path) {
        let normal = normal_form(path);
        assert_eq!(normal_form(&normal), normal);
        if let Some(form) = lenient_form(path) {
            assert_eq!(lenient_form(&form), Some(form.clone()));
            assert_eq!(key_path(&key_path(path)), key_path(path));
        }
    }
    let reads_authority = steps.first().is_some_and(|step| *step >= 128);
    let behind = if reads_authority { skip_authority(path) } else { path.to_owned() };
    let read = steps.iter().take(12).fold(decode_unreserved(&behind), |path, step| take_step(&path, *step));
    if has_unsafe_character(path) || !is_guarded(&read) {
        return;
    }
    match ROUTES.find(&Method::POST, &RequestPath::new(path)) {
        RouteMatch::NoRoute => panic!("{path} is not guarded, and read as {read}"),
        RouteMatch::Route(_) => assert_eq!(key_path(path), key_path(&read), "{path} has other keys than {read}"),
        RouteMatch::Ambiguous(_) => {}
    }
}

/// Whether a text can be a request's path: the framing guard refuses every other one.
fn is_path(text: &str) -> bool {
    text.starts_with('/') && text.bytes().all(|byte| byte.is_ascii_graphic() && !b"\"#<>`?".contains(&byte))
}

fn is_well_escaped(path: &str) -> bool {
    path.split('%').skip(1).all(|after| after.len() >= 2 && after.bytes().take(2).all(|byte| byte.is_ascii_hexdigit()))
}

/// Whether a server that has read this path finds a guarded one. It tells no letters by their case, and no path by a
/// `/` at its end.
fn is_guarded(path: &str) -> bool {
    // A server that leaves one of these as it is looks for a path that has it.
    if path.contains(['%', ';', '\\']) || path.contains("//") || path.contains("/.") {
        return false;
    }
    let path = path.to_ascii_lowercase();
    match path.trim_start_matches('/').trim_end_matches('/').split('/').collect::<Vec<_>>()[..] {
        ["v1", "pay"] | ["v2", ..] => true,
        ["v1", "orders", id] => !id.is_empty(),
        _ => false,
    }
}

/// The path of a URL reference without a scheme (RFC 3986, section 4.2).
fn skip_authority(path: &str) -> String {
    let Some(rest) = path.strip_prefix("//") else { return path.to_owned() };
    let segments: Vec<_> = rest.split('/').skip_while(|segment| segment.is_empty()).skip(1).collect();
    format!("/{}", segments.join("/"))
}

/// A server's step: the first letters of the list are those of the steps.
fn take_step(path: &str, step: u8) -> String {
    match step % 6 {
        0 => remove_dot_segments(path),
        1 => path.replace("%2F", "/").replace("%2f", "/"),
        2 => path.replace("%5C", "/").replace("%5c", "/").replace('\\', "/"),
        3 => match path.rsplit_once('/') {
            Some((folder, last)) => format!("{folder}/{}", last.split(';').next().unwrap_or_default()),
            None => path.to_owned(),
        },
        4 => path.chars().fold(String::new(), |mut merged, letter| {
            if letter != '/' || !merged.ends_with('/') {
                merged.push(letter);
            }
            merged
        }),
        _ => {
            let segments: Vec<_> =
                path.split('/').map(|segment| segment.split(';').next().unwrap_or_default()).collect();
            segments.join("/")
        }
    }
}

/// RFC 3986, section 5.2.4, as it is written there.
fn remove_dot_segments(path: &str) -> String {
    let (mut input, mut output) = (path.to_owned(), String::new());
    while !input.is_empty() {
        if let Some(rest) = input.strip_prefix("/./") {
            input = format!("/{rest}");
        } else if input == "/." {
            input = "/".to_owned();
        } else if input.starts_with("/../") || input == "/.." {
            input = format!("/{}", &input[input.len().min(4)..]);
            output.truncate(output.rfind('/').unwrap_or_default());
        } else {
            let end = input[1..].find('/').map_or(input.len(), |at| at + 1);
            output.push_str(&input[..end]);
            input = input[end..].to_owned();
        }
    }
    output
}

/// Decodes the escapes of letters, digits, `-`, `.`, `_` and `~`, which every server decodes.
fn decode_unreserved(path: &str) -> String {
    let mut pieces = path.split('%');
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |decoded, piece| {
        let byte = piece.get(..2).filter(|digits| digits.bytes().all(|digit| digit.is_ascii_hexdigit()));
        let byte = byte.and_then(|digits| u8::from_str_radix(digits, 16).ok());
        match byte {
            Some(byte) if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
                format!("{decoded}{}{}", char::from(byte), &piece[2..])
            }
            _ => format!("{decoded}%{piece}"),
        }
    })
}

fn key_path(path: &str) -> String {
    RequestPath::new(path).key_path()
}
