//! The problems of a configuration, and their positions.

use std::fmt;

/// One problem of a configuration, and its remedy.
///
/// Ordered by position, so that a list of problems reads like the file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConfigProblem {
    /// The file as it was named on the command line; `None` for a flag or a variable.
    pub file: Option<Box<str>>,
    /// Line and column, both from 1, the column in characters; `None` where the problem is not in the file's text.
    pub position: Option<(usize, usize)>,
    /// The key (`routes[0].ttl`), flag (`--listen`) or variable (`ONCEGATE_LISTEN`); empty if the file is no TOML.
    pub path: String,
    /// The problem and its remedy. Never has a value that came out of the environment or another file, nor one that may
    /// hold a password.
    pub message: String,
}

impl fmt::Display for ConfigProblem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(file) = &self.file {
            f.write_str(file)?;
            if let Some((line, column)) = self.position {
                write!(f, ":{line}:{column}")?;
            }
            f.write_str(": ")?;
        }
        if !self.path.is_empty() {
            write!(f, "{}: ", self.path)?;
        }
        f.write_str(&self.message)
    }
}

/// All problems of a configuration, in the order of the file, without duplicates. Never empty. Each has its line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}", _0.iter().map(ConfigProblem::to_string).collect::<Vec<_>>().join("\n"))]
pub struct ConfigProblems(pub(super) Vec<ConfigProblem>);

impl ConfigProblems {
    /// The problems, in order.
    pub fn iter(&self) -> impl Iterator<Item = &ConfigProblem> {
        self.0.iter()
    }
}

/// The line and column of a byte of the text, both from 1, the column in characters as editors count them.
pub(super) fn line_and_column(text: &str, offset: usize) -> (usize, usize) {
    let mut offset = offset.min(text.len());
    while !text.is_char_boundary(offset) {
        offset -= 1;
    }
    let before = &text[..offset];
    let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
    (before.matches('\n').count() + 1, before[line_start..].chars().count() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_counts_lines_and_characters_from_one() {
        let text = "a\nb\u{e9}c\n";
        assert_eq!(line_and_column(text, 0), (1, 1));
        assert_eq!(line_and_column(text, 2), (2, 1));
        assert_eq!(line_and_column(text, 5), (2, 3));
        assert_eq!(line_and_column(text, 4), (2, 2), "inside a character is at its beginning");
        assert_eq!(line_and_column(text, 99), (3, 1));
    }

    #[test]
    fn a_problem_prints_its_file_position_key_and_message() {
        let mut problem = ConfigProblem {
            file: Some("oncegate.toml".into()),
            position: Some((12, 8)),
            path: "routes[1].tll".into(),
            message: "unknown key; did you mean `ttl`?".into(),
        };
        assert_eq!(problem.to_string(), "oncegate.toml:12:8: routes[1].tll: unknown key; did you mean `ttl`?");
        problem.path.clear();
        problem.position = None;
        assert_eq!(problem.to_string(), "oncegate.toml: unknown key; did you mean `ttl`?");
        problem.file = None;
        problem.path = "--listen".into();
        assert_eq!(problem.to_string(), "--listen: unknown key; did you mean `ttl`?");
    }
}
