//! `${NAME}`, `${NAME:-default}` and `${file:PATH}` in the file's strings.
//!
//! Interpolation comes after parsing: a variable's value cannot become a key, a table or a second value. Nor can the
//! value of a user or a password become a URL's host: it is taken as it is, whatever characters it has.

use std::io;
use std::path::Path;

use super::environment::{Environment, ProcessEnvironment};
use oncegate_domain::percent::encode_value;
use oncegate_settings::{ParseResult, show_whole_path};

/// The beginning of a placeholder for the content of a file.
const FILE: &str = "${file:";

/// The beginning of a stand-in for a value that is absent here. As long as a secret must be.
pub(super) const STAND_IN: &str = "stand-in-for-a-value-elsewhere-";

/// The stand-in for the value of this name: another one for each, and valid in the host of a URL.
fn stand_in(name: &str) -> String {
    let letters = name.bytes().filter(u8::is_ascii_alphanumeric).map(|byte| char::from(byte.to_ascii_lowercase()));
    STAND_IN.chars().chain(letters).take(63).collect()
}

/// Whether a text is a placeholder and nothing else, so that a value of any form may stand for it.
pub(super) fn is_one_placeholder(text: &str) -> bool {
    text.strip_prefix("${").and_then(|rest| rest.strip_suffix('}')).is_some_and(|inside| !inside.contains('}'))
}

/// Stand-ins for a value whose option has a form.
pub(super) const STAND_INS: [&str; 4] = [
    "https://stand-in.invalid",
    "amqp://stand-in.invalid",
    "redis://stand-in.invalid",
    "whsec_c3RhbmQtaW4tZm9yLWEtc2VjcmV0LWVsc2V3aGVyZQ==",
];

/// The stand-in for the URL of the store.
pub(super) const STAND_IN_STORE: &str = "postgres://stand-in.invalid/db";

/// Reads a file as text.
type ReadText<'a> = dyn Fn(&Path) -> io::Result<String> + 'a;

/// Interpolates a text, or returns all of its problems, which have names and paths and never their contents.
pub(super) fn interpolate(
    text: &str,
    environment: &dyn Environment,
    read: &ReadText<'_>,
) -> Result<String, Vec<String>> {
    if let Some(problem) = find_foreign_placeholder(text) {
        return Err(vec![problem]);
    }
    let (mut filled, mut problems) = (String::new(), Vec::new());
    let mut rest = text;
    while let Some(start) = rest.find("${") {
        if let Some(before) = rest[..start].strip_suffix('$') {
            filled.push_str(before);
            filled.push_str("${");
            rest = &rest[start + 2..];
            continue;
        }
        filled.push_str(&rest[..start]);
        let inside = &rest[start + 2..];
        let Some(end) = inside.find('}') else {
            problems.push("a `${` has no `}`; for the two characters themselves write `$${`".into());
            rest = "";
            break;
        };
        match look_up(&inside[..end], environment, read) {
            Ok(value) if is_in_userinfo(&text[..text.len() - inside.len() - 2], &inside[end + 1..]) => {
                filled.push_str(&encode_value(value.as_bytes()).to_string());
            }
            Ok(value) => filled.push_str(&value),
            Err(message) => problems.push(message),
        }
        rest = &inside[end + 1..];
    }
    filled.push_str(rest);
    if problems.is_empty() { Ok(filled) } else { Err(problems) }
}

/// Fills in a text anew, with its files as they are now; `None` where one of them is a pipe, which can be read only
/// once.
pub(super) fn interpolate_again(text: &str) -> ParseResult<Option<String>> {
    if files_of(text).any(|file| std::fs::metadata(file).is_ok_and(|found| !found.is_file())) {
        return Ok(None);
    }
    let filled = interpolate(text, &ProcessEnvironment, &|path| ProcessEnvironment.read(path));
    filled.map(Some).map_err(|problems| format!("cannot be read again: {}", problems.join(", ")))
}

