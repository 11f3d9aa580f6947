//! The operators' page: what waits for somebody, and what can be decided about it, in any browser and without a script.
//!
//! It asks the [desk](super::desk) the same questions as the API does, and knows no other way to a key. What it shows is
//! escaped by the templates, which stand in the folder beside this file; a page may load its own style and send forms to
//! this listener, and nothing else. Each form brings back what only the page that it was on can know (CSRF).
//!
//! To add a page: a variant of `Place`, its path, its methods, its arm in `Visit::answer`.

use std::net::{IpAddr, SocketAddr};

use askama::Template;
use http::header::{
    ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, COOKIE, HeaderName, HeaderValue, LOCATION,
    REFERRER_POLICY, WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{HeaderMap, Method, Request, Response, StatusCode};
use http_body_util::{BodyExt, Limited};
use hyper::body::Incoming;
use serde_json::Value;

use super::auth::{self, Denied};
use super::desk::problem::Problem;
use super::desk::{self, BODY_BYTES_MAX, Question, Verb};
use super::{Admin, BODY_MAX};
use crate::body::Body;
use crate::domain::fingerprint::form;
use seen::When;
use sessions::Visitor;
use words::Step;

pub use sessions::Sessions;

mod deciding;
mod looking;
mod seen;
mod sessions;
mod signing;
mod words;

/// A form's bytes stand there as `%XX`, three for one.
const FORM_BYTES_MAX: usize = 3 * BODY_BYTES_MAX;

/// What each form brings back.
const FORM: &str = "form";

/// `same-origin` rather than `no-referrer`: with that one, browsers call the origin of our own forms `null`, as they do
/// those of pages that hide where they come from. Other origins are told nothing by either.
const REFERRER: &str = "same-origin";

const POLICY: &str =
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

/// Whether the page has something at that path.
pub fn has(path: &str) -> bool {
    Place::of(path).is_some()
}

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place<'a> {
    Change(&'a str, Step),
    Find,
    Key(&'a str),
    Keys,
    Log,
    Overview,
    Several,
    SignIn,
    SignOut,
    Style,
}

impl<'a> Place<'a> {
    /// What is at that path; `None` where the page has nothing there.
    fn of(path: &'a str) -> Option<Self> {
        let segments: Vec<_> = path.strip_prefix('/')?.split('/').collect();
        Some(match *segments {
            [""] => Self::Overview,
            ["audit"] => Self::Log,
            ["keys"] => Self::Keys,
            ["keys", "find"] => Self::Find,
            ["keys", "several"] => Self::Several,
            ["keys", id] => Self::Key(id),
            ["keys", id, step] => Self::Change(id, Step::parse(step)?),
            ["page.css"] => Self::Style,
            ["sign-in"] => Self::SignIn,
            ["sign-out"] => Self::SignOut,
            _ => return None,
        })
    }

    /// `GET` answers `HEAD` too.
    fn methods(self) -> &'static [Method] {
        match self {
            Self::Change(..) | Self::Several | Self::SignIn => &[Method::GET, Method::POST],
            Self::Find | Self::SignOut => &[Method::POST],
            Self::Key(_) | Self::Keys | Self::Log | Self::Overview | Self::Style => &[Method::GET],
        }
    }
}

/// The parameters of a query or of a form. What stands there twice counts once, the first time.
#[derive(Default)]
struct Pairs(Vec<(String, String)>);

impl Pairs {
    fn parse(text: &[u8]) -> Self {
        let text_of = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Self(form::pairs(text).map(|(name, value)| (text_of(name), text_of(value))).collect())
    }

    /// Empty where there is none.
    fn get(&self, name: &str) -> &str {
        self.0.iter().find(|(known, _)| known == name).map_or("", |(_, value)| value)
    }
}

/// What stands around each page.
struct Frame {
    service: String,
    instance: String,
    reasons: Vec<String>,
    /// What its forms bring back.
    form: String,
    name: String,
    is_signed_in: bool,
    now: When,
    version: &'static str,
    notice: Option<String>,
}

/// A page that says one thing.
#[derive(Template)]
#[template(path = "message.html")]
struct Message<'a> {
    title: &'a str,
    detail: &'a str,
}

