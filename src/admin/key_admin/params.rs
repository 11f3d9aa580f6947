//! Reads requests: query strings and JSON bodies become typed requests, or a problem that names the wrong field.

use std::fmt;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::dto::NextPage;
use super::problem::ApiProblem;
use super::{AdminMethod, AdminRequest};
use crate::config;
use crate::domain::ids::RecordId;
use crate::domain::response::{FIELDS_MAX, StoredResponse};
use crate::domain::state::StateKind;
use crate::protocol::fields;
use crate::store::admin::{Cursor, IdRange, KeyFilter, ListOrder, OperatorDecision};
pub use json_fields::JsonFields;
use query::QueryParams;

mod json_fields;
mod query;

/// The largest `limit`, and the limit of a request that has none.
const LIMIT_MAX: u32 = 500;
const LIMIT_DEFAULT: u32 = 100;

/// The least digits of an id that people must write.
const ID_DIGITS_MIN: usize = 8;

/// The length of a note, at most.
const NOTE_CHARS_MAX: usize = 500;

/// The conditions of a filter.
const CONDITIONS: [&str; 5] = ["state", "scope", "route", "key", "older_than"];

/// A request, checked as far as that needs neither store nor configuration.
pub enum KeyRequest<'a> {
    Audit(AuditQuery),
    BulkChange(BulkRequest),
    Change { id: &'a str, decision: OperatorDecision },
    List(ListQuery),
    Show { id: &'a str },
    Stats,
}

impl<'a> KeyRequest<'a> {
    /// Reads a request.
    ///
    /// # Errors
    /// [`ApiProblem`] names the wrong parameter or field.
    pub fn parse(request: AdminRequest<'a>) -> Result<Self, ApiProblem> {
        let AdminRequest { method, id, query, body, actor } = request;
        let mut query = QueryParams::parse(query)?;
        let mut fields = JsonFields::parse(body)?;
        let request = match method {
            AdminMethod::Audit => Self::Audit(query.take_audit_query()?),
            AdminMethod::BulkChange => {
                query.finish()?;
                Self::BulkChange(BulkRequest::parse(fields, actor)?)
            }
            AdminMethod::List => Self::List(query.take_list_query()?),
            AdminMethod::Purge | AdminMethod::Release | AdminMethod::Requeue | AdminMethod::Resolve => {
                // Some clients drop the body of a DELETE.
                let accept_risk = query.take_flag("accept_risk")?;
                query.finish()?;
                let decision = fields.take_decision(method, actor, accept_risk)?;
                fields.finish()?;
                Self::Change { id, decision }
            }
            AdminMethod::Show => Self::Show { id },
            AdminMethod::Stats => Self::Stats,
        };
        query.finish()?;
        Ok(request)
    }
}

/// A request for keys.
#[derive(Clone, Debug)]
pub struct ListQuery {
    pub filter: KeyFilter,
    /// The place to go on from.
    pub after: Option<Cursor>,
    /// The maximum number of keys.
    pub limit: u32,
}

impl ListQuery {
    /// The keys that fit a filter, from the place that an earlier list has named; an empty `cursor` is the beginning.
    ///
    /// # Errors
    /// [`ApiProblem`], where the cursor is of another listing.
    pub fn new(filter: KeyFilter, cursor: &str, limit: u32) -> Result<Self, ApiProblem> {
        let after = match cursor {
            "" => None,
            text => {
                let cursor = parse_cursor(text, filter.order());
                Some(cursor.ok_or_else(|| ApiProblem::bad("cursor", "is not from a listing with this filter"))?)
            }
        };
        Ok(Self { filter, after, limit })
    }
}

/// A request for entries of the audit log.
#[derive(Clone, Debug)]
pub struct AuditQuery {
    /// The key; `None` is all of them.
    pub id: Option<RecordId>,
    /// The place to go on from.
    pub before: Option<i64>,
    /// The maximum number of entries.
    pub limit: u32,
}

impl AuditQuery {
    /// The entries about the key with this id, or about all keys where it is empty, from the place that an earlier answer
    /// has named; an empty `cursor` is the latest.
    ///
    /// # Errors
    /// [`ApiProblem`], where the id is not a whole one, or the cursor is not from the audit log.
    pub fn new(id: &str, cursor: &str, limit: u32) -> Result<Self, ApiProblem> {
        let id = match id {
            "" => None,
            text => {
                let id = parse_whole_id(text);
                Some(id.ok_or_else(|| not_an_id(text, "write its 64 hexadecimal digits"))?)
            }
        };
        let before = match cursor {
            "" => None,
            text => Some(text.parse().map_err(|_| ApiProblem::bad("cursor", "is not from the audit log"))?),
        };
        Ok(Self { id, before, limit })
    }
}

/// A request to change several keys.
#[derive(Clone, Debug)]
pub struct BulkRequest {
    pub keys: KeySelection,
    pub decision: OperatorDecision,
    /// The maximum number of keys that is expected; `None` asks for the count alone.
    pub expect: Option<u64>,
}

impl BulkRequest {
    fn parse(mut fields: JsonFields, actor: String) -> Result<Self, ApiProblem> {
        let method = match fields.take_text("action")?.as_deref() {
            Some("purge") => AdminMethod::Purge,
            Some("release") => AdminMethod::Release,
            Some("requeue") => AdminMethod::Requeue,
            Some("resolve") => AdminMethod::Resolve,
            Some(_) => {
                return Err(ApiProblem::bad("action", "is none of `resolve`, `release`, `requeue` and `purge`"));
            }
            None => return Err(ApiProblem::bad("action", "is missing")),
        };
        let keys = fields.take_selection()?;
        let expect = fields.take_number("expect")?;
        let decision = fields.take_decision(method, actor, false)?;
        fields.finish()?;
        Ok(Self { keys, decision, expect })
    }
}

/// The keys that a change of several is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySelection {
    ByFilter(Box<KeyFilter>),
    /// By their ids as they are written: whole, or the first digits.
    ByIds(Vec<String>),
}

