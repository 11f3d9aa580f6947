//! The parts in which a request differs from the one that its key belongs to, and what its client should do about it.
//!
//! A client that is told to take a new key for a retry executes twice. So it is told that only where a part differs that
//! names the operation: no bytes without parts, and nothing that clients make anew for each try. A name is guessed to be
//! of the latter kind too often rather than too rarely: a client that is told to correct its request loses a try.

use super::auth_scheme::is_betraying;
use super::fingerprint::RequestPart;

/// The most names that are told, and the most characters of each: enough to find the fault, and bounded in a log line.
const NAMES_MAX: usize = 16;
const NAME_MAX: usize = 64;

/// The word for parts of the first request that this one lacks: their names are not stored.
const MISSING: &str = "missing";

/// Names of values that change with each try, besides those that betray credentials.
const CHANGING_NAMES: [&str; 4] = ["sign", "time", "x-amz-date", "x-date"];

/// What a client should do whose request is not the one that its key belongs to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RetryAdvice {
    /// Correct the request: it may be a retry.
    #[default]
    Fix,
    /// Take a new key for this operation, which is another one.
    NewKey,
}

/// The parts in which a request differs from the one that its key belongs to. Without any, nobody knows where it differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DifferingParts {
    /// The places, each once, as they are told.
    names: Vec<String>,
    /// Those of them whose values change with each try.
    changing: Vec<String>,
    advice: RetryAdvice,
}

impl DifferingParts {
    /// A request of which is known without its parts that it is another operation.
    pub const ANOTHER_OPERATION: Self =
        Self { names: Vec::new(), changing: Vec::new(), advice: RetryAdvice::NewKey };

    /// Adds a part. `holds_key`: whether it holds the key, which names the operation by itself.
    pub(super) fn add(&mut self, part: &RequestPart<'_>, holds_key: bool) {
        let name = part.place();
        let is_changing = changes_with_each_try(&name);
        if !holds_key && !is_changing && !part.is_opaque() {
            self.advice = RetryAdvice::NewKey;
        }
        let shown = shown(&name);
        if is_changing {
            add_name(&mut self.changing, &shown);
        }
        add_name(&mut self.names, &shown);
    }

    pub(super) fn add_missing(&mut self) {
        add_name(&mut self.names, MISSING);
    }

    /// The places of the parts, at most 16; `missing` for those that this request lacks.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn advice(&self) -> RetryAdvice {
        self.advice
    }

    /// The options by which the parts would not count that change with each try; `None` where none of them differs, or
    /// where the request is another one without them.
    pub fn option_to_write(&self) -> Option<String> {
        if self.changing.is_empty() || self.advice == RetryAdvice::NewKey {
            return None;
        }
        let (fields, values): (Vec<_>, Vec<_>) =
            self.changing.iter().partition(|name| name.starts_with("header:"));
        let mut options = Vec::new();
        if !values.is_empty() {
            options.push(format!("`fingerprint.exclude = {values:?}`"));
        }
        if !fields.is_empty() {
            let names: Vec<_> = fields.iter().map(|name| format!("`{}`", &name["header:".len()..])).collect();
            options.push(format!("`fingerprint.headers` without {}", names.join(", ")));
        }
        Some(options.join(", and "))
    }
}

fn add_name(names: &mut Vec<String>, name: &str) {
    if names.len() < NAMES_MAX && !names.iter().any(|known| known == name) {
        names.push(name.to_owned());
    }
}

/// A name that fits into a line, whatever its client has sent.
fn shown(name: &str) -> String {
    let escaped = |c: char| match c.is_control() {
        true => c.escape_default().collect::<String>(),
        false => c.into(),
    };
    name.chars().take(NAME_MAX).map(escaped).collect()
}

/// Whether the value at a place differs with each try, by the last name of the place.
fn changes_with_each_try(place: &str) -> bool {
    let ends = |c: char| "/:#.@[]}".contains(c);
    let name = place.trim_end_matches(']').rsplit(ends).next().unwrap_or_default().to_ascii_lowercase();
    let is_sign = name.ends_with("-sign") || name.ends_with("_sign");
    is_betraying(&name) || is_sign || CHANGING_NAMES.contains(&&*name)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    fn differing(places: &[(&'static str, &str)]) -> DifferingParts {
        let mut differing = DifferingParts::default();
        for (kind, name) in places {
            let part = RequestPart { kind, name: Cow::Owned(name.as_bytes().to_vec()), value: Cow::Borrowed(b"") };
            differing.add(&part, *name == "key");
        }
        differing
    }

    #[test]
    fn a_new_key_is_advised_only_where_a_part_differs_that_names_the_operation() {
        use RetryAdvice::{Fix, NewKey};
        let exclude = |list: &str| Some(format!("`fingerprint.exclude = {list}`"));
        for (places, advice, option) in [
            (&[("form:", "amount")][..], NewKey, None),
            (&[("method", "")], NewKey, None),
            (&[("path", "")], NewKey, None),
            (&[("json:/", "\"amount\""), ("json:/", "\"timestamp\"")], NewKey, None),
            (&[("", "form:amount"), ("body", "")], NewKey, None),
            (&[], Fix, None),
            (&[("body", "")], Fix, None),
            (&[("query", "")], Fix, None),
            (&[("header:", "key")], Fix, None),
            (
                &[("form:", "timestamp"), ("form:", "X_SIGNATURE")],
                Fix,
                exclude(r#"["form:timestamp", "form:X_SIGNATURE"]"#),
            ),
            (&[("json:/params/", "\"nonce\""), ("body", "")], Fix, exclude(r#"["json:/params/nonce"]"#)),
            (&[("", "xml:/Envelope/Header/Timestamp")], Fix, exclude(r#"["xml:/Envelope/Header/Timestamp"]"#)),
            (&[("", "form:auth[ts]")], Fix, exclude(r#"["form:auth[ts]"]"#)),
            (&[("query:", "sign"), ("header:", "ok-access-sign"), ("header:", "x-amz-date")], Fix, {
                let headers = "`fingerprint.headers` without `ok-access-sign`, `x-amz-date`";
                exclude(r#"["query:sign"]"#).map(|exclude| format!("{exclude}, and {headers}"))
            }),
            (&[("query:", "design")], NewKey, None),
            (&[("query:", "due_date")], NewKey, None),
        ] {
            let found = differing(places);
            assert_eq!((found.advice(), found.option_to_write()), (advice, option), "{places:?}");
        }
        let mut missing = DifferingParts::default();
        missing.add_missing();
        assert_eq!((missing.advice(), missing.names()), (Fix, &["missing".to_owned()][..]));
    }

    #[test]
    fn names_are_bounded_and_have_no_control_characters() {
        let long = "x".repeat(100);
        let names: Vec<_> = (0..20).map(|number| number.to_string()).collect();
        let many: Vec<_> = names.iter().map(|name| ("form:", name.as_str())).collect();
        assert_eq!(differing(&many).names().len(), 16);
        let found = differing(&[("form:", &long), ("form:", "a\n\u{1b}[31m"), ("form:", "a\n\u{1b}[31m")]);
        assert_eq!(found.names(), [format!("form:{}", "x".repeat(59)), "form:a\\n\\u{1b}[31m".to_owned()]);
    }
}
