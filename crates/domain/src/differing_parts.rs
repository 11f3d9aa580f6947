//! The parts in which a request differs from the one that its key belongs to, and what its client should do about it.
//!
//! A client that is told to take a new key for a retry executes twice. So it is told that only where both requests have
//! a part that names the operation, with another value. A name is guessed to be of another kind too often rather than
//! too rarely: a client that is told to correct its request loses a try.

use super::auth_scheme::{BETRAYING_ENDS, is_betraying};
use super::request_part::{RequestPart, is_name};

/// The most places that are told: enough to find the fault, and bounded in a log line.
const PLACES_MAX: usize = 16;

/// The word for parts of the first request that this one lacks: their names are not stored.
const MISSING: &str = "missing";

/// Names of values that a client makes anew for each try, besides those that end like them: no order depends on them.
const CHANGING_NAMES: [&str; 8] = ["hmac", "nc", "sig", "sign", "ts", "x-amz-date", "x-date", "xamzdate"];

/// Names of values that a client may make anew, and by which two orders may differ too; without `-` and `_`.
const DOUBTFUL_NAMES: &str = "attempt attempts authorization clientmutationid cookie correlationid createdat csrf csrftoken exp \
    expires expiresat guid iat jti messageid nbf now paypalauthassertion random requestid requesttime \
    retries retry retrycount seed sentat session sessionid signaturevalue spanid time token traceid \
    traceparent tracestate updatedat useragent uuid version xrequestid";

/// The parts in which a request differs from the one that its key belongs to. Without any, nobody knows where it
/// differs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DifferingParts {
    /// The places, each once, as they are told.
    names: Vec<String>,
    /// Those whose values a client makes anew for each try.
    changing: Vec<String>,
    differs_in_operation: bool,
    may_be_retry: bool,
}

/// A part that is not that of the first request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PartDifference {
    /// The first request has none with this name, or nobody knows it.
    Added,
    /// Both have it, with different values.
    Changed,
    /// It holds the key, which names the operation by itself.
    HoldsKey,
}

impl DifferingParts {
    /// A request of which is known without its parts that it is another operation.
    pub const ANOTHER_OPERATION: Self =
        Self { names: Vec::new(), changing: Vec::new(), differs_in_operation: true, may_be_retry: false };

    pub(super) fn add(&mut self, part: &RequestPart<'_>, difference: PartDifference) {
        let place = part.place();
        let nested = part.nested_places();
        let all = || [&place].into_iter().chain(nested.iter().flatten());
        let is_plain = !part.is_opaque() && nested.is_some() && all().all(|place| names_operation(place));
        self.differs_in_operation |= difference == PartDifference::Changed && is_plain;
        self.may_be_retry |= difference == PartDifference::HoldsKey;
        // Of the values within a part nobody knows which one differs.
        if is_changing(last_name(&place)) {
            add_place(&mut self.changing, &place);
        }
        add_place(&mut self.names, &part.shown_place());
    }

    pub(super) fn add_missing(&mut self) {
        add_place(&mut self.names, MISSING);
    }

    /// The same, of a request that may be a retry whatever differs: of one without a body, the body may follow.
    #[must_use]
    pub fn of_possible_retry(self) -> Self {
        Self { may_be_retry: true, ..self }
    }

