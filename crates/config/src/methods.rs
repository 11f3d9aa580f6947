//! Reads and checks a route's `methods`.

use http::Method;

use super::messages::nearest;
use super::reader::Section;

/// The methods of IANA's registry (<https://www.iana.org/assignments/http-methods>).
const REGISTERED_METHODS: &str = "ACL BASELINE-CONTROL BIND CHECKIN CHECKOUT CONNECT COPY DELETE GET HEAD LABEL LINK LOCK MERGE \
                                  MKACTIVITY MKCALENDAR MKCOL MKREDIRECTREF MKWORKSPACE MOVE OPTIONS ORDERPATCH PATCH POST PROPFIND \
                                  PROPPATCH PUT QUERY REBIND REPORT SEARCH TRACE UNBIND UNCHECKOUT UNLINK UNLOCK UPDATE \
                                  UPDATEREDIRECTREF VERSION-CONTROL";

/// Reads `methods`; each once, at least one.
pub(super) fn read(section: &Section<'_>) -> Vec<Method> {
    section.distinct_values("methods", "is empty: a route without methods guards nothing", parse_method)
}

fn parse_method(text: &str) -> Result<Method, String> {
    if text.bytes().any(|byte| byte.is_ascii_lowercase()) {
        return Err("is not in capitals: methods are case-sensitive".into());
    }
    if matches!(text, "*" | "ALL" | "ANY") {
        return Err("is no method, and would match no request: list the methods, \
                    as in `[\"POST\", \"PATCH\", \"PUT\", \"DELETE\"]`"
            .into());
    }
    match text.parse() {
        Ok(Method::CONNECT | Method::HEAD | Method::OPTIONS | Method::TRACE) => {
            Err("changes nothing that a retry could do twice; write methods like `POST`, `PATCH`, `PUT`, `DELETE`"
                .into())
        }
        Ok(method) if REGISTERED_METHODS.split(' ').any(|known| known == text) => Ok(method),
        // Services have methods of their own, but a slip would leave the route's requests unguarded.
        Ok(method) => match nearest(text, REGISTERED_METHODS.split(' ')) {
            Some(meant) => Err(format!("is no registered method; did you mean `{meant}`?")),
            None => Ok(method),
        },
        Err(_) => Err("is no method: write one like `POST`".into()),
    }
}
