//! The operators' page: keys that need a decision, and forms to make it, in any browser and without a script.
//!
//! It sends [`KeyAdmin`](super::key_admin::KeyAdmin) the same requests as the API does, has no other way to a key, and
//! renders the typed results as HTML. The templates, in the folder beside this file, escape all values. A page may load
//! its own style and send forms to this listener, and nothing else. Each form brings back a secret that only the page
//! with the form knows (CSRF).
//!
//! To add a page: a variant of `PagePath`, its path, its methods, its arm in `Visit::answer`.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

use askama::Template;
use http::header::{
    CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue, LOCATION, REFERRER_POLICY,
    WWW_AUTHENTICATE, X_CONTENT_TYPE_OPTIONS,
};
use http::request::Parts;
use http::{Method, Request, Response, StatusCode};

use super::auth::{self, AccessDenied, Role};
use super::key_admin::problem::ApiProblem;
use super::key_admin::{BODY_BYTES_MAX, KeyAdmin};
use super::{AdminListener, CHALLENGE, NOT_JOINED, read_body, with_allow};
use cookies::PageCookie;
use format::{Shown, ShownTime};
use frame::Frame;
use live::LiveView;
use oncegate_domain::execution_risk::ActionKind;
use oncegate_domain::media_type::is_form;
use oncegate_domain::urlencoded;
use oncegate_http::body::Body;
use oncegate_http::body::request_body::RequestBody;
use sessions::Visitor;
use text::parse_action;

pub use pending_sign_ins::PendingSignIns;
pub use sessions::Sessions;

mod action_pages;
mod cookies;
mod format;
mod frame;
mod instance_pages;
mod list_pages;
mod live;
mod message_pages;
mod oidc_pages;
mod outcome_chart;
mod pending_sign_ins;
mod runbooks;
mod saved_pages;
mod selection;
mod sessions;
mod sign_in_pages;
mod text;

/// The length of a form, at most: a byte may be encoded as `%XX`.
const FORM_BYTES_MAX: usize = 3 * BODY_BYTES_MAX;

/// The field of a form in which it brings back its secret.
const FORM: &str = "form";

/// `same-origin` rather than `no-referrer`: with `no-referrer`, browsers send `Origin: null` with our own forms, as
/// with forms of pages that hide their origin. Other origins get no referrer by either.
// See docs/decisions/0029-guard-the-admin-listener.md.
const REFERRER: &str = "same-origin";

const POLICY: &str =
    "default-src 'none'; style-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'";

