//! Patterns of paths by their segments, so that a look-up costs the same among a thousand routes as among a few.

use std::cmp::Ordering;

use super::path_pattern::PatternSegment;

/// The places of patterns, as their segments lead to them. Fixed segments are told apart as the most lenient services
/// do: without the case of letters, without empty ones.
#[derive(Default)]
pub(super) struct PathTree {
    /// In the order of the texts.
    fixed: Vec<(Box<str>, PathTree)>,
    any: Option<Box<PathTree>>,
    /// Patterns that take all that is left.
    rest: Vec<usize>,
    /// Patterns that end here.
    ended: Vec<usize>,
}

impl PathTree {
    pub fn insert(&mut self, segments: &[PatternSegment], place: usize) {
        let Some((first, others)) = segments.split_first() else { return self.ended.push(place) };
        match first {
            PatternSegment::Rest => self.rest.push(place),
            PatternSegment::One => self.any.get_or_insert_default().insert(others, place),
            PatternSegment::Literal(text) if text.is_empty() => self.insert(others, place),
            PatternSegment::Literal(text) => {
                let at = self.find_fixed(text).unwrap_or_else(|at| {
                    self.fixed.insert(at, (text.clone(), Self::default()));
                    at
                });
                self.fixed[at].1.insert(others, place);
            }
        }
    }

    /// Calls `visit` with each place whose pattern may match the path, in its normal form or its lenient one. Whether
    /// it does is for the pattern to say.
    pub fn visit(&self, path: &str, visit: &mut dyn FnMut(usize)) {
        self.rest.iter().copied().for_each(&mut *visit);
        let path = path.trim_start_matches('/');
        if path.is_empty() {
            return self.ended.iter().copied().for_each(visit);
        }
        let (first, others) = path.split_at(memchr::memchr(b'/', path.as_bytes()).unwrap_or(path.len()));
        if let Ok(at) = self.find_fixed(first) {
            self.fixed[at].1.visit(others, visit);
        }
        if let Some(any) = &self.any {
            any.visit(others, visit);
        }
    }

    fn find_fixed(&self, text: &str) -> Result<usize, usize> {
        self.fixed.binary_search_by(|(known, _)| compare_without_case(known, text))
    }
}

fn compare_without_case(one: &str, other: &str) -> Ordering {
    let lower = |byte: u8| byte.to_ascii_lowercase();
    one.bytes().map(lower).cmp(other.bytes().map(lower))
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::sample::select;

    use super::*;
    use crate::normal_path::RequestPath;
    use crate::path_pattern::PathPattern;

    proptest::proptest! {
        #[test]
        fn each_pattern_that_matches_is_visited(
            patterns in vec((vec(select(vec!["a", "B", "c%20d", "{x}"]), 0..4), select(vec!["", "/", "/{*rest}"])), 1..20),
            path in vec(select(vec!["/a", "/b", "/B", "/c%20d", "/%61", "//", "/", "/..", ";x", "%2F"]), 0..6),
        ) {
            let path = format!("/{}", path.concat());
            let path = RequestPath::new(&path);
            let mut tree = PathTree::default();
            let named = |(at, segment): (usize, &&str)| format!("/{}", segment.replace('x', &format!("x{at}")));
            let texts = patterns.iter().map(|(segments, end)| {
                let text = segments.iter().enumerate().map(named).collect::<String>() + end;
                if text.is_empty() { "/".to_owned() } else { text }
            });
            let patterns: Vec<_> = texts.map(|text| PathPattern::parse(&text).expect("it is one")).collect();
            for (place, pattern) in patterns.iter().enumerate() {
                tree.insert(pattern.segments(), place);
            }
            let visited = |path: &str| {
                let mut visited = Vec::new();
                tree.visit(path, &mut |place| visited.push(place));
                visited
            };
            let (exact, lenient) = (visited(path.normal()), path.lenient().map(|form| (form, visited(form))));
            for (place, pattern) in patterns.iter().enumerate() {
                proptest::prop_assert!(!pattern.matches(path.normal()) || exact.contains(&place), "{pattern}");
                if let Some((form, visited)) = &lenient {
                    proptest::prop_assert!(!pattern.matches_leniently(form) || visited.contains(&place), "{pattern}");
                }
            }
        }
    }
}