/// Whether a placeholder is in the user or the password of a URL (RFC 3986 section 3.2.1), by the written text around
/// it.
fn is_in_userinfo(before: &str, behind: &str) -> bool {
    const ENDS: [char; 4] = ['/', '?', '#', '@'];
    let (before, behind) = (without_placeholders(before), without_placeholders(behind));
    let begins = before.split_once("://").is_some_and(|(_, rest)| !rest.contains(ENDS));
    begins && behind.find(ENDS).is_some_and(|end| behind[end..].starts_with('@'))
}

fn without_placeholders(text: &str) -> String {
    let mut pieces = text.split("${");
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |written, piece| written + piece.split_once('}').map_or("", |(_, rest)| rest))
}

/// The text with each of its files in this folder, unless it has a whole path.
pub(super) fn place_files(text: &str, folder: &Path) -> String {
    let mut pieces = text.split(FILE);
    let first = pieces.next().unwrap_or_default().to_owned();
    pieces.fold(first, |placed, piece| match piece.split_once('}') {
        // `$${` is a literal.
        Some((path, rest)) if !placed.ends_with('$') => {
            format!("{placed}{FILE}{}}}{rest}", folder.join(path).display())
        }
        _ => format!("{placed}{FILE}{piece}"),
    })
}

/// The files that a text names, in their order.
pub(super) fn files_of(text: &str) -> impl Iterator<Item = &Path> {
    text.split(FILE).skip(1).filter_map(|rest| rest.split_once('}')).map(|(path, _)| Path::new(path))
}

/// Returns the problem of a text with a placeholder of a shell, a template language or a manual, which nothing here
/// fills in: the placeholder itself would become the secret, or the password. The problem does not show the text, which
/// may be a password after all.
fn find_foreign_placeholder(text: &str) -> Option<String> {
    let is_shells = |text: &str| text.strip_prefix('$').is_some_and(is_name);
    let is_between = |start, end| text.len() > 2 && text.starts_with(start) && text.ends_with(end);
    // XML has tags within.
    let is_manuals = is_between("<", ">") && !text[1..].contains('<') && !text.ends_with("/>");
    let is_templates = is_between("{{", "}}") || is_manuals || is_between("$(", ")");
    let is_windows = is_between("%", "%") && is_name(&text[1..text.len() - 1]);
    if is_shells(text) || is_templates || is_windows {
        return Some("is a placeholder that nothing fills in: write `${NAME}` or `${file:/path}`".into());
    }
    // Elsewhere these characters in the middle may be meant.
    if !is_url(text) {
        return None;
    }
    if has_template(&without_placeholders(text)) {
        return Some(
            "has a placeholder that nothing fills in: write `${NAME}` or `${file:/path}`, or percent-encode the characters \
             themselves (`%3C` for `<`)"
                .into(),
        );
    }
    has_shell_variable(text)
        .then(|| "has a `$NAME` that nothing fills in: write `${NAME}`, or `%24` for the character itself".into())
}

/// Returns the problem of a URL with a placeholder in a flag or a variable, which are not interpolated. Whoever starts
/// the process may have left it: Kubernetes keeps a `$(NAME)` that is not set. The problem does not show the text.
pub(super) fn find_unfilled_placeholder(text: &str) -> Option<&'static str> {
    // A password may have a `$` of its own.
    let behind_password = text.rsplit_once('@').map_or(text, |(_, rest)| rest);
    let is_unfilled = has_template(text) || has_between(text, "${", "}") || has_shell_variable(behind_password);
    (is_url(text) && is_unfilled).then_some(
        "has a placeholder that nothing fills in: write the value itself, as only the file takes `${NAME}`, or percent-encode \
         the characters themselves (`%24` for `$`)",
    )
}

/// Whether a text is a URL, or a path behind a scheme.
fn is_url(text: &str) -> bool {
    let is_scheme = |text: &str| {
        !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"+.-".contains(&byte))
    };
    text.split_once("://").is_some_and(|(scheme, _)| is_scheme(scheme))
        || text.starts_with("sqlite:")
        || text.starts_with("unix:")
}