/// Reads a filter from conditions as people write them; an empty value is no condition.
///
/// # Errors
/// [`ApiProblem`] names the condition that is wrong.
pub fn parse_filter<'a>(conditions: impl IntoIterator<Item = (&'a str, &'a str)>) -> Result<KeyFilter, ApiProblem> {
    let mut filter = KeyFilter::default();
    for (name, value) in conditions.into_iter().filter(|(_, value)| !value.is_empty()) {
        if !add_condition(&mut filter, name, value.as_bytes())? {
            return Err(ApiProblem::bad(name, "is not a condition of a filter"));
        }
    }
    Ok(filter)
}

/// Adds a condition to a filter; `false` where a filter has no condition of this name.
fn add_condition(filter: &mut KeyFilter, name: &str, value: &[u8]) -> Result<bool, ApiProblem> {
    if !CONDITIONS.contains(&name) {
        return Ok(false);
    }
    if value.is_empty() {
        // A shell variable that is not set leaves an empty value, which must not widen a change.
        return Err(ApiProblem::bad(name, "is empty: give a value, or leave it out"));
    }
    let text = || str::from_utf8(value).map_err(|_| ApiProblem::bad(name, "is not text"));
    match name {
        "state" => filter.state = Some(StateKind::parse(text()?).ok_or_else(|| ApiProblem::bad(name, states()))?),
        "scope" => {
            let range = IdRange::from_hex_prefix(text()?);
            filter.scope =
                Some(range.ok_or_else(|| ApiProblem::bad(name, "is not the beginning of a hash in hexadecimal"))?);
        }
        "route" => filter.route = Some(text()?.to_owned()),
        "key" => filter.key = Some(value.to_owned()),
        _ => filter.older_than = Some(config::parse_duration(text()?).map_err(|why| ApiProblem::bad(name, why))?),
    }
    Ok(true)
}

fn states() -> String {
    format!("is not a state; the states are {}", StateKind::ALL.map(StateKind::name).join(", "))
}

/// Reads a listing's cursor; `None` where it was made in another order.
fn parse_cursor(text: &str, order: ListOrder) -> Option<Cursor> {
    let (settled_ms, id) = match (text.split_once('-'), order) {
        (Some((settled_ms, id)), ListOrder::Age) => (i64::from_str_radix(settled_ms, 16).ok()?, id),
        (None, ListOrder::Id | ListOrder::Running) => (0, text),
        _ => return None,
    };
    Some(Cursor { settled_ms, id: parse_whole_id(id)? })
}

