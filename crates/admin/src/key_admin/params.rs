//! Reads requests: query strings and JSON bodies become typed values, or a problem that names the wrong field.

use std::time::SystemTime;

use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};

use super::inputs::{CONDITIONS, Input, LIMIT_DEFAULT, LIMIT_MAX};
use super::problem::ApiProblem;
use super::request_hashes::RequestHashes;
pub use json_fields::JsonFields;
use oncegate_domain::ids::RecordId;
use oncegate_domain::kept_path::PATH_BYTES_MAX;
use oncegate_domain::response::{FIELDS_MAX, StoredResponse};
use oncegate_domain::rfc3339;
use oncegate_domain::state::StateKind;
use oncegate_domain::urlencoded;
use oncegate_http::protocol::fields;
use oncegate_settings as settings;
use oncegate_store::admin::{Cursor, IdRange, KeyFilter, ListOrder};

mod json_fields;

const ID_DIGITS_MIN: usize = 8;

const NOTE_CHARS_MAX: usize = 500;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeySelection {
    ByFilter(KeyFilter),
    ByIds(Vec<ChosenKey>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChosenKey {
    /// Its id as it is written: whole, or the first digits.
    pub id: String,
    /// The version that the operator saw, see [`version`](super::version): the key is left alone if it has another one.
    pub seen: Option<String>,
}

impl From<String> for ChosenKey {
    fn from(id: String) -> Self {
        Self { id, seen: None }
    }
}

/// The parameters of a query string, each at most once.
pub struct QueryParams(Vec<(String, Vec<u8>)>);

impl QueryParams {
    /// Reads a query string without its `?`, which has none but these parameters.
    pub fn parse(query: &str, inputs: &[&[Input]]) -> Result<Self, ApiProblem> {
        let mut parameters: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, value) in urlencoded::pairs(query.as_bytes()) {
            let name = String::from_utf8_lossy(&name).into_owned();
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(ApiProblem::bad(&name, "is given twice"));
            }
            if !has_name(inputs, &name) {
                return Err(ApiProblem::bad(&name, "is not a parameter here"));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    /// Whether a condition is of a caller or a value, which the store has as hashes.
    pub fn has_hashed_condition(&self) -> bool {
        self.0.iter().any(|(name, value)| HASHED_CONDITIONS.contains(&&**name) && !value.is_empty())
    }

    /// Takes the parameters that are conditions of a filter. An empty one is no condition, as nothing is changed by a
    /// list.
    pub fn take_filter(&mut self, hashes: Option<&RequestHashes>) -> Result<KeyFilter, ApiProblem> {
        let mut filter = KeyFilter::default();
        for Input { name, .. } in CONDITIONS {
            if let Some(value) = self.take(name) {
                add_condition(&mut filter, name, &value, hashes)?;
            }
        }
        Ok(filter)
    }

    pub fn take_limit(&mut self) -> Result<u32, ApiProblem> {
        let limit = match &*self.take_text("limit")? {
            "" => Some(LIMIT_DEFAULT),
            text => text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit)),
        };
        limit.ok_or_else(|| ApiProblem::bad("limit", format!("is not a number from 1 to {LIMIT_MAX}")))
    }

    /// Takes `true` or `false`; a parameter that is missing or empty is `false`.
    pub fn take_flag(&mut self, name: &str) -> Result<bool, ApiProblem> {
        match &*self.take_text(name)? {
            "" | "false" => Ok(false),
            "true" => Ok(true),
            _ => Err(ApiProblem::bad(name, "is neither `true` nor `false`")),
        }
    }

    /// Takes a text, which is empty where it is missing.
    pub fn take_text(&mut self, name: &str) -> Result<String, ApiProblem> {
        let value = self.take(name).unwrap_or_default();
        String::from_utf8(value).map_err(|_| ApiProblem::bad(name, "is not text"))
    }

    /// Takes a value; an empty one counts as missing.
    fn take(&mut self, name: &str) -> Option<Vec<u8>> {
        let at = self.0.iter().position(|(known, _)| known == name)?;
        Some(self.0.swap_remove(at).1).filter(|value| !value.is_empty())
    }
}

fn has_name(inputs: &[&[Input]], name: &str) -> bool {
    inputs.iter().copied().flatten().any(|input| input.name == name)
}

/// Adds a condition, as people write it, to a filter. Without `hashes`, it cannot be of a caller or a value.
pub fn add_condition(
    filter: &mut KeyFilter,
    name: &str,
    value: &[u8],
    hashes: Option<&RequestHashes>,
) -> Result<(), ApiProblem> {
    let time = |text: &str| {
        let wrong = "is no time: write one like `2026-11-29T12:03`, in UTC, or a span until now like `2h`";
        let before_now = |span| SystemTime::now().checked_sub(span);
        let time = settings::parse_duration(text).map_or_else(|_| rfc3339::parse_written(text), before_now);
        time.ok_or_else(|| ApiProblem::bad(name, wrong))
    };
    let text = || str::from_utf8(value).map_err(|_| ApiProblem::bad(name, "is not text"));
    match (name, hashes) {
        ("state", _) => {
            let states = || StateKind::ALL.map(StateKind::name).join(", ");
            let wrong = || ApiProblem::bad(name, format!("is not a state; the states are {}", states()));
            filter.state = Some(StateKind::parse(text()?).ok_or_else(wrong)?);
        }
        ("scope", _) => {
            let range = IdRange::from_hex_prefix(text()?);
            filter.scope =
                Some(range.ok_or_else(|| ApiProblem::bad(name, "is not the beginning of a hash in hexadecimal"))?);
        }
        ("route", _) => filter.route = Some(text()?.to_owned()),
        ("caller", Some(_)) if filter.scope.is_some() => {
            return Err(ApiProblem::bad(name, "cannot be combined with `scope`"));
        }
        ("caller", Some(hashes)) => {
            let scope = hashes.caller(text()?, filter.route.as_deref())?;
            filter.scope = IdRange::from_hex_prefix(&scope.to_string());
        }
        ("where", Some(hashes)) => filter.lookup = Some(hashes.lookup(text()?)?),
        ("path", _) => {
            let path = Some(text()?).filter(|path| path.starts_with('/') && path.len() <= PATH_BYTES_MAX);
            let wrong =
                || ApiProblem::bad(name, format!("is not the beginning of a path, of {PATH_BYTES_MAX} bytes at most"));
            filter.path = Some(path.ok_or_else(wrong)?.to_owned());
        }
        ("created_from", _) => filter.created_from = Some(time(text()?)?),
        ("created_until", _) => filter.created_until = Some(time(text()?)?),
        ("key", _) => filter.key = Some(value.to_owned()),
        ("older_than", _) => {
            filter.older_than = Some(settings::parse_duration(text()?).map_err(|why| ApiProblem::bad(name, why))?);
        }
        _ => return Err(ApiProblem::bad(name, "is not a condition of a filter")),
    }
    Ok(())
}

const HASHED_CONDITIONS: [&str; 2] = ["caller", "where"];

/// Reads a cursor of a listing in this order; an empty text is the beginning.
pub fn parse_cursor(text: &str, order: ListOrder) -> Result<Option<Cursor>, ApiProblem> {
    let cursor = || {
        let (at_ms, id) = match (text.split_once('-'), order) {
            (Some((at_ms, id)), ListOrder::Age) => (i64::from_str_radix(at_ms, 16).ok()?, id),
            (Some((at_ms, id)), ListOrder::Newest) => (i64::from_str_radix(at_ms.strip_prefix('n')?, 16).ok()?, id),
            (None, ListOrder::Id | ListOrder::Running) => (0, text),
            _ => return None,
        };
        Some(Cursor { at_ms, id: parse_id(id).ok()? })
    };
    let wrong = || ApiProblem::bad("cursor", "is not from a listing with this filter");
    (!text.is_empty()).then(|| cursor().ok_or_else(wrong)).transpose()
}

pub fn format_cursor(Cursor { at_ms, id }: Cursor, order: ListOrder) -> String {
    match order {
        ListOrder::Age => format!("{at_ms:x}-{id}"),
        ListOrder::Newest => format!("n{at_ms:x}-{id}"),
        ListOrder::Id | ListOrder::Running => id.to_string(),
    }
}

pub fn parse_id(text: &str) -> Result<RecordId, ApiProblem> {
    let range = IdRange::from_hex_prefix(text).filter(|_| text.len() == 64);
    let id = range.and_then(|range| RecordId::from_stored(&range.low));
    id.ok_or_else(|| not_an_id(text, "write its 64 hexadecimal digits"))
}

/// Reads an id, or its first digits; returns the range of ids that begin so.
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

/// Checks that a note for the audit log is short and in one line; an empty one is none.
pub fn check_note(note: String) -> Result<Option<String>, ApiProblem> {
    if note.chars().count() > NOTE_CHARS_MAX || note.chars().any(char::is_control) {
        return Err(ApiProblem::bad("note", format!("is longer than {NOTE_CHARS_MAX} characters, or not one line")));
    }
    Ok(Some(note).filter(|note| !note.is_empty()))
}

/// Builds a response that somebody has typed in, or a service has reported.
pub fn build_response(status: u64, headers: Vec<(String, String)>, body: Bytes) -> Result<StoredResponse, ApiProblem> {
    let headers = parse_headers(headers)?;
    let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let status = status.ok_or_else(|| ApiProblem::bad("status", "is not a status from 200 to 599"))?;
    if matches!(status.as_u16(), 204 | 205 | 304) && !body.is_empty() {
        let why = format!("must be empty in a response with status {}", status.as_u16());
        return Err(ApiProblem::bad("body", why));
    }
    Ok(StoredResponse { status, headers, body: Some(body), trailers: HeaderMap::new() })
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

/// Refuses a response with fields that would not be stored of an upstream's response: a person should know that they
/// are left out.
pub fn check_typed_headers(response: &StoredResponse) -> Result<(), ApiProblem> {
    let mut storable = response.headers.clone();
    fields::prepare_for_client(&mut storable);
    match response.headers.keys().find(|name| !storable.contains_key(*name) || fields::is_momentary(name)) {
        Some(name) => Err(ApiProblem::bad("headers", format!("has `{name}`, which a replay makes anew or leaves out"))),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::key_admin::AdminMethod;
    use oncegate_store::admin::OperatorAction;

    fn detail<T>(result: Result<T, ApiProblem>) -> String {
        match result {
            Ok(_) => panic!("it is accepted"),
            Err(problem) => problem.detail,
        }
    }

    #[test]
    fn a_filter_is_read_alike_from_a_query_and_an_object() {
        let query =
            "state=unknown&scope=0A&route=pay&key=a%20b&older_than=5m&path=/v1&created_from=2026-11-29T12:03&limit=7";
        let mut params = QueryParams::parse(query, AdminMethod::List.query()).unwrap();
        let filter = params.take_filter(None).unwrap();
        assert_eq!((filter.state, filter.order()), (Some(StateKind::Unknown), ListOrder::Age));
        assert_eq!(filter.key.as_deref(), Some(&b"a b"[..]));
        assert_eq!(filter.older_than, Some(Duration::from_secs(300)));
        assert_eq!(filter.created_from, rfc3339::parse("2026-11-29T12:03:00.000Z"));
        assert_eq!(params.take_limit(), Ok(7));
        let object = br#"{"filter":{"state":"unknown","scope":"0A","route":"pay","key":"a b","older_than":"5m","path":"/v1","created_from":"2026-11-29 12:03Z"}}"#;
        let mut fields = JsonFields::parse(object, AdminMethod::BulkChange.body()).unwrap();
        assert_eq!(fields.take_selection(None), Ok(KeySelection::ByFilter(filter)));
    }

    #[test]
    fn a_typed_response_with_more_fields_than_a_map_has_room_for_is_refused() {
        let fields = (0..40_000).map(|number| (format!("x-{number}"), "1".to_owned())).collect();
        assert!(detail(build_response(200, fields, Bytes::new())).contains("too many"));
    }

    #[test]
    fn a_change_names_its_keys_and_an_empty_filter_is_not_all_of_them() {
        let inputs = AdminMethod::BulkChange.body();
        let select = |body: &str| JsonFields::parse(body.as_bytes(), inputs).unwrap().take_selection(None);
        for all in [r#"{"all":true}"#, r#"{"all":true,"filter":{}}"#, r#"{"all":true,"filter":null,"ids":null}"#] {
            assert_eq!(select(all), Ok(KeySelection::ByFilter(KeyFilter::default())), "{all}");
        }
        assert_eq!(select(r#"{"ids":["ab"],"all":false}"#), Ok(KeySelection::ByIds(vec!["ab".to_owned().into()])));
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
        let inputs = [AdminMethod::List.query(), AdminMethod::Purge.query()].concat();
        let read = |query: &str| {
            let mut params = QueryParams::parse(query, &inputs)?;
            let _: (KeyFilter, u32, bool) =
                (params.take_filter(None)?, params.take_limit()?, params.take_flag("accept_risk")?);
            Ok(())
        };
        assert_eq!(read("state=&key="), Ok(()));
        for (query, why) in [
            ("state=done", "`state` is not a state; the states are completed, dead, expired"),
            ("scope=xy", "`scope` is not the beginning of a hash"),
            ("older_than=5", "`older_than` has no unit"),
            ("created_from=12:03", "`created_from` is no time: write one like"),
            ("path=v1", "`path` is not the beginning of a path"),
            ("limit=0", "`limit` is not a number from 1 to 1000"),
            ("limit=1001", "`limit` is not a number"),
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
            let mut fields = JsonFields::parse(body.as_bytes(), AdminMethod::Resolve.body())?;
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
            (r#"{"outcome":"not_executed","reason":"x"}"#, "`reason` is not a field here"),
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
        for order in [ListOrder::Age, ListOrder::Id, ListOrder::Newest, ListOrder::Running] {
            let cursor = Cursor { at_ms: if matches!(order, ListOrder::Age | ListOrder::Newest) { 77 } else { 0 }, id };
            assert_eq!(parse_cursor(&format_cursor(cursor, order), order), Ok(Some(cursor)));
        }
        let by_age = format_cursor(Cursor { at_ms: 77, id }, ListOrder::Age);
        for wrong in [
            (&*by_age, ListOrder::Id),
            (&*by_age, ListOrder::Newest),
            ("ab", ListOrder::Id),
            (&id.to_string(), ListOrder::Age),
            ("x-y", ListOrder::Age),
        ] {
            assert!(parse_cursor(wrong.0, wrong.1).is_err(), "{wrong:?}");
        }
    }
}
