//! Text for a terminal: colours, and foreign text that cannot control it.

use std::ffi::OsStr;
use std::io::IsTerminal;

/// Whether to colour what is written there: on a terminal that knows colours, unless `NO_COLOR` is set and not empty
/// (<https://no-color.org>).
pub fn wants_colours(output: &impl IsTerminal) -> bool {
    output.is_terminal()
        && does_environment_want(std::env::var_os("NO_COLOR").as_deref(), std::env::var_os("TERM").as_deref())
}

fn does_environment_want(no_color: Option<&OsStr>, term: Option<&OsStr>) -> bool {
    no_color.is_none_or(OsStr::is_empty) && term != Some(OsStr::new("dumb"))
}

/// Returns a text that anybody may have written, without characters that a terminal would interpret.
pub fn escape_invisible(text: &str) -> String {
    // Marks, embeddings and isolates that change the direction of the text around them.
    let turns = |c: char| matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    let safe = |c: char| !c.is_control() && !turns(c);
    text.chars().flat_map(|c| if safe(c) { vec![c] } else { c.escape_default().collect() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_environment_turns_colours_off() {
        for (no_color, term, wanted) in [
            (None, None, true),
            (None, Some("xterm-256color"), true),
            (Some(""), Some("xterm"), true),
            (Some("1"), Some("xterm"), false),
            (Some("0"), Some("xterm"), false),
            (None, Some("dumb"), false),
        ] {
            let found = does_environment_want(no_color.map(OsStr::new), term.map(OsStr::new));
            assert_eq!(found, wanted, "NO_COLOR={no_color:?} TERM={term:?}");
        }
    }
}