/// One visit to the page by somebody who may.
struct Visit<'a> {
    admin: &'a Admin,
    visitor: Visitor,
    peer: IpAddr,
    query: Pairs,
}

impl Admin {
    /// Answers a visit to the page.
    pub(super) async fn page(&self, request: Request<Incoming>, listener: SocketAddr, peer: IpAddr) -> Response<Body> {
        if let Err(denied) = auth::is_at_home(&request, listener) {
            return message(StatusCode::FORBIDDEN, "Not from there", &denied.to_string());
        }
        let (request, body) = request.into_parts();
        let Some(place) = Place::of(request.uri.path()) else { return see_other("/") };
        let methods = place.methods();
        let is_form = request.method == Method::POST;
        if !methods.contains(if request.method == Method::HEAD { &Method::GET } else { &request.method }) {
            let mut response = message(StatusCode::METHOD_NOT_ALLOWED, "Not so", "This page is asked in another way.");
            let allow = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
            response.headers_mut().insert(ALLOW, HeaderValue::from_str(&allow).expect("methods are visible ASCII"));
            return response;
        }
        if place == Place::Style {
            return dress(Response::new(Body::whole(include_str!("page/page.css"))), "text/css; charset=utf-8");
        }
        let form = match is_form {
            true => match read(&request, body).await {
                Ok(form) => Some(form),
                Err(response) => return response,
            },
            false => None,
        };
        let query = Pairs::parse(request.uri.query().unwrap_or_default().as_bytes());
        let cookie = cookie(&request.headers, listener);
        if place == Place::SignIn {
            return match form {
                Some(form) => self.sign_in(&form, listener, peer),
                None => self.sign_in_page(&query),
            };
        }
        let Some(visitor) = self.visitor(&request.headers, cookie, peer) else {
            return unknown_visitor(&request, is_form);
        };
        if let Some(form) = &form
            && !visitor.form.is(form.get(FORM).as_bytes())
        {
            let why = "The form was not from a page of this session, or this instance has been started anew since. \
                       Nothing was changed. Open the page again and look before you try once more.";
            return message(StatusCode::FORBIDDEN, "Nothing was changed", why);
        }
        if place == Place::SignOut {
            self.sessions.sign_out(cookie.unwrap_or_default());
            return signing::signed_out(listener);
        }
        let visit = Visit { admin: self, visitor, peer, query };
        let answer = match (place, form) {
            (Place::Change(id, step), Some(form)) => visit.change(id, step, &form).await,
            (Place::Change(id, step), None) => visit.change_page(id, step).await,
            (Place::Find, form) => visit.find(&form.unwrap_or_default()).await,
            (Place::Key(id), _) => visit.key(id).await,
            (Place::Keys, _) => visit.keys().await,
            (Place::Log, _) => visit.log().await,
            (Place::Several, Some(form)) => visit.several(&form).await,
            (Place::Several, None) => visit.several_page().await,
            (Place::Overview | Place::SignIn | Place::SignOut | Place::Style, _) => Ok(visit.overview().await),
        };
        match answer {
            Ok(response) => response,
            Err(problem) => visit.trouble(&problem).await,
        }
    }

    /// Who asks; `None` where they have to sign in first.
    fn visitor(&self, headers: &HeaderMap, cookie: Option<&[u8]>, peer: IpAddr) -> Option<Visitor> {
        let Some(token) = &self.shared.config.admin.token else { return Some(self.sessions.anybody()) };
        match cookie.and_then(|cookie| self.sessions.visitor(cookie, peer)) {
            Some(visitor) => Some(visitor),
            None => auth::shows(headers, token).then(|| self.sessions.anybody()),
        }
    }
}

