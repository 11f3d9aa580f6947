//! The form in which a path is included: which spellings of it are the same.

use std::borrow::Cow;

use crate::normal_path::RequestPath;
use crate::path_pattern::{PathPattern, PatternSegment};

/// The form in which a path is included. It is a part of the recipe: a route may be given another pattern or another
/// `spelling`, and a retry must still be compared by the form of its first attempt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum PathForm {
    /// The normal form of RFC 3986, section 6.2.2.
    #[default]
    Normal,
    /// The path that lenient services take the path for. Its leading segments each have a digit, up to the last `1`:
    /// the case of letters does not count in those with a `1`, and counts in all others.
    Lenient(Box<str>),
}

impl PathForm {
    /// The lenient form for the paths of a pattern: services that are lenient take its fixed segments in any case.
    pub fn lenient(pattern: &PathPattern) -> Self {
        let segments = pattern.segments().iter();
        // The lenient form has no empty segment.
        let segments = segments.filter(|segment| !matches!(segment, PatternSegment::Literal(text) if text.is_empty()));
        let before_rest = segments.take_while(|segment| **segment != PatternSegment::Rest);
        let digit = |segment: &PatternSegment| if matches!(segment, PatternSegment::Literal(_)) { '1' } else { '0' };
        Self::Lenient(before_rest.map(digit).collect::<String>().trim_end_matches('0').into())
    }

    /// Reads [`Self::word`]; `None` for any other text.
    pub(super) fn from_word(word: &str) -> Option<Self> {
        let is_known = |digits: &&str| digits.ends_with('1') && digits.bytes().all(|digit| b"01".contains(&digit));
        match word.strip_prefix("lenient")? {
            "" => Some(Self::Lenient(Box::default())),
            digits => digits.strip_prefix(':').filter(is_known).map(|digits| Self::Lenient(digits.into())),
        }
    }

    /// The form's word in a recipe, such as `lenient:101` for the paths of `/orders/{id}/pay`; `None` for the default.
    pub(super) fn word(&self) -> Option<String> {
        let Self::Lenient(digits) = self else { return None };
        Some(["lenient", if digits.is_empty() { "" } else { ":" }, digits].concat())
    }

    pub(super) fn apply<'a>(&self, path: &'a RequestPath<'_>) -> Cow<'a, str> {
        let (Self::Lenient(digits), Some(form)) = (self, path.lenient()) else { return path.normal().into() };
        let is_fixed = || digits.bytes().map(|digit| digit == b'1').chain(std::iter::repeat(false));
        let segments = || form.split('/').skip(1).zip(is_fixed());
        let is_capital = |byte: u8| byte.is_ascii_uppercase();
        if !segments().any(|(segment, is_fixed)| is_fixed && segment.bytes().any(is_capital)) {
            return form.into();
        }
        let mut lower = String::with_capacity(form.len());
        for (segment, is_fixed) in segments() {
            let start = lower.len() + 1;
            lower.extend(["/", segment]);
            if is_fixed {
                lower[start..].make_ascii_lowercase();
            }
        }
        Cow::Owned(lower)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lenient(pattern: &str) -> PathForm {
        PathForm::lenient(&PathPattern::parse(pattern).expect(pattern))
    }

    #[test]
    fn the_lenient_form_is_one_for_all_spellings_of_a_path() {
        for (pattern, paths, form) in [
            ("/v1/pay", &["/v1/pay", "/V1//p%61y/", "/v1/PAY;x"][..], "/v1/pay"),
            ("/V1/Pay/", &["/V1/Pay/", "/v1/pay"], "/v1/pay"),
            ("/v1/{id}/pay", &["/v1/aB;x/PAY", "/V1/aB/pay"], "/v1/aB/pay"),
            ("/v1/{id}/pay", &["/v1/ab/pay"], "/v1/ab/pay"),
            ("/v1/{id}", &["/v1/a%2fb"], "/v1/a/b"),
            ("/v1/{*rest}", &["/V1/Orders/7/"], "/v1/Orders/7"),
            ("/v1/{*rest}", &["/v1/", "/v1"], "/v1"),
            ("/caf%C3%A9/{id}", &["/CAF%c3%a9/B"], "/caf%c3%a9/B"),
            ("/{*rest}", &["/", "//"], "/"),
            ("/{*rest}", &["//Posts;x/"], "/Posts"),
            ("/", &["/"], "/"),
        ] {
            for path in paths {
                assert_eq!(lenient(pattern).apply(&RequestPath::new(path)), form, "{pattern} {path}");
            }
        }
        // Services differ about this one.
        assert_eq!(lenient("/{*rest}").apply(&RequestPath::new("/v1/a%2Fb/../pay")), "/v1/pay");
    }

    #[test]
    fn the_normal_form_tells_spellings_apart_that_a_strict_service_does() {
        for (path, form) in [("/v1/p%61y", "/v1/pay"), ("/v1//Pay/", "/v1//Pay/"), ("/v1/a%2fb", "/v1/a%2Fb")] {
            assert_eq!(PathForm::Normal.apply(&RequestPath::new(path)), form);
        }
    }

    #[test]
    fn a_path_without_capitals_in_its_fixed_segments_is_not_copied() {
        assert!(matches!(lenient("/v1/{id}/pay").apply(&RequestPath::new("/v1/aB/pay")), Cow::Borrowed(_)));
    }

    #[test]
    fn a_form_reads_back_from_its_word() {
        for (pattern, word) in [
            ("/{*rest}", "lenient"),
            ("/", "lenient"),
            ("/{a}/{b}", "lenient"),
            ("/v1/pay", "lenient:11"),
            ("/v1/{id}/pay", "lenient:101"),
            ("/v1/{id}/pay/", "lenient:101"),
            ("/v1/{id}", "lenient:1"),
            ("/v1/pay/{*rest}", "lenient:11"),
        ] {
            let form = lenient(pattern);
            assert_eq!(form.word().as_deref(), Some(word), "{pattern}");
            assert_eq!(PathForm::from_word(word), Some(form));
        }
        assert_eq!(PathForm::Normal.word(), None);
        for unknown in ["", "normal", "lenient:", "lenient:10", "lenient:12", "lenient1", "lenient:1 "] {
            assert_eq!(PathForm::from_word(unknown), None, "{unknown}");
        }
    }
}