/// Whether a text has a placeholder of a template language, of a manual or of Kubernetes. No URL has these characters
/// unescaped.
fn has_template(text: &str) -> bool {
    has_between(text, "{{", "}}") || has_between(text, "<", ">") || has_between(text, "$(", ")")
}

fn has_between(text: &str, start: &str, end: &str) -> bool {
    text.split(start).skip(1).any(|rest| rest.find(end).is_some_and(|length| length > 0))
}

fn has_shell_variable(text: &str) -> bool {
    text.split('$').skip(1).any(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        is_name(&rest[..end.unwrap_or(rest.len())])
    })
}

fn look_up(inside: &str, environment: &dyn Environment, read: &ReadText<'_>) -> Result<String, String> {
    if let Some(path) = inside.strip_prefix("file:") {
        let path = Path::new(path);
        let shown = || show_whole_path(path);
        let mut text = match read(path) {
            Err(_) if environment.lacks_secrets() => stand_in(&path.to_string_lossy()),
            read => read.map_err(|error| format!("`${{file:{}}}` cannot be read: {error}", shown()))?,
        };
        // Editors and `echo` end a file with a newline, which is not part of the secret.
        for newline in ['\n', '\r'] {
            if text.ends_with(newline) {
                text.pop();
            }
        }
        return Ok(text);
    }
    let (name, default) = match inside.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (inside, None),
    };
    if !is_name(name) {
        return Err(
            "`${…}` takes `${NAME}`, `${NAME:-default}` or `${file:/path}`; for a literal `${` write `$${`".into()
        );
    }
    match (environment.variable(name), default) {
        (_, Some(default)) if default.contains("${") => {
            Err(format!("the default of `${{{name}:-…}}` cannot have another `${{` in it"))
        }
        // As in a shell, `:-` treats an empty variable as unset: `FOO=` in an env file means that.
        (Some(value), Some(default)) if value.is_empty() => Ok(default.into()),
        (Some(value), _) => Ok(value),
        (None, Some(default)) => Ok(default.into()),
        (None, None) if environment.lacks_secrets() => Ok(stand_in(name)),
        (None, None) => Err(format!("the environment has no `{name}`: set it, or write `${{{name}:-default}}`")),
    }
}