impl Visit<'_> {
    /// Asks the desk, in the name of whoever visits.
    async fn ask(&self, verb: Verb, id: &str, query: &str, body: Option<Value>) -> Result<Value, Problem> {
        self.ask_as(&self.visitor.name, verb, id, query, body).await
    }

    async fn ask_as(
        &self,
        name: &str,
        verb: Verb,
        id: &str,
        query: &str,
        body: Option<Value>,
    ) -> Result<Value, Problem> {
        let body = body.map_or_else(Vec::new, |body| body.to_string().into_bytes());
        if body.len() > BODY_BYTES_MAX {
            return Err(desk::body_too_large(BODY_BYTES_MAX));
        }
        let actor = desk::actor(self.peer, Some(name.as_bytes()));
        self.admin.desk.answer(Question { verb, id, query, body: &body, actor }).await
    }

    async fn frame(&self) -> Frame {
        let shared = &self.admin.shared;
        let (_, ready) = self.admin.ready().await;
        let reasons = ready["reasons"].as_array().into_iter().flatten();
        Frame {
            service: shared.config.service.to_string(),
            instance: shared.tenure.id().to_string(),
            reasons: reasons.filter_map(Value::as_str).map(str::to_owned).collect(),
            form: self.visitor.form.reveal().to_owned(),
            name: self.visitor.name.clone(),
            is_signed_in: self.visitor.is_signed_in,
            now: When::now(),
            version: env!("CARGO_PKG_VERSION"),
            notice: self.notice(),
        }
    }

    /// What has just been done, as the address tells: in our words, whatever stands there.
    fn notice(&self) -> Option<String> {
        let step = Step::parse(self.query.get("done"))?;
        let number = |name: &str| self.query.get(name).parse::<u64>().ok();
        let mut told = match number("changed") {
            None => format!("Done. The key is {}.", step.done()),
            Some(1) => format!("Done. 1 key is {}.", step.done()),
            Some(changed) => format!("Done. {changed} keys are {}.", step.done()),
        };
        if let Some(refused @ 1..) = number("refused") {
            let why: Vec<_> = self.query.get("why").split('.').map(words::refusal).collect();
            let (keys, were) = if refused == 1 { ("key", "was") } else { ("keys", "were") };
            told.push_str(&format!(" {refused} {keys} {were} not changed: {}.", why.join("; or ")));
        }
        if let Some(behind @ 1..) = number("behind") {
            told.push_str(&format!(
                " {behind} running instances have not said that they have forgotten it: until their leases have run out \
                 they may still replay it."
            ));
        }
        Some(told)
    }

    /// What the desk refused, as a page.
    async fn trouble(&self, problem: &Problem) -> Response<Body> {
        #[derive(Template)]
        #[template(path = "trouble.html")]
        struct Trouble<'a> {
            frame: Frame,
            title: &'a str,
            detail: &'a str,
        }
        let title = match problem.status {
            StatusCode::BAD_REQUEST => "That cannot be asked",
            StatusCode::NOT_FOUND => "There is no such key",
            StatusCode::SERVICE_UNAVAILABLE => "The store does not answer",
            _ => "It was not done",
        };
        html(problem.status, &Trouble { frame: self.frame().await, title, detail: &problem.detail })
    }
}