pub fn is_page(path: &str) -> bool {
    PagePath::parse(path).is_some()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PagePath<'a> {
    Audit,
    BulkChange,
    BulkResult,
    Change(&'a str, ActionKind),
    Find,
    Instances,
    Key(&'a str),
    Keys,
    OidcSignIn,
    OidcCallback,
    Messages,
    Overview,
    RequeueEvents,
    Routes,
    Runbook(&'static str),
    Saved,
    Service(&'a str),
    SignIn,
    SignOut,
    Style,
}

impl<'a> PagePath<'a> {
    fn parse(path: &'a str) -> Option<Self> {
        let segments: Vec<_> = path.strip_prefix('/')?.split('/').collect();
        Some(match *segments {
            [""] => Self::Overview,
            ["audit"] => Self::Audit,
            ["instances"] => Self::Instances,
            ["keys"] => Self::Keys,
            ["keys", "changed"] => Self::BulkResult,
            ["keys", "find"] => Self::Find,
            ["keys", "several"] => Self::BulkChange,
            ["keys", id] => Self::Key(id),
            ["keys", id, action] => Self::Change(id, parse_action(action)?),
            ["messages"] => Self::Messages,
            ["messages", "requeue"] => Self::RequeueEvents,
            ["page.css"] => Self::Style,
            ["routes"] => Self::Routes,
            ["runbooks", name] => Self::Runbook(runbooks::find(name)?),
            ["saved"] => Self::Saved,
            // The letters of a name: it becomes a cookie.
            ["services", name] if name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) => {
                Self::Service(name)
            }
            ["sign-in"] => Self::SignIn,
            ["sign-in", "oidc"] => Self::OidcSignIn,
            ["sign-in", "oidc", "callback"] => Self::OidcCallback,
            ["sign-out"] => Self::SignOut,
            _ => return None,
        })
    }

    /// Returns its methods. `GET` answers `HEAD` too.
    fn methods(self) -> &'static [Method] {
        match self {
            Self::BulkChange | Self::Change(..) | Self::SignIn => &[Method::GET, Method::POST],
            Self::Find | Self::RequeueEvents | Self::SignOut => &[Method::POST],
            _ => &[Method::GET],
        }
    }
}

/// The parameters of a query string or of a form. Of a parameter that comes twice and should not, the first counts.
#[derive(Clone, Default)]
struct FormParams(Vec<(String, String)>);

impl FormParams {
    fn new(params: &[(&str, &str)]) -> Self {
        Self(params.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect())
    }

    fn parse(text: &[u8]) -> Self {
        // Browsers send line ends as CR LF.
        let text_of = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).replace("\r\n", "\n");
        Self(urlencoded::pairs(text).map(|(name, value)| (text_of(name), text_of(value))).collect())
    }

    /// Returns a parameter without spaces around it; the empty text where it is missing.
    fn text(&self, name: &str) -> &str {
        self.get(name).trim()
    }

    /// Returns a parameter as it was sent; the empty text where it is missing.
    fn get(&self, name: &str) -> &str {
        self.all(name).next().unwrap_or_default()
    }

    /// Returns a parameter that may come more than once, such as the checked boxes of a list.
    fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| &**value)
    }
}

#[derive(Template)]
#[template(path = "message.html")]
struct MessagePage<'a> {
    title: &'a str,
    detail: &'a str,
}

type PageAnswer = Result<Response<Body>, ApiProblem>;

/// A request for a page, whose form was read.
struct PageRequest<'a> {
    head: &'a Parts,
    path: PagePath<'a>,
    form: Option<FormParams>,
    query: FormParams,
    listener: SocketAddr,
    peer: IpAddr,
    /// Whether the browser has come by the `https://` address of `admin.oidc.url`.
    is_at_url: bool,
}

impl PageRequest<'_> {
    /// The session's cookie. `is_https` says whether the browser speaks TLS to a proxy at another address.
    fn session_cookie(&self, is_https: bool) -> PageCookie {
        PageCookie::of_session(self.listener, self.is_at_url, is_https)
    }
}

/// A request for a page by a visitor who has access.
struct Visit<'a> {
    admin: &'a AdminListener,
    visitor: Visitor,
    peer: IpAddr,
    query: FormParams,
    /// `None` where the page is not refreshed.
    live: Option<LiveView>,
    /// The service that the page is about: the only one that the visitor may see, or the one that they have chosen.
    service: Arc<str>,
}

impl AdminListener {
    pub(super) async fn answer_page(
        &self,
        request: Request<RequestBody>,
        listener: SocketAddr,
        peer: IpAddr,
    ) -> Response<Body> {
        self.find_page(request, listener, peer).await.unwrap_or_else(|refusal| refusal)
    }