fn is_name(name: &str) -> bool {
    let word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.bytes().all(word) && name.bytes().next().is_some_and(|first| !first.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::environment::FakeEnvironment;

    fn environment() -> FakeEnvironment {
        FakeEnvironment::default()
            .with_variable("HOST", "db.internal")
            .with_variable("EMPTY", "")
            .with_variable("SLY", "\"\nsecret = \"${HOST}")
            .with_file("/run/secrets/x", "hunter2\n")
            .with_file("/run/secrets/dos", "hunter2\r\n")
    }

    fn interpolated(text: &str) -> Result<String, Vec<String>> {
        let environment = environment();
        interpolate(text, &environment, &|path| environment.read(path))
    }

    #[test]
    fn names_defaults_and_files_are_filled_in() {
        for (text, filled) in [
            ("plain", "plain"),
            ("", ""),
            ("${HOST}", "db.internal"),
            ("a ${HOST}:${PORT:-5432} b", "a db.internal:5432 b"),
            ("${EMPTY}", ""),
            ("${EMPTY:-default}", "default"),
            ("${NONE:-}", ""),
            ("${NONE:-a:-b}", "a:-b"),
            ("${file:/run/secrets/x}", "hunter2"),
            ("${file:/run/secrets/dos}", "hunter2"),
            ("$${HOST}", "${HOST}"),
            ("$$${HOST}", "$${HOST}"),
            ("$HOST costs 5$ {x}", "$HOST costs 5$ {x}"),
            ("${SLY}", "\"\nsecret = \"${HOST}"),
        ] {
            assert_eq!(interpolated(text), Ok(filled.to_owned()), "{text:?}");
        }
    }

    #[test]
    fn a_user_or_password_of_a_url_is_taken_as_it_is() {
        let environment = || {
            FakeEnvironment::default()
                .with_variable("HOST", "db:1")
                .with_variable("USER", "a:b@c")
                .with_variable("URL", "postgres://u:p@db/d")
                .with_file("/run/token", "db:5432/?Action=connect&X-Amz=a%2Fb\n")
        };
        let token = "db%3A5432%2F%3FAction%3Dconnect%26X-Amz%3Da%252Fb";
        for (text, filled) in [
            ("postgres://u:${file:/run/token}@h/d", format!("postgres://u:{token}@h/d")),
            ("postgres://${USER}:${file:/run/token}@${HOST}/d", format!("postgres://a%3Ab%40c:{token}@db:1/d")),
            ("amqp://${USER}@${HOST}/d?user=${HOST}@", "amqp://a%3Ab%40c@db:1/d?user=db:1@".into()),
            ("http://${HOST}/v1/{id}", "http://db:1/v1/{id}".into()),
            ("${URL}", "postgres://u:p@db/d".into()),
            ("${USER}@h", "a:b@c@h".into()),
        ] {
            let environment = environment();
            assert_eq!(interpolate(text, &environment, &|path| environment.read(path)), Ok(filled), "{text}");
        }
    }

    #[test]
    fn a_placeholder_of_another_language_is_no_value() {
        for (text, is_placeholder) in [
            ("$ONCEGATE_SECRET", true),
            ("$(cat /run/secrets/x)", true),
            ("{{ secret }}", true),
            ("%ONCEGATE_SECRET%", true),
            ("<secret>", true),
            ("postgres://app:$PASSWORD@db/app", true),
            ("postgres://$USER@db/app", true),
            ("postgres://app:pa%24word@db/app", false),
            ("https://db/?price=$5", false),
            ("postgres://u:{{PASSWORD}}@{{HOST}}/d", true),
            ("postgres://u:<PASSWORD>@h/d", true),
            ("postgres://u:$(PASSWORD)@h/d", true),
            ("postgres://u@h/d?user={{ PASSWORD }}", true),
            ("redis://:<PASSWORD>@cache", true),
            ("amqp://u:$(cat /run/PASSWORD)@h", true),
            ("http://{{ host }}:8080", true),
            ("http://a/v1/{{id}}", true),
            ("http://a/v1/{id}?key={key}", false),
            ("http://a/v1/{{id}", false),
            ("http://a/v1/<", false),
            ("http://a/v1/<>", false),
            ("http://${HOST}/v1/${NONE:-<a>}{{", false),
            ("sqlite:{{DIR}}/a.db", true),
            ("sqlite:$HOME/a.db", true),
            ("sqlite:<DIR>/a.db", true),
            ("unix:$XDG_RUNTIME_DIR/a.sock", true),
            ("unix:/run/$(NAME).sock", true),
            ("sqlite:/var/a$5.db", false),
            ("sqlite:/var/$${DIR}", false),
            ("<p>{{ text }}</p> $NAME", false),
            ("<e xmlns=\"http://a\"><c>{code}</c></e>", false),
            ("<refused/>", false),
            ("$5", false),
            ("pa$word", false),
            ("100%", false),
            ("/v1/{id}", false),
            ("<>", false),
        ] {
            let problems = interpolated(text).err().unwrap_or_default();
            assert_eq!(problems.len(), usize::from(is_placeholder), "{text}: {problems:?}");
            assert!(
                problems.iter().all(|problem| problem.contains("nothing fills in") && !problem.contains("PASSW")),
                "{text}"
            );
        }
    }

    #[test]
    fn all_problems_of_a_text_are_found_at_once() {
        let wrong = interpolated("${A} ${HOST} ${file:/b} ${1} ${C:-${HOST}} ${").expect_err("most of it is wrong");
        let begins =
            ["the environment has no `A`", "`${file:/b}` cannot be read", "`${…}` takes", "the default of `${C"];
        assert_eq!(wrong.len(), 5, "{wrong:?}");
        for (message, begin) in wrong.iter().zip(begins) {
            assert!(message.starts_with(begin), "{message}");
        }
        assert!(wrong[4].contains("has no `}`"), "{wrong:?}");
        assert!(!format!("{wrong:?}").contains("db.internal"));
    }
}
