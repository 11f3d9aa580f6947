//! A route's rules about the bodies of responses, for services that report an error with a status of success.
//!
//! A rule reads JSON. In an array, which is a batch, each element is a response of its own.

use canonical_json::Pointer;
use serde_json::Value;

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
    /// The verdict.
    pub verdict: ResponseVerdict,
}

impl OutcomeRules {
    /// The verdict on a whole body; `None` where no rule matches, or the body is no JSON. `by_status` is the verdict of the status
    /// lists. A rule never releases what they leave unknown: a gateway that has lost an answer may send JSON too.
    ///
    /// A batch has the verdict of the element about which least can be promised: one that is unknown, or else one that was executed.
    pub fn verdict_on(&self, body: &[u8], by_status: ResponseVerdict) -> Option<ResponseVerdict> {
        if self.0.is_empty() {
            return None;
        }
        let verdict = match serde_json::from_slice(body).ok()? {
            Value::Array(batch) => {
                let verdicts: Vec<_> = batch.iter().map(|element| self.verdict_on_value(element)).collect();
                verdicts.iter().flatten().next()?;
                verdicts.into_iter().map(|verdict| verdict.unwrap_or(by_status)).max()?
            }
            value => self.verdict_on_value(&value)?,
        };
        Some(match (verdict, by_status) {
            (ResponseVerdict::Release, ResponseVerdict::Unknown) => ResponseVerdict::Unknown,
            (verdict, _) => verdict,
        })
    }

    fn verdict_on_value(&self, value: &Value) -> Option<ResponseVerdict> {
        self.0.iter().find(|rule| rule.matches(value)).map(|rule| rule.verdict)
    }
}

impl OutcomeRule {
    fn matches(&self, value: &Value) -> bool {
        let is_meant = |found: &Value| match &self.equals {
            Some(expected) => equals(found, expected),
            None => !found.is_null(),
        };
        any_at(value, &segments(&self.pointer), &is_meant)
            && self.without.as_ref().is_none_or(|without| !any_at(value, &segments(without), &|_| true))
    }
}

/// The names of a pointer, unescaped (RFC 6901 section 4).
fn segments(pointer: &Pointer) -> Vec<String> {
    pointer.to_string().split('/').skip(1).map(|name| name.replace("~1", "/").replace("~0", "~")).collect()
}

/// Whether a value at this place meets the test; `*` stands for each member and element.
fn any_at(value: &Value, place: &[String], test: &dyn Fn(&Value) -> bool) -> bool {
    let Some((name, rest)) = place.split_first() else { return test(value) };
    match value {
        Value::Object(members) if name == "*" => members.values().any(|value| any_at(value, rest, test)),
        Value::Array(elements) if name == "*" => elements.iter().any(|value| any_at(value, rest, test)),
        Value::Object(members) => members.get(name).is_some_and(|value| any_at(value, rest, test)),
        Value::Array(elements) => {
            index(name).and_then(|index| elements.get(index)).is_some_and(|value| any_at(value, rest, test))
        }
        _ => false,
    }
}

/// An index of an array, without leading zeros (RFC 6901 section 4).
fn index(name: &str) -> Option<usize> {
    let is_canonical = name == "0" || !name.starts_with('0') && name.bytes().all(|byte| byte.is_ascii_digit());
    name.parse().ok().filter(|_| is_canonical)
}

fn equals(found: &Value, expected: &Value) -> bool {
    match (found, expected) {
        (Value::Number(one), Value::Number(other)) => one == other || one.as_f64() == other.as_f64(),
        (one, other) => one == other,
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

    fn by(rules: &[OutcomeRule], body: &str) -> Option<ResponseVerdict> {
        OutcomeRules(rules.to_vec()).verdict_on(body.as_bytes(), Store)
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
            ("/a", "", false),
            ("/a", r#"{"a":1"#, false),
            ("/a", "<html>", false),
        ] {
            assert_eq!(by(&[rule(pointer, None, "", Unknown)], body).is_some(), matches, "{pointer} {body}");
        }
        assert_eq!(by(&[], r#"{"a":1}"#), None);
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
        ] {
            let body = format!("{{\"error\":{{\"code\":{found}}}}}");
            let rules = [rule("/error/code", Some(equals), "", Release)];
            assert_eq!(by(&rules, &body).is_some(), matches, "{body}");
        }
        let rules = [rule("/errors", None, "/data", Release)];
        assert_eq!(by(&rules, r#"{"errors":[1]}"#), Some(Release));
        assert_eq!(by(&rules, r#"{"errors":[1],"data":null}"#), None, "null is there");
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
                assert_eq!(rules.verdict_on(body.as_bytes(), by_status), Some(verdict), "{code} {by_status:?}");
            }
        }
        assert_eq!(rules.verdict_on(br#"{"result":1}"#, Unknown), None);
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
            assert_eq!(by(&rules, body), verdict, "{body}");
        }
    }
}