    async fn find_page(
        &self,
        request: Request<RequestBody>,
        listener: SocketAddr,
        peer: IpAddr,
    ) -> Result<Response<Body>, Response<Body>> {
        let own = self.own_names(listener);
        auth::check_origin(&request, &own)
            .map_err(|denied| render_message(StatusCode::FORBIDDEN, "Not allowed from there", &denied.to_string()))?;
        let (head, body) = request.into_parts();
        let path = PagePath::parse(head.uri.path()).ok_or_else(|| redirect_to("/"))?;
        check_method(path, &head.method)?;
        if path == PagePath::Style {
            let style = Response::new(Body::whole(include_str!("page/page.css")));
            return Ok(with_common_fields(style, "text/css; charset=utf-8"));
        }
        let form = if head.method == Method::POST { Some(read_form(&head, body).await?) } else { None };
        // A runbook may be about the store that is away.
        if !self.instance.joined.is_cancelled() && !matches!(path, PagePath::Runbook(_)) {
            return Err(render_message(StatusCode::SERVICE_UNAVAILABLE, "No store yet", NOT_JOINED));
        }
        let query = FormParams::parse(head.uri.query().unwrap_or_default().as_bytes());
        let is_at_url = own.is_at_secure_url(&head.headers);
        let request = PageRequest { head: &head, path, form, query, listener, peer, is_at_url };
        match path {
            PagePath::SignIn => Ok(self.answer_sign_in(&request)),
            PagePath::OidcSignIn => Ok(self.begin_oidc_sign_in(&request).await),
            PagePath::OidcCallback => Ok(self.end_oidc_sign_in(&request).await),
            _ => self.answer_visitor(request).await,
        }
    }

    async fn answer_visitor(&self, request: PageRequest<'_>) -> Result<Response<Body>, Response<Body>> {
        let uri = &request.head.uri;
        let live = LiveView::new(request.path, uri.query().unwrap_or_default(), uri.path(), SystemTime::now());
        let mut visitor = self.admit_visitor(&request, live.as_ref().is_some_and(LiveView::is_on))?;
        let service = self.service_of_page(&request, &visitor);
        visitor.form = visitor.form.of_service(service.as_deref().unwrap_or_default());
        if let Some(form) = &request.form
            && !visitor.form.is(form.get(FORM).as_bytes())
        {
            let why = "The form was not from a page of this session and this service, or this instance has been restarted since. \
                       Nothing was changed. Open the page again, and look before you try once more.";
            return Err(render_message(StatusCode::FORBIDDEN, "Nothing was changed", why));
        }
        if request.path == PagePath::SignOut {
            let cookie = request.session_cookie(false);
            self.sessions.sign_out(cookie.find(&request.head.headers).unwrap_or_default());
            let mut response = redirect_to("/sign-in");
            cookie.clear(&mut response);
            return Ok(response);
        }
        if let PagePath::Service(name) = request.path {
            let mut response = redirect_to("/");
            PageCookie::of_service(request.listener, request.is_at_url).set(&mut response, name, sessions::LIFETIME);
            return Ok(response);
        }
        let Some(service) = service else {
            let why = "The service that your token is for is not configured here any more.";
            return Err(render_message(StatusCode::FORBIDDEN, "Not here", why));
        };
        let PageRequest { path, form, query, peer, .. } = request;
        let visit = Visit { admin: self, visitor, peer, query, live, service };
        let response = match visit.answer(path, form.as_ref()).await {
            Ok(response) => response,
            Err(problem) => visit.show_problem(&problem).await,
        };
        Ok(live::with_refresh(response, visit.live.as_ref()))
    }

    /// Returns the service that a page is about: the one that the visitor has chosen, if they may see it, else the
    /// first one that they may.
    fn service_of_page(&self, request: &PageRequest<'_>, visitor: &Visitor) -> Option<Arc<str>> {
        let config = self.config.borrow();
        let chosen = PageCookie::of_service(request.listener, request.is_at_url);
        let chosen = chosen.find(&request.head.headers).unwrap_or_default();
        let seen: Vec<_> = config.service_names().filter(|name| visitor.may_see(name)).collect();
        seen.iter().find(|name| name.as_bytes() == chosen).or(seen.first()).map(|name| Arc::clone(name))
    }

