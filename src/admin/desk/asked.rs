//! What is asked, understood or refused by the name of the field that is wrong.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use bytes::Bytes;
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode};
use serde_json::{Map, Value};

use super::Verb;
use super::problem::Problem;
use crate::config;
use crate::domain::fingerprint::form;
use crate::domain::phase::Phase;
use crate::domain::record::RecordId;
use crate::domain::response::StoredResponse;
use crate::gate::fields;
use crate::store::books::{Bookmark, Change, Decision, Filter, IdRange, Order};

/// How many keys one answer lists, at most, and where nothing is said.
pub const LIMIT_MAX: u32 = 500;
const LIMIT_DEFAULT: u32 = 100;

/// How much of an id people must write.
const ID_DIGITS_MIN: usize = 8;

/// How long a note may be.
const NOTE_CHARS_MAX: usize = 500;

/// What a filter may have.
const CONDITIONS: [&str; 5] = ["state", "scope", "route", "key", "older_than"];

/// Which keys a change of several is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Those that fit.
    Fitting(Box<Filter>),
    /// Those with these ids.
    Named(Vec<String>),
}

/// The parameters of a query, each at most once.
pub struct Query(Vec<(String, Vec<u8>)>);

impl Query {
    /// Understands what stands behind the `?`.
    pub fn parse(query: &str) -> Result<Self, Problem> {
        let mut parameters: Vec<(String, Vec<u8>)> = Vec::new();
        for (name, value) in form::pairs(query.as_bytes()) {
            let name = String::from_utf8_lossy(&name).into_owned();
            if parameters.iter().any(|(known, _)| *known == name) {
                return Err(Problem::bad(&name, "stands there twice"));
            }
            parameters.push((name, value));
        }
        Ok(Self(parameters))
    }

    /// A filter out of those parameters that make one. An empty one says nothing: this is for looking alone.
    pub fn filter(&mut self) -> Result<Filter, Problem> {
        let mut filter = Filter::default();
        for (name, value) in std::mem::take(&mut self.0) {
            let says_nothing = value.is_empty() && CONDITIONS.contains(&&*name);
            if !says_nothing && !narrow(&mut filter, &name, &value)? {
                self.0.push((name, value));
            }
        }
        Ok(filter)
    }

    /// `limit`.
    pub fn limit(&mut self) -> Result<u32, Problem> {
        let Some(text) = self.text("limit")? else { return Ok(LIMIT_DEFAULT) };
        let limit = text.parse().ok().filter(|limit| (1..=LIMIT_MAX).contains(limit));
        limit.ok_or_else(|| Problem::bad("limit", format!("is no number from 1 to {LIMIT_MAX}")))
    }

    /// `true` or `false`; nothing is `false`.
    pub fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        match self.text(name)?.as_deref() {
            None | Some("false") => Ok(false),
            Some("true") => Ok(true),
            Some(_) => Err(Problem::bad(name, "is neither `true` nor `false`")),
        }
    }

    /// A text; an empty one says nothing.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        let Some(at) = self.0.iter().position(|(known, _)| known == name) else { return Ok(None) };
        let text = String::from_utf8(self.0.swap_remove(at).1).map_err(|_| Problem::bad(name, "is no text"))?;
        Ok(Some(text).filter(|text| !text.is_empty()))
    }

    /// Nothing else was said.
    pub fn end(&self) -> Result<(), Problem> {
        self.0.first().map_or(Ok(()), |(name, _)| Err(Problem::bad(name, "is no parameter here")))
    }
}

/// Takes one condition into a filter; `false` where the name is none of a filter's.
fn narrow(filter: &mut Filter, name: &str, value: &[u8]) -> Result<bool, Problem> {
    if !CONDITIONS.contains(&name) {
        return Ok(false);
    }
    if value.is_empty() {
        // What a variable leaves that is not set must not widen what is changed.
        return Err(Problem::bad(name, "is empty: say which, or leave it out"));
    }
    let text = || str::from_utf8(value).map_err(|_| Problem::bad(name, "is no text"));
    match name {
        "state" => filter.state = Some(Phase::parse(text()?).ok_or_else(|| Problem::bad(name, states()))?),
        "scope" => {
            let range = IdRange::of_hex(text()?);
            filter.scope = Some(range.ok_or_else(|| Problem::bad(name, "is no beginning of a hash in hexadecimal"))?);
        }
        "route" => filter.route = Some(text()?.to_owned()),
        "key" => filter.key = Some(value.to_owned()),
        _ => filter.older_than = Some(config::duration(text()?).map_err(|why| Problem::bad(name, why))?),
    }
    Ok(true)
}