/// A form, whole.
async fn read(request: &Parts, body: Incoming) -> Result<Pairs, Response<Body>> {
    let kind = request.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !kind
        .split(|byte| *byte == b';')
        .next()
        .is_some_and(|kind| kind.trim_ascii().eq_ignore_ascii_case(b"application/x-www-form-urlencoded"))
    {
        return Err(message(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Not so", "This page takes forms."));
    }
    match tokio::time::timeout(BODY_MAX, Limited::new(body, FORM_BYTES_MAX).collect()).await {
        Ok(Ok(body)) => Ok(Pairs::parse(&body.to_bytes())),
        Ok(Err(_)) => Err(message(
            StatusCode::PAYLOAD_TOO_LARGE,
            "Nothing was changed",
            "The form is too large, or it broke off.",
        )),
        Err(_) => Err(message(StatusCode::REQUEST_TIMEOUT, "Nothing was changed", "The form did not come.")),
    }
}

/// To the form for signing in, or, where something was to be changed, that it was not.
fn unknown_visitor(request: &Parts, is_form: bool) -> Response<Body> {
    if !is_form {
        let asked = request.uri.path_and_query().map_or("/", |asked| asked.as_str());
        return see_other(&format!("/sign-in?next={}", form::escape(asked.as_bytes())));
    }
    let why = format!("Your session is over. Nothing was changed. Sign in, and look again. ({})", Denied::Token);
    let mut response = message(StatusCode::UNAUTHORIZED, "Nothing was changed", &why);
    response.headers_mut().insert(WWW_AUTHENTICATE, HeaderValue::from_static("Bearer realm=\"oncegate\""));
    response
}

/// The session's, by the listener's port: browsers show a machine's cookies to all its ports.
fn cookie(headers: &HeaderMap, listener: SocketAddr) -> Option<&[u8]> {
    let name = signing::cookie_name(listener);
    let pairs = headers.get_all(COOKIE).iter().flat_map(|field| field.as_bytes().split(|byte| *byte == b';'));
    pairs.map(<[u8]>::trim_ascii).find_map(|pair| pair.strip_prefix(name.as_bytes())?.strip_prefix(b"="))
}

fn message(status: StatusCode, title: &str, detail: &str) -> Response<Body> {
    html(status, &Message { title, detail })
}

fn html(status: StatusCode, page: &impl Template) -> Response<Body> {
    let mut response = match page.render() {
        Ok(text) => Response::new(Body::whole(text)),
        Err(error) => {
            tracing::error!(%error, "a page could not be made");
            Response::new(Body::whole("This page could not be made.\n"))
        }
    };
    *response.status_mut() = status;
    dress(response, "text/html; charset=utf-8")
}

/// After a form: the next page is another request, which can be sent again without harm.
fn see_other(place: &str) -> Response<Body> {
    let mut response = dress(Response::new(Body::empty()), "text/plain; charset=utf-8");
    *response.status_mut() = StatusCode::SEE_OTHER;
    let place = HeaderValue::from_str(place).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, place);
    response
}

/// The fields of every answer.
fn dress(mut response: Response<Body>, kind: &'static str) -> Response<Body> {
    for (name, value) in [
        (CONTENT_TYPE, kind),
        (CACHE_CONTROL, "no-store"),
        (CONTENT_SECURITY_POLICY, POLICY),
        (REFERRER_POLICY, REFERRER),
        (X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
    ] {
        response.headers_mut().insert(name, HeaderValue::from_static(value));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The templates escape whatever they are filled with, and nothing says otherwise.
    #[test]
    fn no_template_has_a_way_around_escaping_or_a_script() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/admin/page");
        // A filter, a block without escaping, a script, a handler, a style of its own, an address that is a script.
        let ways = r#"\{\{[^}]*\||\{%-? *(filter|raw)|<script|[ \n]on[a-z]+ *=|[ \n]style *=|javascript:"#;
        let ways = regex::Regex::new(ways).unwrap();
        let mut templates = 0;
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|ending| ending == "html") {
                let text = std::fs::read_to_string(&file).unwrap();
                assert_eq!(ways.find(&text).map(|found| found.as_str()), None, "{}", file.display());
                templates += 1;
            }
        }
        for way in ["{{ x|safe }}", "{% filter safe %}", "<a onclick='x'>", "<p style=''>"] {
            assert!(ways.is_match(way), "{way}");
        }
        assert!(templates >= 8, "{templates}");
    }

    #[test]
    fn text_of_anybodys_is_escaped() {
        let page = Message { title: "<b>\"'&", detail: "<script>alert(1)</script>" }.render().unwrap();
        assert!(page.contains("&#60;b&#62;&#34;&#39;&#38;"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn a_path_has_one_place() {
        assert_eq!(Place::of("/"), Some(Place::Overview));
        assert_eq!(Place::of("/keys/ab"), Some(Place::Key("ab")));
        assert_eq!(Place::of("/keys/ab/purge"), Some(Place::Change("ab", Step::Purge)));
        for other in ["", "/keys/ab/delete", "/keys/ab/purge/", "/api/v1/keys", "/healthz", "//", "/sign-in/", "keys"] {
            assert_eq!(Place::of(other), None, "{other}");
        }
    }
}