    /// Returns the visitor, if they may see the page and send its form.
    fn admit_visitor(&self, request: &PageRequest<'_>, is_refresh: bool) -> Result<Visitor, Response<Body>> {
        let (headers, peer) = (&request.head.headers, request.peer);
        // Before the sessions, which a reload may have ended.
        let tokens = self.tokens();
        let cookie = request.session_cookie(false);
        let known = cookie.find(headers).and_then(|cookie| self.sessions.find_visitor(cookie, peer, is_refresh));
        let by_token = || {
            let grant = auth::find_grant(headers, peer, &tokens, &self.guesses)?;
            Ok(self.sessions.anonymous_visitor(grant))
        };
        let visitor = known.map_or_else(by_token, Ok).map_err(|denied| {
            if denied != AccessDenied::NoToken {
                self.note_denied(peer, denied);
            }
            match denied {
                AccessDenied::Slowed(wait) => sign_in_pages::slowed_response(wait),
                _ => ask_to_sign_in(request),
            }
        })?;
        if request.form.is_none() {
            return Ok(visitor);
        }
        let nothing_changed = |why| Err(render_message(StatusCode::FORBIDDEN, "Nothing was changed", why));
        if visitor.role == Role::Reader && !matches!(request.path, PagePath::Find | PagePath::SignOut) {
            return nothing_changed(
                "You may look and not change: so says the token with which you have signed in, or your account at the issuer.",
            );
        }
        Ok(visitor)
    }
}

impl Visit<'_> {
    fn key_admin(&self) -> KeyAdmin<'_> {
        self.admin.key_admin(&self.service)
    }

    async fn answer(&self, path: PagePath<'_>, form: Option<&FormParams>) -> PageAnswer {
        match (path, form) {
            (PagePath::Audit, _) => self.show_audit().await,
            (PagePath::BulkChange, Some(form)) => self.change_keys(form).await,
            (PagePath::BulkChange, None) => self.show_bulk_change().await,
            (PagePath::BulkResult, _) => self.show_bulk_result().await,
            (PagePath::Change(id, action), Some(form)) => self.change_key(id, action, form).await,
            (PagePath::Change(id, action), None) => self.show_change(id, action).await,
            (PagePath::Find, Some(form)) => self.find_keys(form).await,
            (PagePath::Instances, _) => Ok(self.show_instances().await),
            (PagePath::Key(id), _) => self.show_key(id).await,
            (PagePath::Keys, _) => self.show_keys().await,
            (PagePath::Messages, _) => Ok(self.show_messages().await),
            (PagePath::RequeueEvents, Some(form)) => self.requeue_events(form).await,
            (PagePath::Routes, _) => Ok(self.show_routes().await),
            (PagePath::Runbook(text), _) => Ok(self.show_runbook(text).await),
            (PagePath::Saved, _) => self.show_saved().await,
            (PagePath::Overview, _)
            // The others were answered before, or are forms.
            | (PagePath::Find | PagePath::RequeueEvents | PagePath::Service(_) | PagePath::SignIn | PagePath::SignOut, _)
            | (PagePath::OidcCallback | PagePath::OidcSignIn | PagePath::Style, _) => Ok(self.show_overview().await),
        }
    }

    async fn show_problem(&self, problem: &ApiProblem) -> Response<Body> {
        #[derive(Template)]
        #[template(path = "problem.html")]
        struct ProblemPageView<'a> {
            frame: Frame,
            title: &'a str,
            detail: &'a str,
        }
        let title = match problem.status() {
            StatusCode::BAD_REQUEST => "The request is wrong",
            StatusCode::NOT_FOUND => "There is no such key",
            StatusCode::SERVICE_UNAVAILABLE => "The store does not answer",
            _ => "It was not done",
        };
        render_page(
            problem.status(),
            &ProblemPageView { frame: self.build_frame().await, title, detail: &problem.detail },
        )
    }
}

fn check_method(path: PagePath<'_>, method: &Method) -> Result<(), Response<Body>> {
    let methods = path.methods();
    if methods.contains(if method == Method::HEAD { &Method::GET } else { method }) {
        return Ok(());
    }
    let why = "This page does not take that HTTP method.";
    let allow = methods.iter().map(Method::as_str).collect::<Vec<_>>().join(", ");
    Err(with_allow(render_message(StatusCode::METHOD_NOT_ALLOWED, "Wrong method", why), &allow))
}