/// The text of a listing's cursor.
impl fmt::Display for NextPage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.order {
            ListOrder::Age => write!(f, "{:x}-{}", self.cursor.settled_ms, self.cursor.id),
            ListOrder::Id | ListOrder::Running => self.cursor.id.fmt(f),
        }
    }
}

/// Reads an id of 64 hexadecimal digits.
fn parse_whole_id(text: &str) -> Option<RecordId> {
    let range = IdRange::from_hex_prefix(text).filter(|_| text.len() == 64)?;
    RecordId::from_stored(&range.low)
}

/// Reads an id, or its first digits; returns the range of ids that begin so.
///
/// # Errors
/// [`ApiProblem`], where it is not hexadecimal, too short or too long.
pub fn parse_id_prefix(text: &str) -> Result<IdRange, ApiProblem> {
    let range = IdRange::from_hex_prefix(text).filter(|_| text.len() >= ID_DIGITS_MIN);
    range.ok_or_else(|| not_an_id(text, &format!("write at least its first {ID_DIGITS_MIN} hexadecimal digits")))
}

/// The problem of a text that is not an id. It quotes as much of the text as an id has.
fn not_an_id(text: &str, remedy: &str) -> ApiProblem {
    let quoted: String = text.chars().take(64).collect();
    let more = if quoted.len() < text.len() { "…" } else { "" };
    ApiProblem::bad("id", format!("{quoted:?}{more} is not an id: {remedy}"))
}

/// Checks a note for the audit log; an empty one is none.
///
/// # Errors
/// [`ApiProblem`], where it is too long or not one line.
pub fn check_note(note: String) -> Result<Option<String>, ApiProblem> {
    if note.chars().count() > NOTE_CHARS_MAX || note.chars().any(char::is_control) {
        return Err(ApiProblem::bad("note", format!("is longer than {NOTE_CHARS_MAX} characters, or not one line")));
    }
    Ok(Some(note).filter(|note| !note.is_empty()))
}

/// Builds the response that somebody has typed in for the retries of a key.
///
/// # Errors
/// [`ApiProblem`] names the part that is wrong.
pub fn build_typed_response(
    status: u64,
    headers: Vec<(String, String)>,
    body: Bytes,
) -> Result<StoredResponse, ApiProblem> {
    let headers = check_typed_headers(parse_headers(headers)?)?;
    build_response(check_status(status)?, headers, body)
}

fn build_response(status: StatusCode, headers: HeaderMap, body: Bytes) -> Result<StoredResponse, ApiProblem> {
    if matches!(status.as_u16(), 204 | 205 | 304) && !body.is_empty() {
        let why = format!("must be empty in a response with status {}", status.as_u16());
        return Err(ApiProblem::bad("body", why));
    }
    Ok(StoredResponse { status, headers, body: Some(body), trailers: HeaderMap::new() })
}

fn check_status(status: u64) -> Result<StatusCode, ApiProblem> {
    let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    status.ok_or_else(|| ApiProblem::bad("status", "is not a status from 200 to 599"))
}

fn parse_headers(pairs: Vec<(String, String)>) -> Result<HeaderMap, ApiProblem> {
    let mut headers = HeaderMap::new();
    for (name, value) in pairs {
        let bad = |why: &str| ApiProblem::bad("headers", format!("has {name:?}, which {why}"));
        let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("is not a field name"))?;
        let value = value.trim_matches([' ', '\t']).as_bytes();
        let value = HeaderValue::from_bytes(value).map_err(|_| bad("does not have a valid field value"))?;
        if headers.keys_len() == FIELDS_MAX {
            return Err(ApiProblem::bad("headers", format!("has too many fields: at most {FIELDS_MAX} are possible")));
        }
        headers.append(known, value);
    }
    Ok(headers)
}

