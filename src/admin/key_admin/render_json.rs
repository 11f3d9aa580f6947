//! The JSON of a problem.

use serde::{Serialize, Serializer};
use serde_json::json;

use super::problem::ApiProblem;

/// A problem document (RFC 9457).
impl Serialize for ApiProblem {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let status = self.status();
        let mut document = json!({
            "type": "about:blank",
            "title": status.canonical_reason().unwrap_or("Error"),
            "status": status.as_u16(),
            "detail": self.detail,
            "code": self.code.name(),
        });
        for (name, value) in &self.members {
            document[*name] = value.clone();
        }
        document.serialize(serializer)
    }
}

#[cfg(test)]
mod tests {
    use super::super::problem::ProblemCode;
    use super::*;

    #[test]
    fn a_problem_is_a_document_with_its_members() {
        let plain = json!(ApiProblem::no_such_key());
        let expected = json!({ "type": "about:blank", "title": "Not Found", "status": 404, "code": "no-such-key",
                               "detail": "there is no key with this id; it may have been forgotten" });
        assert_eq!(plain, expected);
        let problem = ApiProblem::new(ProblemCode::NotQuiet, "d").with("changed", 1).with("route", "r");
        let expected = json!({ "type": "about:blank", "title": "Conflict", "status": 409, "code": "not-quiet",
                               "detail": "d", "changed": 1, "route": "r" });
        assert_eq!(json!(problem), expected);
    }
}
