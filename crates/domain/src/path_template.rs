//! The paths of an OpenAPI document: `/v1/payments/{id}`.

use super::normal_path::normal_form;
use super::path_pattern::PathPattern;
use super::percent::encode_path;
use super::placeholders::split_placeholders;

/// All the paths that an operation has, whatever the values of its parameters.
///
/// A parameter is never empty and has no slash (OpenAPI, "Path Templating"), and may be anything else. The same holds
/// for a segment that has a parameter in it, such as `{id}.json`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, derive_more::Display)]
pub struct PathTemplate(Box<str>);

impl PathTemplate {
    /// Reads a template. An error is the problem, beginning with a verb.
    pub fn parse(text: &str) -> Result<Self, &'static str> {
        if !text.starts_with('/') {
            return Err("must begin with `/`");
        }
        split_placeholders(&normal_form(&encode_path(text)))?;
        Ok(Self(text.into()))
    }

    /// Whether the pattern matches all of its paths, percent-encoded as a client does.
    pub fn is_covered_by(&self, pattern: &PathPattern) -> bool {
        let sent = encode_path(&self.0);
        let path = normal_form(&sent);
        pattern.matches_segments(path[1..].split('/').map(|segment| Some(segment).filter(|text| !text.contains('{'))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_parameter_is_covered_by_what_takes_any_value() {
        for (template, covered_by, not_by) in [
            ("/v1/pay", &["/v1/pay", "/v1/{id}", "/{a}/{b}", "/v1/{*rest}", "/{*rest}"][..], &["/v1/pay/", "/v1"][..]),
            ("/v1/{id}", &["/v1/{other}", "/v1/{*rest}", "/{*rest}"], &["/v1/7", "/v1/{a}/{b}", "/v1/{a}/{*rest}"]),
            ("/v1/{id}/pay", &["/v1/{id}/pay", "/v1/{id}/{verb}", "/v1/{*rest}"], &["/v1/id/pay", "/v1/{id}"]),
            ("/v1/{id}.json", &["/v1/{file}", "/v1/{*rest}"], &["/v1/7.json"]),
            ("/v1/{a}-{b}", &["/v1/{pair}"], &["/v1/{a}/{b}"]),
            ("/v1/", &["/v1/", "/v1/{*rest}"], &["/v1/{id}", "/v1"]),
            ("/", &["/", "/{*rest}"], &["/{id}"]),
            ("/v1/x/../p%61y", &["/v1/pay"], &["/v1/x/{*rest}"]),
            ("/v1/a b/caf\u{e9}", &["/v1/a%20b/caf%C3%A9"], &["/v1/ab"]),
        ] {
            let read = PathTemplate::parse(template).expect(template);
            let covers = |pattern: &&str| read.is_covered_by(&PathPattern::parse(pattern).expect(pattern));
            assert!(covered_by.iter().all(covers), "{template}: one of {covered_by:?} does not cover it");
            assert!(!not_by.iter().any(covers), "{template}: one of {not_by:?} covers it");
            assert_eq!(read.to_string(), template);
        }
    }

    #[test]
    fn a_malformed_template_is_refused() {
        for text in ["", "v1", "/{a", "/a}", "/{a{b}}", "/{a/b}"] {
            assert!(PathTemplate::parse(text).is_err(), "{text}");
        }
    }
}