fn states() -> String {
    format!("is no state: there are {}", Phase::ALL.map(Phase::name).join(", "))
}

/// Where a listing goes on.
pub fn bookmark(text: &str, order: Order) -> Option<Bookmark> {
    let (ticks, id) = match (text.split_once('-'), order) {
        (Some((ticks, id)), Order::Age) => (i64::from_str_radix(ticks, 16).ok()?, id),
        (None, Order::Id | Order::Running) => (0, text),
        _ => return None,
    };
    Some(Bookmark { ticks, id: whole_id(id)? })
}

/// The same, to be given out.
pub fn cursor(mark: &Bookmark, order: Order) -> String {
    match order {
        Order::Age => format!("{:x}-{}", mark.ticks, mark.id),
        Order::Id | Order::Running => mark.id.to_string(),
    }
}

/// An id that is written out.
pub fn whole_id(text: &str) -> Option<RecordId> {
    let range = IdRange::of_hex(text).filter(|_| text.len() == 64)?;
    RecordId::from_stored(&range.low)
}

/// The ids that a person may mean.
pub fn ids(text: &str) -> Result<IdRange, Problem> {
    let range = IdRange::of_hex(text).filter(|_| text.len() >= ID_DIGITS_MIN);
    range.ok_or_else(|| {
        Problem::bad("id", format!("is no id: write its {ID_DIGITS_MIN} to 64 hexadecimal digits, from the first on"))
    })
}

/// The fields of a JSON object.
pub struct Fields(Map<String, Value>);

impl Fields {
    /// Understands a body; none is an object without fields.
    pub fn parse(body: &[u8]) -> Result<Self, Problem> {
        if body.trim_ascii().is_empty() {
            return Ok(Self(Map::new()));
        }
        match serde_json::from_slice(body) {
            Ok(Value::Object(fields)) => Ok(Self(fields)),
            Ok(_) => Err(Problem::bad("body", "is JSON, but no object")),
            Err(error) => {
                let at = format!("line {}, column {}", error.line(), error.column());
                Err(Problem::new(StatusCode::BAD_REQUEST, "bad-request", format!("the body is no JSON: {at}")))
            }
        }
    }

