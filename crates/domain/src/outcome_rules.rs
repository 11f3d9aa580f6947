//! A route's rules about the bodies of responses, for services that report an error with a status of success.
//!
//! A rule reads JSON. In an array, which is a batch, each element is a response of its own. Only the places that rules
//! name are parsed: what RFC 8259 allows and other readers take must not hide an error, such as half of a surrogate
//! pair in its message.

use canonical_json::Pointer;
use serde_json::Value;
use serde_json::value::RawValue;

use super::json_members::JsonMembers;
use super::response_policy::ResponseVerdict;

/// The rules of a route, in order: the first that matches decides.
#[derive(Clone, Debug, Default, PartialEq, derive_more::Deref)]
pub struct OutcomeRules(pub Vec<OutcomeRule>);

/// A condition on a response's body, and the verdict where it holds.
#[derive(Clone, Debug, PartialEq)]
pub struct OutcomeRule {
    /// The place that must have a value other than `null`.
    pub pointer: Pointer,
    /// The value that must be there; `None` for any but `null`. Numbers are compared by their value.
    pub equals: Option<Value>,
    /// The place that must have nothing, not even `null`.
    pub without: Option<Pointer>,
    pub verdict: ResponseVerdict,
}

/// The error for a text that is no JSON, or in which a member that a rule names is there twice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unreadable;

impl OutcomeRules {
    /// The verdict on the whole texts of a response: its body, or the data of its events. `None` where no rule matches.
    /// `by_status` is the verdict of the status lists. A rule never releases what they leave unknown: a gateway that
    /// has lost an answer may send JSON too.
    ///
    /// A batch has the verdict of the element about which least can be promised: unknown before executed.
    /// An error: a text cannot be read, so that a rule which matches may be missed.
    pub fn verdict_on<T: AsRef<[u8]>>(
        &self,
        texts: &[T],
        by_status: ResponseVerdict,
    ) -> Result<Option<ResponseVerdict>, Unreadable> {
        let mut verdicts = Vec::new();
        for text in texts {
            let value = parse(text.as_ref()).ok_or(Unreadable)?;
            match elements(value) {
                Some(batch) => batch.into_iter().try_for_each(|element| {
                    verdicts.push(self.verdict_on_value(element)?);
                    Ok(())
                })?,
                None => verdicts.push(self.verdict_on_value(value)?),
            }
        }
        if verdicts.iter().all(Option::is_none) {
            return Ok(None);
        }
        let verdict = verdicts.into_iter().map(|verdict| verdict.unwrap_or(by_status)).max();
        Ok(verdict.map(|verdict| match (verdict, by_status) {
            (ResponseVerdict::Release, ResponseVerdict::Unknown) => ResponseVerdict::Unknown,
            (verdict, _) => verdict,
        }))
    }

    fn verdict_on_value(&self, value: &RawValue) -> Result<Option<ResponseVerdict>, Unreadable> {
        for rule in &self.0 {
            if rule.matches(value)? {
                return Ok(Some(rule.verdict));
            }
        }
        Ok(None)
    }
}

impl OutcomeRule {
    fn matches(&self, value: &RawValue) -> Result<bool, Unreadable> {
        let is_meant = |found: &RawValue| match &self.equals {
            Some(expected) => equals(found, expected),
            None => found.get() != "null",
        };
        if !any_at(value, &segments(&self.pointer), &is_meant)? {
            return Ok(false);
        }
        match &self.without {
            Some(without) => Ok(!any_at(value, &segments(without), &|_| true)?),
            None => Ok(true),
        }
    }
}

/// Whether a text is JSON as RFC 8259 has it, with or without a byte order mark.
pub fn is_json(text: &[u8]) -> bool {
    parse(text).is_some()
}

/// Parses a text by its grammar alone: a number may be too large, a `\u` escape no character, and the depth any.
fn parse(text: &[u8]) -> Option<&RawValue> {
    serde_json::from_slice(text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text)).ok()
}

/// The names of a pointer, unescaped (RFC 6901 section 4).
fn segments(pointer: &Pointer) -> Vec<String> {
    pointer.to_string().split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~")).collect()
}

