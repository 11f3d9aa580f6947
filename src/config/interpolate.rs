//! `${NAME}`, `${NAME:-default}` and `${file:PATH}` in the file's strings.
//!
//! Interpolation comes after parsing: a variable's value cannot become a key, a table or a second value.

use std::io;
use std::path::Path;

use super::environment::Environment;

/// Reads a file as text.
type ReadText<'a> = dyn Fn(&Path) -> io::Result<String> + 'a;

/// Interpolates a text, or returns all of its problems, which have names and paths and never their contents.
pub(super) fn interpolate(
    text: &str,
    environment: &dyn Environment,
    read: &ReadText<'_>,
) -> Result<String, Vec<String>> {
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
            Ok(value) => filled.push_str(&value),
            Err(message) => problems.push(message),
        }
        rest = &inside[end + 1..];
    }
    filled.push_str(rest);
    if problems.is_empty() { Ok(filled) } else { Err(problems) }
}

/// The files that a text names, in their order.
pub(super) fn files_of(text: &str) -> impl Iterator<Item = &Path> {
    text.split("${file:").skip(1).filter_map(|rest| rest.split_once('}')).map(|(path, _)| Path::new(path))
}

fn look_up(inside: &str, environment: &dyn Environment, read: &ReadText<'_>) -> Result<String, String> {
    if let Some(path) = inside.strip_prefix("file:") {
        let mut text = read(Path::new(path)).map_err(|error| format!("`${{file:{path}}}` cannot be read: {error}"))?;
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
    use crate::config::environment::FakeEnvironment;

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
