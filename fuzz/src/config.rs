//! The configuration file.

use std::io;
use std::path::{Path, PathBuf};

use oncegate_config::{self as config, Environment, Overrides};
use oncegate_trust::tls::Authorities;

/// The value of every variable and the content of every file.
const SECRET: &str = "canary-of-the-environment";

/// An environment in which every variable and every file but the configuration has the same text.
struct UniformEnvironment<'a> {
    file: &'a str,
}

impl Environment for UniformEnvironment<'_> {
    fn variable(&self, name: &str) -> Option<String> {
        // Oncegate's own variables would override the file.
        (!name.starts_with("ONCEGATE_")).then(|| SECRET.to_owned())
    }

    fn read(&self, path: &Path) -> io::Result<String> {
        Ok(if path == Path::new("oncegate.toml") { self.file } else { SECRET }.to_owned())
    }

    fn list(&self, _: &Path) -> io::Result<Vec<PathBuf>> {
        Ok(Vec::new())
    }

    fn is_readable_by_all(&self, _: &Path) -> bool {
        true
    }

    fn is_database(&self, _: &Path) -> bool {
        true
    }

    fn authorities(&self) -> Authorities {
        Authorities::empty()
    }
}

/// Checks a file:
///
/// - it becomes a configuration, or has problems; each of them has a message, and a position that is in the file;
/// - no problem tells what is in the environment or in another file;
/// - a comment at its end changes nothing, and neither does a second reading;
/// - a configuration that loads can be described.
pub fn check(input: &[u8]) {
    let Ok(file) = std::str::from_utf8(input) else { return };
    let load = |file: &str| {
        let environment = UniformEnvironment { file };
        config::load(Some(Path::new("oncegate.toml")), &Overrides::default(), &environment)
    };
    match load(file) {
        Ok(config) => {
            assert!(!config.live.routes.is_empty());
            let _ = format!("{config:?}");
            assert!(load(&format!("{file}\n# a comment\n")).is_ok());
        }
        Err(problems) => {
            assert!(problems.iter().next().is_some());
            for problem in problems.iter() {
                assert!(!problem.message.is_empty());
                let is_own = problem.file.as_deref() == Some("oncegate.toml");
                let lines: Vec<_> = if is_own { file } else { SECRET }.split('\n').collect();
                if let Some((line, column)) = problem.position {
                    assert!((1..=lines.len()).contains(&line), "{problem}");
                    assert!((1..=lines[line - 1].chars().count() + 1).contains(&column), "{problem}");
                }
            }
            assert!(file.contains("canary") || !problems.to_string().contains("canary"), "{problems}");
            assert_eq!(load(file).err(), Some(problems));
        }
    }
}