/// Refuses fields that would not be stored of an upstream's response: a person should know that they are left out.
fn check_typed_headers(mut headers: HeaderMap) -> Result<HeaderMap, ApiProblem> {
    let typed = headers.keys().cloned().collect::<Vec<_>>();
    fields::prepare_for_client(&mut headers);
    match typed.iter().find(|name| !headers.contains_key(*name) || fields::is_momentary(name)) {
        Some(name) => Err(ApiProblem::bad("headers", format!("has `{name}`, which a replay makes anew or leaves out"))),
        None => Ok(headers),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::store::admin::OperatorAction;

    fn detail<T>(result: Result<T, ApiProblem>) -> String {
        match result {
            Ok(_) => panic!("it is accepted"),
            Err(problem) => problem.detail,
        }
    }

    #[test]
    fn a_filter_is_read_alike_from_a_query_an_object_and_conditions() {
        let query = "state=unknown&scope=0A&route=pay&key=a%20b&older_than=5m&limit=7";
        let mut params = QueryParams::parse(query).unwrap();
        let filter = params.take_filter().unwrap();
        assert_eq!((filter.state, filter.order()), (Some(StateKind::Unknown), ListOrder::Age));
        assert_eq!(filter.key.as_deref(), Some(&b"a b"[..]));
        assert_eq!(filter.older_than, Some(Duration::from_secs(300)));
        assert_eq!((params.take_limit(), params.finish()), (Ok(7), Ok(())));
        let object = br#"{"filter":{"state":"unknown","scope":"0A","route":"pay","key":"a b","older_than":"5m"}}"#;
        assert_eq!(
            JsonFields::parse(object).unwrap().take_selection(),
            Ok(KeySelection::ByFilter(Box::new(filter.clone())))
        );
        let conditions =
            [("state", "unknown"), ("scope", "0A"), ("route", "pay"), ("key", "a b"), ("older_than", "5m")];
        assert_eq!(parse_filter(conditions), Ok(filter));
        assert_eq!(parse_filter([("state", ""), ("key", "")]), Ok(KeyFilter::default()));
    }

    #[test]
    fn a_typed_response_with_more_fields_than_a_map_has_room_for_is_refused() {
        let fields = (0..40_000).map(|number| (format!("x-{number}"), "1".to_owned())).collect();
        assert!(detail(build_typed_response(200, fields, Bytes::new())).contains("too many"));
    }

    #[test]
    fn a_change_names_its_keys_and_an_empty_filter_is_not_all_of_them() {
        let select = |body: &str| JsonFields::parse(body.as_bytes()).unwrap().take_selection();
        for all in [r#"{"all":true}"#, r#"{"all":true,"filter":{}}"#, r#"{"all":true,"filter":null,"ids":null}"#] {
            assert_eq!(select(all), Ok(KeySelection::ByFilter(Box::default())), "{all}");
        }
        assert_eq!(select(r#"{"ids":["ab"],"all":false}"#), Ok(KeySelection::ByIds(vec!["ab".into()])));
        for name in ["state", "scope", "route", "key", "older_than"] {
            let body = format!(r#"{{"filter":{{"{name}":""}},"all":true}}"#);
            assert!(detail(select(&body)).starts_with(&format!("`{name}` is empty")), "{body}");
        }
        for (body, why) in [
            ("{}", "`filter` is missing"),
            (r#"{"all":false}"#, "`filter` is missing"),
            (r#"{"filter":{}}"#, "`filter` is empty"),
            (r#"{"filter":{},"all":false}"#, "`filter` is empty"),
            (r#"{"filter":{"key":"","state":"dead"}}"#, "`key` is empty"),
            (r#"{"filter":{"key":"k"},"all":true}"#, "`all` cannot be combined with"),
            (r#"{"ids":["ab"],"all":true}"#, "`all` cannot be combined with"),
            (r#"{"ids":["ab"],"filter":{"key":"k"}}"#, "`filter` cannot be combined with"),
            (r#"{"all":1}"#, "`all` is neither"),
        ] {
            let detail = detail(select(body));
            assert!(detail.starts_with(why), "{body}: {detail}");
        }
    }

    #[test]
    fn a_problem_names_the_wrong_parameter() {
        let read = |query: &str| {
            let mut params = QueryParams::parse(query)?;
            let _: (KeyFilter, u32, bool) =
                (params.take_filter()?, params.take_limit()?, params.take_flag("accept_risk")?);
            params.finish()
        };
        assert_eq!(read("state=&key="), Ok(()));
        for (query, why) in [
            ("state=done", "`state` is not a state; the states are completed, dead, expired"),
            ("scope=xy", "`scope` is not the beginning of a hash"),
            ("older_than=5", "`older_than` has no unit"),
            ("limit=0", "`limit` is not a number from 1 to 500"),
            ("limit=501", "`limit` is not a number"),
            ("route=%ff", "`route` is not text"),
            ("key=a&key=b", "`key` is given twice"),
            ("accept_risk=1", "`accept_risk` is neither"),
            ("sate=unknown", "`sate` is not a parameter here"),
        ] {
            let detail = detail(read(query));
            assert!(detail.starts_with(why), "{query}: {detail}");
        }
    }

    #[test]
    fn a_problem_names_the_wrong_field() {
        let decide = |body: &str| {
            let mut fields = JsonFields::parse(body.as_bytes())?;
            let decision = fields.take_decision(AdminMethod::Resolve, "alice".into(), false)?;
            fields.finish().map(|()| decision)
        };
        for (body, why) in [
            ("{", "the body is not JSON: line 1, column 1"),
            ("[]", "`body` is JSON, but not an object"),
            ("{}", "`outcome` is missing"),
            (r#"{"outcome":"done"}"#, "`outcome` is neither"),
            (r#"{"outcome":1}"#, "`outcome` is not text"),
            (r#"{"outcome":"completed"}"#, "`status` is missing"),
            (r#"{"outcome":"completed","status":"200"}"#, "`status` is not a whole number"),
            (r#"{"outcome":"completed","status":199}"#, "`status` is not a status"),
            (
                r#"{"outcome":"completed","status":204,"body":"x"}"#,
                "`body` must be empty in a response with status 204",
            ),
            (r#"{"outcome":"completed","status":200,"body":{}}"#, "`body` is not text"),
            (r#"{"outcome":"completed","status":200,"body_base64":"!"}"#, "`body_base64` is not base64"),
            (
                r#"{"outcome":"completed","status":200,"headers":{"a b":"c"}}"#,
                "`headers` has \"a b\", which is not a field name",
            ),
            (
                r#"{"outcome":"completed","status":200,"headers":{"a":"b\nc"}}"#,
                "`headers` has \"a\", which does not have a valid",
            ),
            (
                r#"{"outcome":"completed","status":200,"headers":{"Content-Length":"9"}}"#,
                "`headers` has `content-length`",
            ),
            (r#"{"outcome":"completed","status":200,"headers":{"Idempotent-Replayed":"true"}}"#, "`headers` has `idem"),
            (r#"{"outcome":"completed","status":200,"headers":[["a"]]}"#, "`headers` is neither"),
            (r#"{"outcome":"not_executed","status":200}"#, "`status` is not a field here"),
            (r#"{"outcome":"not_executed","note":"a\nb"}"#, "`note` is longer"),
            (r#"{"outcome":"not_executed","accept_risk":"yes"}"#, "`accept_risk` is neither"),
        ] {
            let detail = detail(decide(body));
            assert!(detail.starts_with(why), "{body}: {detail}");
        }
        let body = r#"{"outcome":"completed","status":201,"headers":[["A","1"],["a","2"]],"body_base64":"AP8="}"#;
        let OperatorAction::Complete(response) = decide(body).unwrap().change else { panic!("it is another change") };
        assert_eq!(response.headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(response.body.as_deref(), Some(&[0, 255][..]));
    }

    #[test]
    fn a_cursor_is_valid_only_in_the_order_it_was_made_in() {
        let id = RecordId::from_stored(&[0xab; 32]).unwrap();
        for order in [ListOrder::Age, ListOrder::Id, ListOrder::Running] {
            let cursor = Cursor { settled_ms: if order == ListOrder::Age { 77 } else { 0 }, id };
            assert_eq!(parse_cursor(&NextPage { cursor, order }.to_string(), order), Some(cursor));
        }
        let by_age = NextPage { cursor: Cursor { settled_ms: 77, id }, order: ListOrder::Age }.to_string();
        for wrong in [
            (&*by_age, ListOrder::Id),
            ("ab", ListOrder::Id),
            (&id.to_string(), ListOrder::Age),
            ("x-y", ListOrder::Age),
        ] {
            assert_eq!(parse_cursor(wrong.0, wrong.1), None, "{wrong:?}");
        }
    }
}