    /// A text.
    pub fn text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(_) => Err(Problem::bad(name, "is no text")),
        }
    }

    /// A whole number.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, Problem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(value) => value.as_u64().map(Some).ok_or_else(|| Problem::bad(name, "is no whole number")),
        }
    }

    fn flag(&mut self, name: &str) -> Result<bool, Problem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(false),
            Some(value) => value.as_bool().ok_or_else(|| Problem::bad(name, "is neither `true` nor `false`")),
        }
    }

    /// `ids`, or `filter`, or, where all are meant, `"all": true`: an empty filter is more likely a mistake.
    pub fn which(&mut self) -> Result<Which, Problem> {
        let (ids, filter, all) = (self.texts("ids")?, self.filter()?, self.flag("all")?);
        let is_empty = filter.as_ref().is_none_or(|filter| *filter == Filter::default());
        match (ids, filter) {
            (Some(_), Some(_)) => Err(Problem::bad("filter", "stands there beside `ids`")),
            (Some(_), None) if all => Err(Problem::bad("all", "stands there beside `ids`")),
            (_, Some(_)) if all && !is_empty => Err(Problem::bad("all", "stands there beside a filter")),
            (Some(ids), None) => Ok(Which::Named(ids)),
            (None, filter) if all || !is_empty => Ok(Which::Fitting(Box::new(filter.unwrap_or_default()))),
            (None, Some(_)) => Err(Problem::bad("filter", "is empty: say which keys, or `\"all\": true`")),
            (None, None) => Err(Problem::bad("filter", "is missing: `filter` or `ids` say which keys")),
        }
    }

    /// A list of texts.
    fn texts(&mut self, name: &str) -> Result<Option<Vec<String>>, Problem> {
        match self.0.remove(name) {
            None | Some(Value::Null) => Ok(None),
            Some(Value::Array(list)) => {
                let text = |value: Value| match value {
                    Value::String(text) => Ok(text),
                    _ => Err(Problem::bad(name, "is no list of texts")),
                };
                list.into_iter().map(text).collect::<Result<_, _>>().map(Some)
            }
            Some(_) => Err(Problem::bad(name, "is no list of texts")),
        }
    }

    fn filter(&mut self) -> Result<Option<Filter>, Problem> {
        let conditions = match self.0.remove("filter") {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::Object(conditions)) => conditions,
            Some(_) => return Err(Problem::bad("filter", "is no object")),
        };
        let mut filter = Filter::default();
        for (name, value) in conditions {
            let Value::String(text) = value else { return Err(Problem::bad(&name, "is no text")) };
            if !narrow(&mut filter, &name, text.as_bytes())? {
                return Err(Problem::bad(&name, "is none of a filter's conditions"));
            }
        }
        Ok(Some(filter))
    }

    /// What was decided.
    pub fn decision(&mut self, verb: Verb, actor: String, accept_risk: bool) -> Result<Decision, Problem> {
        let change = match verb {
            Verb::Purge => Change::Purge,
            Verb::Release => Change::Release,
            Verb::Requeue => Change::Requeue,
            _ => self.outcome()?,
        };
        let accept_risk = self.flag("accept_risk")? || accept_risk;
        let note = self.text("note")?.filter(|note| !note.is_empty());
        if let Some(note) = &note
            && (note.chars().count() > NOTE_CHARS_MAX || note.chars().any(char::is_control))
        {
            return Err(Problem::bad("note", format!("is longer than {NOTE_CHARS_MAX} characters, or not one line")));
        }
        Ok(Decision { change, actor, note, accept_risk })
    }

    fn outcome(&mut self) -> Result<Change, Problem> {
        match self.text("outcome")?.as_deref() {
            Some("completed") => self.response().map(Change::Complete),
            Some("not_executed") => Ok(Change::NotExecuted),
            Some(_) => Err(Problem::bad("outcome", "is neither `completed` nor `not_executed`")),
            None => Err(Problem::bad("outcome", "is missing: `completed` or `not_executed`")),
        }
    }

    /// A response that a service gives of its own attempt: of its fields those are kept that are kept of an answer.
    pub fn response_of_service(&mut self) -> Result<StoredResponse, Problem> {
        let mut headers = self.written_headers()?;
        fields::towards_client(&mut headers);
        self.response_with(headers)
    }

    fn response(&mut self) -> Result<StoredResponse, Problem> {
        let headers = self.headers()?;
        self.response_with(headers)
    }

    fn response_with(&mut self, headers: HeaderMap) -> Result<StoredResponse, Problem> {
        let status = self.number("status")?.ok_or_else(|| Problem::bad("status", "is missing"))?;
        let status = u16::try_from(status).ok().filter(|status| (200..600).contains(status));
        let status = status.and_then(|status| StatusCode::from_u16(status).ok());
        let status = status.ok_or_else(|| Problem::bad("status", "is no status from 200 to 599"))?;
        let body = match (self.text("body")?, self.text("body_base64")?) {
            (Some(_), Some(_)) => return Err(Problem::bad("body_base64", "stands there beside `body`")),
            (Some(text), None) => Bytes::from(text),
            (None, Some(text)) => {
                let decoded = BASE64_STANDARD.decode(text);
                Bytes::from(decoded.map_err(|_| Problem::bad("body_base64", "is not base64 with its padding"))?)
            }
            (None, None) => Bytes::new(),
        };
        if matches!(status.as_u16(), 204 | 205 | 304) && !body.is_empty() {
            return Err(Problem::bad("body", format!("goes with no response whose status is {}", status.as_u16())));
        }
        Ok(StoredResponse { status, headers, body: Some(body), trailers: HeaderMap::new() })
    }

    /// What would not be stored of an upstream's response is not stored of a person's either, and a person is told.
    fn headers(&mut self) -> Result<HeaderMap, Problem> {
        let mut headers = self.written_headers()?;
        let written = headers.keys().cloned().collect::<Vec<_>>();
        fields::towards_client(&mut headers);
        match written.iter().find(|name| !headers.contains_key(*name) || fields::is_of_the_moment(name)) {
            Some(name) => {
                Err(Problem::bad("headers", format!("has `{name}`, which a replay makes anew or leaves out")))
            }
            None => Ok(headers),
        }
    }

    /// `{"name": "value"}`, or `[["name", "value"], …]` where a name comes more than once.
    fn written_headers(&mut self) -> Result<HeaderMap, Problem> {
        let wrong = || Problem::bad("headers", "is neither an object of texts nor a list of [name, value]");
        let pair = |name: String, value: &Value| Ok((name, value.as_str().ok_or_else(wrong)?.to_owned()));
        let pairs: Vec<(String, String)> = match self.0.remove("headers") {
            None | Some(Value::Null) => Vec::new(),
            Some(Value::Object(fields)) => {
                fields.into_iter().map(|(name, value)| pair(name, &value)).collect::<Result<_, _>>()?
            }
            Some(Value::Array(list)) => {
                let of_two = |two: &Value| match two.as_array().map(Vec::as_slice) {
                    Some([Value::String(name), value]) => pair(name.clone(), value),
                    _ => Err(wrong()),
                };
                list.iter().map(of_two).collect::<Result<_, _>>()?
            }
            Some(_) => return Err(wrong()),
        };
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            let bad = |why: &str| Problem::bad("headers", format!("has {name:?}, which {why}"));
            let known = HeaderName::from_bytes(name.as_bytes()).map_err(|_| bad("is no name of a field"))?;
            let value = value.trim_matches([' ', '\t']).as_bytes();
            let value = HeaderValue::from_bytes(value).map_err(|_| bad("has no value of a field"))?;
            headers.append(known, value);
        }
        Ok(headers)
    }

    /// Nothing else was said.
    pub fn end(&self) -> Result<(), Problem> {
        self.0.keys().next().map_or(Ok(()), |name| Err(Problem::bad(name, "is no field here")))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn detail<T>(result: Result<T, Problem>) -> String {
        match result {
            Ok(_) => panic!("it is understood"),
            Err(problem) => problem.detail,
        }
    }

    #[test]
    fn a_filter_is_read_from_a_query_or_an_object_alike() {
        let query = "state=unknown&scope=0A&route=pay&key=a%20b&older_than=5m&limit=7";
        let mut asked = Query::parse(query).unwrap();
        let filter = asked.filter().unwrap();
        assert_eq!((filter.state, filter.order()), (Some(Phase::Unknown), Order::Age));
        assert_eq!(filter.key.as_deref(), Some(&b"a b"[..]));
        assert_eq!(filter.older_than, Some(Duration::from_secs(300)));
        assert_eq!((asked.limit(), asked.end()), (Ok(7), Ok(())));
        let object = br#"{"filter":{"state":"unknown","scope":"0A","route":"pay","key":"a b","older_than":"5m"}}"#;
        assert_eq!(Fields::parse(object).unwrap().which(), Ok(Which::Fitting(Box::new(filter))));
    }

    #[test]
    fn a_change_says_which_keys_and_nothing_said_is_not_all_of_them() {
        let which = |body: &str| Fields::parse(body.as_bytes()).unwrap().which();
        for all in [r#"{"all":true}"#, r#"{"all":true,"filter":{}}"#, r#"{"all":true,"filter":null,"ids":null}"#] {
            assert_eq!(which(all), Ok(Which::Fitting(Box::default())), "{all}");
        }
        assert_eq!(which(r#"{"ids":["ab"],"all":false}"#), Ok(Which::Named(vec!["ab".into()])));
        for name in ["state", "scope", "route", "key", "older_than"] {
            let body = format!(r#"{{"filter":{{"{name}":""}},"all":true}}"#);
            assert!(detail(which(&body)).starts_with(&format!("`{name}` is empty")), "{body}");
        }
        for (body, why) in [
            ("{}", "`filter` is missing"),
            (r#"{"all":false}"#, "`filter` is missing"),
            (r#"{"filter":{}}"#, "`filter` is empty"),
            (r#"{"filter":{},"all":false}"#, "`filter` is empty"),
            (r#"{"filter":{"key":"","state":"dead"}}"#, "`key` is empty"),
            (r#"{"filter":{"key":"k"},"all":true}"#, "`all` stands there beside"),
            (r#"{"ids":["ab"],"all":true}"#, "`all` stands there beside"),
            (r#"{"ids":["ab"],"filter":{"key":"k"}}"#, "`filter` stands there beside"),
            (r#"{"all":1}"#, "`all` is neither"),
        ] {
            let detail = detail(which(body));
            assert!(detail.starts_with(why), "{body}: {detail}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_query_is_named() {
        let end = |query: &str| {
            let mut query = Query::parse(query)?;
            let _: (Filter, u32, bool) = (query.filter()?, query.limit()?, query.flag("accept_risk")?);
            query.end()
        };
        assert_eq!(end("state=&key="), Ok(()));
        for (query, why) in [
            ("state=done", "`state` is no state: there are completed, dead, expired"),
            ("scope=xy", "`scope` is no beginning of a hash"),
            ("older_than=5", "`older_than` has no unit"),
            ("limit=0", "`limit` is no number from 1 to 500"),
            ("limit=501", "`limit` is no number"),
            ("route=%ff", "`route` is no text"),
            ("key=a&key=b", "`key` stands there twice"),
            ("accept_risk=1", "`accept_risk` is neither"),
            ("sate=unknown", "`sate` is no parameter here"),
        ] {
            let detail = detail(end(query));
            assert!(detail.starts_with(why), "{query}: {detail}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_body_is_named() {
        let decide = |body: &str| {
            let mut fields = Fields::parse(body.as_bytes())?;
            let decision = fields.decision(Verb::Resolve, "alice".into(), false)?;
            fields.end().map(|()| decision)
        };
        for (body, why) in [
            ("{", "the body is no JSON: line 1, column 1"),
            ("[]", "`body` is JSON, but no object"),
            ("{}", "`outcome` is missing"),
            (r#"{"outcome":"done"}"#, "`outcome` is neither"),
            (r#"{"outcome":1}"#, "`outcome` is no text"),
            (r#"{"outcome":"completed"}"#, "`status` is missing"),
            (r#"{"outcome":"completed","status":"200"}"#, "`status` is no whole number"),
            (r#"{"outcome":"completed","status":199}"#, "`status` is no status"),
            (r#"{"outcome":"completed","status":204,"body":"x"}"#, "`body` goes with no response whose status is 204"),
            (r#"{"outcome":"completed","status":200,"body":{}}"#, "`body` is no text"),
            (r#"{"outcome":"completed","status":200,"body_base64":"!"}"#, "`body_base64` is not base64"),
            (
                r#"{"outcome":"completed","status":200,"headers":{"a b":"c"}}"#,
                "`headers` has \"a b\", which is no name",
            ),
            (
                r#"{"outcome":"completed","status":200,"headers":{"a":"b\nc"}}"#,
                "`headers` has \"a\", which has no value",
            ),
            (
                r#"{"outcome":"completed","status":200,"headers":{"Content-Length":"9"}}"#,
                "`headers` has `content-length`",
            ),
            (r#"{"outcome":"completed","status":200,"headers":{"Idempotent-Replayed":"true"}}"#, "`headers` has `idem"),
            (r#"{"outcome":"completed","status":200,"headers":[["a"]]}"#, "`headers` is neither"),
            (r#"{"outcome":"not_executed","status":200}"#, "`status` is no field here"),
            (r#"{"outcome":"not_executed","note":"a\nb"}"#, "`note` is longer"),
            (r#"{"outcome":"not_executed","accept_risk":"yes"}"#, "`accept_risk` is neither"),
        ] {
            let detail = detail(decide(body));
            assert!(detail.starts_with(why), "{body}: {detail}");
        }
        let body = r#"{"outcome":"completed","status":201,"headers":[["A","1"],["a","2"]],"body_base64":"AP8="}"#;
        let Change::Complete(response) = decide(body).unwrap().change else { panic!("it is another change") };
        assert_eq!(response.headers.get_all("a").iter().collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(response.body.as_deref(), Some(&[0, 255][..]));
    }

    #[test]
    fn a_cursor_is_for_the_order_it_was_made_in() {
        let id = RecordId::from_stored(&[0xab; 32]).unwrap();
        for order in [Order::Age, Order::Id, Order::Running] {
            let mark = Bookmark { ticks: if order == Order::Age { 77 } else { 0 }, id };
            assert_eq!(bookmark(&cursor(&mark, order), order), Some(mark));
        }
        let by_age = cursor(&Bookmark { ticks: 77, id }, Order::Age);
        for wrong in [(&*by_age, Order::Id), ("ab", Order::Id), (&id.to_string(), Order::Age), ("x-y", Order::Age)] {
            assert_eq!(bookmark(wrong.0, wrong.1), None, "{wrong:?}");
        }
    }
}
