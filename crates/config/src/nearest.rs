//! "Did you mean …?"

use strsim::osa_distance;

/// The known word that was most likely meant, if one is near enough to be worth naming.
///
/// Near is one slip for every three characters: with more, a short word would be near to every other. A slip adds,
/// drops or changes a character, or swaps two neighbours (optimal string alignment).
pub(super) fn nearest<'k>(word: &str, known: impl IntoIterator<Item = &'k str>) -> Option<&'k str> {
    let word = normalize(word);
    let reach = (word.chars().count() / 3).max(1);
    let near = known.into_iter().map(|known| (osa_distance(&word, &normalize(known)), known));
    near.filter(|(distance, _)| *distance <= reach).min_by_key(|(distance, _)| *distance).map(|(_, known)| known)
}

/// The word in lower case and with underscores: case and the kind of dash are no slips.
fn normalize(word: &str) -> String {
    word.to_ascii_lowercase().replace('-', "_")
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
