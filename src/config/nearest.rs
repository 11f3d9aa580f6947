//! "Did you mean …?"

/// The known word that was most likely meant, if any is near enough to be worth naming.
///
/// Near is one slip for every three characters: with more, a short word would be near to every other.
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = normal(word);
    let reach = (word.len() / 3).max(1);
    let near = known.into_iter().map(|known| (distance(&word, &normal(known)), known));
    near.filter(|(distance, _)| *distance <= reach).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// Case and the kind of dash are no slips at all.
fn normal(word: &str) -> Vec<char> {
    word.chars().map(|char| if char == '-' { '_' } else { char.to_ascii_lowercase() }).collect()
}

/// How many characters to add, drop, change or swap with their neighbour (optimal string alignment).
fn distance(a: &[char], b: &[char]) -> usize {
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut best = changed.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                best = best.min(rows[i - 2][j - 2] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_finds_the_word_that_was_meant() {
        let known = ["ttl", "path", "scope", "space", "upstream", "upstream_timeout", "max_request_body"];
        for (word, meant) in [
            ("tll", Some("ttl")),
            ("TTL", Some("ttl")),
            ("paht", Some("path")),
            ("scop", Some("scope")),
            ("up_stream", Some("upstream")),
            ("upstream-timeout", Some("upstream_timeout")),
            ("max_requests_body", Some("max_request_body")),
            ("dialect", None),
            ("x", None),
            ("", None),
        ] {
            assert_eq!(nearest(word, known), meant, "{word:?}");
        }
    }
}