    /// The places of the parts, at most 16; `missing` for those that this request lacks.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    pub fn sentence(&self) -> String {
        let names: Vec<_> = self.names.iter().filter(|name| *name != MISSING).map(|name| format!("`{name}`")).collect();
        let lacks = names.len() < self.names.len();
        let names = names.join(", ");
        match (names.is_empty(), lacks) {
            (true, true) => "This request lacks parts of the one that the key belongs to.".into(),
            (true, false) => "This request differs from the one that the key belongs to.".into(),
            (false, true) => {
                format!("This request differs in {names} from the one that the key belongs to, and lacks parts of it.")
            }
            (false, false) => format!("This request differs in {names} from the one that the key belongs to."),
        }
    }

    /// Whether its client should take a new key. Else it should correct the request, which may be a retry.
    pub fn is_another_operation(&self) -> bool {
        self.differs_in_operation && !self.may_be_retry
    }

    /// The options by which the parts would not count that change with each try; `None` where none of them differs, or
    /// where the request is another one without them.
    pub fn option_to_write(&self) -> Option<String> {
        let is_told = self.changing.iter().all(|place| is_name(place));
        if self.changing.is_empty() || !is_told || self.is_another_operation() {
            return None;
        }
        let (fields, values): (Vec<_>, Vec<_>) = self.changing.iter().partition(|name| name.starts_with("header:"));
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

fn add_place(places: &mut Vec<String>, place: &str) {
    if places.len() < PLACES_MAX && !places.iter().any(|known| known == place) {
        places.push(place.to_owned());
    }
}

/// The last name of a place. In `auth[ts]` and `ts[]` it is `ts`.
fn last_name(place: &str) -> &str {
    let ends = |character: char| "/:#.@[]}".contains(character);
    place.trim_end_matches(['[', ']']).rsplit(ends).next().unwrap_or_default()
}

/// Whether a value at this place tells one operation from another, by the last name of the place. A number is no name.
fn names_operation(place: &str) -> bool {
    let name = last_name(place);
    let bare: String = name.chars().filter(char::is_ascii_alphabetic).collect::<String>().to_ascii_lowercase();
    !bare.is_empty()
        && !is_changing(name)
        && !is_betraying(name)
        && !DOUBTFUL_NAMES.split(' ').any(|doubtful| doubtful == bare)
}

/// Whether a client makes the value of this name anew for each try.
fn is_changing(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    let ends = |end: &&str| lower.ends_with(end);
    CHANGING_NAMES.contains(&&*lower) || BETRAYING_ENDS.iter().any(ends) || ["-sign", "_sign"].iter().any(ends)
}

#[cfg(test)]
mod tests {
    use std::borrow::Cow;

    use super::*;

    /// The difference of changed parts.
    fn differing(parts: &[(&'static str, &str, &str)]) -> DifferingParts {
        let mut differing = DifferingParts::default();
        for (kind, name, value) in parts {
            let (name, value) = (Cow::Owned(name.as_bytes().to_vec()), Cow::Owned(value.as_bytes().to_vec()));
            differing.add(&RequestPart { kind, name, value }, PartDifference::Changed);
        }
        differing
    }

    #[test]
    fn a_new_key_is_advised_only_where_a_part_differs_that_names_the_operation() {
        const NEW_KEY: bool = true;
        const FIX: bool = false;
        let exclude = |list: &str| Some(format!("`fingerprint.exclude = {list}`"));
        for (parts, advice, option) in [
            (&[("form:", "amount", "1")][..], NEW_KEY, None),
            (&[("method", "", "PUT")], NEW_KEY, None),
            (&[("path", "", "/a")], NEW_KEY, None),
            (&[("json:/", "\"amount\"", "1"), ("json:/", "\"timestamp\"", "1")], NEW_KEY, None),
            (&[("json:/", "\"amount\"", r#"{"currency":"EUR","value":[1]}"#)], NEW_KEY, None),
            (&[("", "form:amount", "1"), ("body", "", "x")], NEW_KEY, None),
            (&[("", "form:items[][price]", "1")], NEW_KEY, None),
            (&[], FIX, None),
            (&[("body", "", "x")], FIX, None),
            (&[("query", "", "x")], FIX, None),
            (&[("", "xml:", "x")], FIX, None),
            (&[("", "part 2", "x")], FIX, None),
            (&[("", "protobuf:5", "x")], FIX, None),
            (&[("", "cbor:/1", "x")], FIX, None),
            (&[("query:", "_", "x")], FIX, None),
            (&[("json:/", "\"sent_at\"", "1")], FIX, None),
            (&[("json:/", "\"date\"", "1")], FIX, None),
            (&[("header:", "traceparent", "1")], FIX, None),
            (&[("", "xml:", "x"), ("", "xml:/order/amount", "x")], NEW_KEY, None),
            (
                &[("form:", "timestamp", "1"), ("form:", "X_SIGNATURE", "1")],
                FIX,
                exclude(r#"["form:timestamp", "form:X_SIGNATURE"]"#),
            ),
            (&[("form:", "timestamp[]", "1")], FIX, exclude(r#"["form:timestamp[]"]"#)),
            (&[("json:/params/", "\"nonce\"", "1"), ("body", "", "")], FIX, exclude(r#"["json:/params/nonce"]"#)),
            (&[("json:/", "\"meta\"", r#"{"at":[{"ts":1}],"trace_id":1}"#)], FIX, None),
            (&[("", "xml:/Envelope/Header/Timestamp", "1")], FIX, exclude(r#"["xml:/Envelope/Header/Timestamp"]"#)),
            (&[("", "form:auth[ts]", "1")], FIX, exclude(r#"["form:auth[ts]"]"#)),
            (&[("query:", "sign", "1"), ("header:", "ok-access-sign", "1"), ("header:", "x-amz-date", "1")], FIX, {
                let headers = "`fingerprint.headers` without `ok-access-sign`, `x-amz-date`";
                exclude(r#"["query:sign"]"#).map(|exclude| format!("{exclude}, and {headers}"))
            }),
            (&[("query:", "design", "1")], NEW_KEY, None),
            (&[("query:", "due_date", "1")], NEW_KEY, None),
        ] {
            let found = differing(parts);
            assert_eq!((found.is_another_operation(), found.option_to_write()), (advice, option), "{parts:?}");
            assert_eq!(found.of_possible_retry().is_another_operation(), FIX);
        }
    }

    #[test]
    fn what_only_one_request_has_and_a_part_with_the_key_advise_no_new_key() {
        let part = RequestPart { kind: "form:", name: b"amount"[..].into(), value: b"1"[..].into() };
        let mut differing = DifferingParts::default();
        differing.add_missing();
        differing.add(&part, PartDifference::Added);
        assert_eq!(
            (differing.is_another_operation(), differing.names()),
            (false, &["missing".into(), "form:amount".into()][..])
        );
        let sentence =
            "This request differs in `form:amount` from the one that the key belongs to, and lacks parts of it.";
        assert_eq!(differing.sentence(), sentence);
        differing.add(&part, PartDifference::Changed);
        assert!(differing.is_another_operation());
        let key = RequestPart { kind: "header:", name: b"payment"[..].into(), value: b"1"[..].into() };
        differing.add(&key, PartDifference::HoldsKey);
        assert!(!differing.is_another_operation());
    }

    #[test]
    fn at_most_16_places_are_told() {
        let names: Vec<_> = (0..20).map(|number| format!("a{number}")).collect();
        let many: Vec<_> = names.iter().map(|name| ("form:", name.as_str(), "1")).collect();
        assert_eq!(differing(&many).names().len(), 16);
    }
}