/// Whether a value at this place meets the test; `*` stands for each member and element.
fn any_at(value: &RawValue, place: &[String], test: &dyn Fn(&RawValue) -> bool) -> Result<bool, Unreadable> {
    let Some((name, rest)) = place.split_first() else { return Ok(test(value)) };
    let mut found: Vec<&RawValue> = Vec::new();
    if let Some(JsonMembers(members)) = members(value) {
        // A name that is no text of characters is in no rule.
        let has_name =
            |member: &RawValue| serde_json::from_str(member.get()).is_ok_and(|member: String| member == *name);
        let named = members.into_iter().filter(|(member, _)| name == "*" || has_name(member));
        found.extend(named.map(|(_, value)| value));
        if name != "*" && found.len() > 1 {
            return Err(Unreadable);
        }
    } else if let Some(elements) = elements(value) {
        match name == "*" {
            true => found = elements,
            false => found.extend(index(name).and_then(|index| elements.get(index))),
        }
    }
    for value in found {
        if any_at(value, rest, test)? {
            return Ok(true);
        }
    }
    Ok(false)
}

fn members(value: &RawValue) -> Option<JsonMembers<&RawValue, &RawValue>> {
    value.get().starts_with('{').then(|| serde_json::from_str(value.get()).ok()).flatten()
}

fn elements(value: &RawValue) -> Option<Vec<&RawValue>> {
    value.get().starts_with('[').then(|| serde_json::from_str(value.get()).ok()).flatten()
}

/// An index of an array, without leading zeros (RFC 6901 section 4).
fn index(name: &str) -> Option<usize> {
    let is_canonical = name == "0" || !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| is_canonical)
}

