//! Sample paths: one for each way in which a set of patterns can match a path.

use std::collections::BTreeSet;

use super::path_pattern::{PathPattern, PatternSegment};

/// Returns paths such that each path at all matches the same of the patterns as one of these, or none of them.
///
/// At each segment, patterns can only tell apart their own literals, the empty segment and any other text. A walk from
/// segment to segment over these choices, with the patterns that still match, therefore reaches every combination. One
/// segment beyond the longest pattern only `{*rest}` is left, and nothing new follows.
pub fn sample_paths(patterns: &[&PathPattern]) -> Vec<String> {
    let depth_max = patterns.iter().map(|pattern| pattern.segments().len()).max().unwrap_or_default() + 1;
    let other = unused_text(patterns);
    let (mut found, mut samples) = (BTreeSet::new(), Vec::new());
    // The prefixes of one length, one for each set of patterns that match them.
    let mut prefixes = vec![(String::new(), (0..patterns.len()).collect::<Vec<_>>())];
    for depth in 0..depth_max {
        let (mut seen, mut next) = (BTreeSet::new(), Vec::new());
        for (prefix, matching) in prefixes {
            let literals = matching.iter().filter_map(|&index| match patterns[index].segments().get(depth) {
                Some(PatternSegment::Literal(literal)) => Some(&**literal),
                Some(PatternSegment::One | PatternSegment::Rest) | None => None,
            });
            for text in literals.chain(["", &other]).collect::<BTreeSet<_>>() {
                let mut still = matching.clone();
                still.retain(|&index| allows_at(patterns[index], depth, text));
                if !still.is_empty() && seen.insert(still.clone()) {
                    next.push((format!("{prefix}/{text}"), still));
                }
            }
        }
        for (path, _) in &next {
            let matched: Vec<_> = patterns.iter().map(|pattern| pattern.matches(path)).collect();
            if matched.contains(&true) && found.insert(matched) {
                samples.push(path.clone());
            }
        }
        prefixes = next;
    }
    samples
}

/// Whether a path that the pattern matches so far may go on with this segment.
fn allows_at(pattern: &PathPattern, depth: usize, text: &str) -> bool {
    let segments = pattern.segments();
    match segments.get(depth).or(segments.last()) {
        Some(PatternSegment::Rest) => true,
        Some(PatternSegment::One) => depth < segments.len() && !text.is_empty(),
        Some(PatternSegment::Literal(literal)) => depth < segments.len() && **literal == *text,
        None => false,
    }
}

fn unused_text(patterns: &[&PathPattern]) -> String {
    let is_used = |text: &String| {
        let segments = patterns.iter().flat_map(|pattern| pattern.segments());
        segments.into_iter().any(|segment| matches!(segment, PatternSegment::Literal(literal) if **literal == **text))
    };
    let mut text = "x".to_owned();
    while is_used(&text) {
        text.push('x');
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn patterns(texts: &[&str]) -> Vec<PathPattern> {
        texts.iter().map(|text| PathPattern::parse(text).expect(text)).collect()
    }

    fn samples(texts: &[&str]) -> Vec<String> {
        sample_paths(&patterns(texts).iter().collect::<Vec<_>>())
    }

    #[test]
    fn a_sample_stands_for_all_paths_that_the_patterns_do_not_tell_apart() {
        assert_eq!(samples(&["/pay"]), ["/pay"]);
        assert_eq!(samples(&["/pay", "/{id}"]), ["/pay", "/x"]);
        assert_eq!(samples(&["/x/{id}"]), ["/x/xx"]);
        assert_eq!(samples(&["/{a}/{*rest}", "/{*rest}"]), ["/", "/x/"]);
        assert_eq!(samples(&[]), [""; 0]);
    }

    #[test]
    fn many_routes_of_one_service_have_few_samples() {
        let texts: Vec<_> = (0..300)
            .flat_map(|n| [format!("/v1/{{tenant}}/r{n}"), format!("/v1/{{tenant}}/r{n}/{{id}}/cancel")])
            .collect();
        assert_eq!(samples(&texts.iter().map(String::as_str).collect::<Vec<_>>()).len(), 600);
    }

    fn segment() -> impl Strategy<Value = &'static str> {
        prop::sample::select(&["a", "b", "", "{p}"][..])
    }

    fn pattern() -> impl Strategy<Value = String> {
        (prop::collection::vec(segment(), 1..4), any::<bool>()).prop_map(|(segments, has_rest)| {
            let named = segments.iter().enumerate().map(|(place, text)| match *text {
                "{p}" => format!("/{{p{place}}}"),
                text => format!("/{text}"),
            });
            let text: String = named.chain(has_rest.then(|| "/{*rest}".to_owned())).collect();
            // No pattern has an empty segment but the last.
            let (inner, last) = text.rsplit_once('/').unwrap_or_default();
            let inner: String = inner.split('/').filter(|segment| !segment.is_empty()).flat_map(|s| ["/", s]).collect();
            format!("{inner}/{last}")
        })
    }

    proptest! {
        #[test]
        fn every_path_has_a_sample_that_the_same_patterns_match(
            texts in prop::collection::vec(pattern(), 1..6),
            path in prop::collection::vec(prop::sample::select(&["a", "b", "c", ""][..]), 1..6),
        ) {
            let patterns = patterns(&texts.iter().map(String::as_str).collect::<Vec<_>>());
            let path: String = path.iter().map(|segment| format!("/{segment}")).collect();
            let matched = |path: &str| patterns.iter().map(|pattern| pattern.matches(path)).collect::<Vec<_>>();
            let samples = sample_paths(&patterns.iter().collect::<Vec<_>>());
            prop_assert!(
                !matched(&path).contains(&true) || samples.iter().any(|sample| matched(sample) == matched(&path)),
                "{texts:?} {path}: {samples:?}"
            );
        }
    }
}
