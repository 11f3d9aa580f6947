//! Path syntax of other programs, which would be taken for literal text and match no request.

/// Returns the problem of a path that is written in another program's syntax, beginning with a verb.
///
/// A colon or an asterisk inside a segment may be literal, as in `/v1/things:batch`. No API has a path with either at
/// the beginning of a segment, or with an asterisk at its end: such a route would guard nothing.
pub(super) fn problem_of_foreign_syntax(path: &str) -> Option<String> {
    if path.starts_with(['^', '~']) || path.ends_with('$') {
        return Some(
            "is a regular expression: write a path with `{name}` and `{*rest}`, which matches as a whole".into(),
        );
    }
    path.split('/').find_map(problem_of_segment)
}

fn problem_of_segment(segment: &str) -> Option<String> {
    let name = |text: &str| {
        let name: String = text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if name.is_empty() { "name".to_owned() } else { name }
    };
    let right = match segment.as_bytes() {
        [b'*', ..] => "`{*rest}` for the rest of the path, or `{name}` for one segment".to_owned(),
        [b':', ..] if segment.ends_with(['*', '+']) => format!("`{{*{}}}`", name(&segment[1..])),
        [b':', ..] => format!("`{{{}}}`", name(&segment[1..])),
        // `<id>`, and `<int:id>` with a type.
        [b'<', inside @ .., b'>'] => {
            let inside = str::from_utf8(inside).unwrap_or_default();
            format!("`{{{}}}`", name(inside.rsplit_once(':').map_or(inside, |(_, name)| name)))
        }
        [b'(', ..] | [b'[', ..] => "`{name}` for one segment, or `{*rest}` for the rest of the path".to_owned(),
        [.., b'*'] => "`{*rest}` as a segment of its own, for the rest of the path".to_owned(),
        _ if segment.ends_with(".+") => "`{*rest}` for the rest of the path".to_owned(),
        _ => return None,
    };
    Some(format!("has `{segment}`, which is no placeholder here: write {right}"))
}