async fn read_form(head: &Parts, body: RequestBody) -> Result<FormParams, Response<Body>> {
    let kind = head.headers.get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
    if !is_form(kind) {
        return Err(render_message(StatusCode::UNSUPPORTED_MEDIA_TYPE, "Wrong content type", "This page takes forms."));
    }
    let refuse = |problem: ApiProblem| {
        render_message(problem.status(), "Nothing was changed", &format!("The form was not read: {problem}."))
    };
    Ok(FormParams::parse(&read_body(body, FORM_BYTES_MAX).await.map_err(refuse)?))
}

/// Redirects to the form for signing in; a form that was to change something is refused.
fn ask_to_sign_in(request: &PageRequest<'_>) -> Response<Body> {
    if request.form.is_none() {
        let next = request.head.uri.path_and_query().map_or("/", |next| next.as_str());
        return redirect_to(&format!("/sign-in?next={}", urlencoded::escape(next.as_bytes())));
    }
    let why =
        format!("Your session is over. Nothing was changed. Sign in, and look again. ({})", AccessDenied::NoToken);
    with_challenge(render_message(StatusCode::UNAUTHORIZED, "Nothing was changed", &why))
}

fn with_challenge(mut response: Response<Body>) -> Response<Body> {
    response.headers_mut().insert(WWW_AUTHENTICATE, CHALLENGE);
    response
}

fn render_message(status: StatusCode, title: &str, detail: &str) -> Response<Body> {
    render_page(status, &MessagePage { title, detail })
}

fn render_page(status: StatusCode, page: &impl Template) -> Response<Body> {
    let mut response = match page.render() {
        Ok(text) => Response::new(Body::whole(text)),
        Err(error) => {
            tracing::error!(%error, "a page could not be rendered");
            Response::new(Body::whole("This page could not be rendered.\n"))
        }
    };
    *response.status_mut() = status;
    with_common_fields(response, "text/html; charset=utf-8")
}

/// Redirects after a form: the next page is another request, which can be repeated without harm.
fn redirect_to(location: &str) -> Response<Body> {
    let mut response = with_common_fields(Response::new(Body::empty()), "text/plain; charset=utf-8");
    *response.status_mut() = StatusCode::SEE_OTHER;
    let location = HeaderValue::from_str(location).unwrap_or(HeaderValue::from_static("/"));
    response.headers_mut().insert(LOCATION, location);
    response
}

fn with_common_fields(mut response: Response<Body>, content_type: &'static str) -> Response<Body> {
    for (name, value) in [
        (CONTENT_TYPE, content_type),
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

    /// The templates escape all values, and none has a way around that.
    #[test]
    fn no_template_has_a_way_around_escaping_or_a_script() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/page");
        // A filter, a block without escaping, a script, a handler, a style of its own, an address that is a script.
        let ways = r#"\{\{[^}]*\||\{%-? *(filter|raw)|<script|[ \n]on[a-z]+ *=|[ \n]style *=|javascript:"#;
        let ways = regex::Regex::new(ways).unwrap();
        let mut templates = 0;
        for file in std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "html") {
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
    fn values_are_escaped() {
        let page = MessagePage { title: "<b>\"'&", detail: "<script>alert(1)</script>" }.render().unwrap();
        assert!(page.contains("&#60;b&#62;&#34;&#39;&#38;"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("<script"), "{page}");
    }

    #[test]
    fn each_path_is_one_page() {
        assert_eq!(PagePath::parse("/"), Some(PagePath::Overview));
        assert_eq!(PagePath::parse("/keys/ab"), Some(PagePath::Key("ab")));
        assert_eq!(PagePath::parse("/keys/ab/purge"), Some(PagePath::Change("ab", ActionKind::Purge)));
        for other in ["", "/keys/ab/delete", "/keys/ab/purge/", "/api/v1/keys", "/healthz", "//", "/sign-in/", "keys"] {
            assert_eq!(PagePath::parse(other), None, "{other}");
        }
    }
}