/// Whether the values are equal. A value that cannot be parsed equals none that a rule can name.
fn equals(found: &RawValue, expected: &Value) -> bool {
    match (serde_json::from_str(found.get()), expected) {
        (Ok(Value::Number(one)), Value::Number(other)) => one == *other || one.as_f64() == other.as_f64(),
        (Ok(one), other) => one == *other,
        (Err(_), _) => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::ResponseVerdict::{Release, Store, Unknown};
    use super::*;

    fn rule(pointer: &str, equals: Option<Value>, without: &str, verdict: ResponseVerdict) -> OutcomeRule {
        let without = (!without.is_empty()).then(|| Pointer::parse(without).unwrap());
        OutcomeRule { pointer: Pointer::parse(pointer).unwrap(), equals, without, verdict }
    }

    fn by(rules: &[OutcomeRule], body: &str) -> Result<Option<ResponseVerdict>, Unreadable> {
        OutcomeRules(rules.to_vec()).verdict_on(&[body], Store)
    }

    #[test]
    fn a_rule_matches_a_value_that_is_there_and_is_not_null() {
        for (pointer, body, matches) in [
            ("/errors", r#"{"errors":[]}"#, true),
            ("/errors", r#"{"errors":false}"#, true),
            ("/errors", r#"{"errors":null}"#, false),
            ("/errors", r#"{"error":1}"#, false),
            ("/errors/0", r#"{"errors":[]}"#, false),
            ("/errors/0", r#"{"errors":[{}]}"#, true),
            ("/errors/00", r#"{"errors":[{}]}"#, false),
            ("/errors/+0", r#"{"errors":[{}]}"#, false),
            ("/errors/0/code", r#"{"errors":[{},{"code":1}]}"#, false),
            ("/errors/*/code", r#"{"errors":[{},{"code":1}]}"#, true),
            ("/*/code", r#"{"a":1,"b":{"code":1}}"#, true),
            ("/a~1b/~0", r#"{"a/b":{"~":1}}"#, true),
            ("/a", "1", false),
            ("/a", r#"{"b":1,"b":2}"#, false),
            ("/*/a", r#"{"b":{},"b":{"a":2}}"#, true),
        ] {
            let found = by(&[rule(pointer, None, "", Unknown)], body);
            assert_eq!(found, Ok(matches.then_some(Unknown)), "{pointer} {body}");
        }
        assert_eq!(by(&[], r#"{"a":1}"#), Ok(None));
    }

    #[test]
    fn all_that_is_json_is_read_and_nothing_else() {
        let deep = format!("{}1{}", "[".repeat(5_000), "]".repeat(5_000));
        for odd in [
            r#""\ud83d""#,
            r#""\udc00\ud83d""#,
            "1e999",
            "-1e-999999999999999999999",
            &deep,
            r#"{"\ud83d":1}"#,
            "\"\u{7f}\"",
        ] {
            for body in [
                format!(r#"{{"odd":{odd},"error":{{"code":1,"message":{odd}}}}}"#),
                format!("\u{feff} {{\"error\":{{\"message\":{odd},\"code\":1}},\"odd\":{odd}}}"),
                format!(r#"[{{"result":{odd}}},{{"\u0065rror":{{"code":1,"data":{odd}}}}}]"#),
            ] {
                assert_eq!(
                    by(&[rule("/error/code", Some(json!(1)), "", Unknown)], &body),
                    Ok(Some(Unknown)),
                    "{body:.80}"
                );
                assert_eq!(by(&[rule("/error/data/x", None, "", Unknown)], &body), Ok(None), "{body:.80}");
            }
        }
        let rules = OutcomeRules(vec![rule("/error", None, "", Release)]);
        for body in [
            &b""[..],
            b" ",
            b"<html>",
            b"{\"error\":1",
            b"{\"error\":1}}",
            b"{\"error\":NaN}",
            b"{\"error\":\"a\nb\"}",
            b"{\"error\":\"caf\xe9\"}",
            b"{\0\"\0e\0\"\0",
            b"\xff\xfe{\0}\0",
            b"\xef\xbb\xbf\xef\xbb\xbf{\"error\":1}",
            b"{\"error\":\"\\ud83\"}",
            b"{\"error\":01}",
            // Programs differ about which one counts.
            b"{\"error\":1,\"error\":null}",
            b"{\"error\":1,\"err\\u006fr\":null}",
        ] {
            assert_eq!(rules.verdict_on(&[body], Store), Err(Unreadable), "{}", body.escape_ascii());
        }
    }

    #[test]
    fn a_rule_may_ask_for_a_value_and_for_one_that_is_absent() {
        for (equals, found, matches) in [
            (json!(-32000), "-32000", true),
            (json!(-32000), "-32e3", true),
            (json!(-32000), "\"-32000\"", false),
            (json!(1.5), "1.50", true),
            (json!("no"), "\"no\"", true),
            (json!("no"), "\"No\"", false),
            (json!(false), "false", true),
            (json!(false), "0", false),
            (json!(false), "null", false),
            (json!(-32000), "-1e999", false),
            (json!("no"), r#""no\ud83d""#, false),
        ] {
            let body = format!("{{\"error\":{{\"code\":{found}}}}}");
            let rules = [rule("/error/code", Some(equals), "", Release)];
            assert_eq!(by(&rules, &body), Ok(matches.then_some(Release)), "{body}");
        }
        let rules = [rule("/errors", None, "/data", Release)];
        assert_eq!(by(&rules, r#"{"errors":[1]}"#), Ok(Some(Release)));
        assert_eq!(by(&rules, r#"{"errors":[1],"data":null}"#), Ok(None), "null is there");
    }

    #[test]
    fn the_first_rule_that_matches_decides_and_none_releases_what_its_status_leaves_unknown() {
        let rules = OutcomeRules(vec![
            rule("/error/code", Some(json!(1)), "", Release),
            rule("/error/code", Some(json!(2)), "", Store),
            rule("/error", None, "", Unknown),
        ]);
        for (code, by_store, by_release, by_unknown) in
            [(1, Release, Release, Unknown), (2, Store, Store, Store), (3, Unknown, Unknown, Unknown)]
        {
            let body = format!("{{\"error\":{{\"code\":{code}}}}}");
            for (by_status, verdict) in [(Store, by_store), (Release, by_release), (Unknown, by_unknown)] {
                assert_eq!(rules.verdict_on(&[&body], by_status), Ok(Some(verdict)), "{code} {by_status:?}");
            }
        }
        assert_eq!(rules.verdict_on(&[r#"{"result":1}"#], Unknown), Ok(None));
    }

    #[test]
    fn a_batch_has_the_verdict_about_which_least_can_be_promised() {
        let rules = [rule("/error", Some(json!("no")), "", Release), rule("/error", None, "", Unknown)];
        for (body, verdict) in [
            (r#"[{"error":"no"},{"error":"no"}]"#, Some(Release)),
            (r#"[{"error":"no"},{"result":1}]"#, Some(Store)),
            (r#"[{"error":"no"},{"error":"lost"}]"#, Some(Unknown)),
            (r#"[{"result":1},{"error":"lost"}]"#, Some(Unknown)),
            (r#"[{"result":1},{"result":2}]"#, None),
            ("[]", None),
        ] {
            assert_eq!(by(&rules, body), Ok(verdict), "{body}");
        }
    }
}
