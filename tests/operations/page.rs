//! The operators' page: over HTTP, byte by byte, and in a real browser.

mod access;
mod actions;
mod browser;
mod content;
mod four_eyes;
mod messages;
mod oidc;
mod oidc_provider;
mod reloads;
mod routes;
mod services;

use std::net::SocketAddr;

use harness::client::Client;
use harness::{Request, Response, World};

/// A page's text.
trait Html {
    fn html(&self) -> String;
}

impl Html for Response {
    fn html(&self) -> String {
        String::from_utf8(self.body.clone()).unwrap()
    }
}

/// A visitor of the page over HTTP, without a browser.
#[derive(Clone, Debug)]
struct Visitor {
    address: SocketAddr,
    cookie: Option<String>,
    /// The page's address as the browser sees it.
    origin: String,
}

impl Visitor {
    fn of(world: &World) -> Self {
        Self { address: world.proxy.admin, cookie: None, origin: format!("http://{}", world.proxy.admin) }
    }

    fn request(&self, method: &str, path: &str) -> Request {
        let host = self.origin.split("://").nth(1).unwrap();
        let request = Client { address: self.address }.request(method, path).host(host).anonymous();
        match &self.cookie {
            Some(cookie) => request.field("Cookie", cookie),
            None => request,
        }
    }

    async fn get(&self, path: &str) -> Response {
        self.request("GET", path).send().await
    }

    /// Returns a page, which must exist.
    async fn page(&self, path: &str) -> String {
        let response = self.get(path).await;
        assert_eq!(response.status, 200, "{path}: {}", response.html());
        response.html()
    }

    fn form(&self, path: &str, fields: &[(&str, &str)]) -> Request {
        let pair = |(name, value): &(&str, &str)| format!("{name}={}", escaped(value));
        let body = fields.iter().map(pair).collect::<Vec<_>>().join("&");
        let request = self.request("POST", path).field("Content-Type", "application/x-www-form-urlencoded");
        request.field("Origin", &self.origin).body(body)
    }

    /// Sends the form on the page at this path: its hidden fields, then these.
    async fn submit(&self, path: &str, typed: &[(&str, &str)]) -> Response {
        let page = self.get(path).await.html();
        let (start, action) = (page.rfind("<form method=\"post\"").unwrap(), path.split('?').next().unwrap());
        let hidden = hidden(&page[start..]);
        let fields: Vec<_> =
            hidden.iter().map(|(name, value)| (&**name, &**value)).chain(typed.iter().copied()).collect();
        self.form(action, &fields).send().await
    }

    /// Returns the CSRF token that this visitor's forms carry.
    async fn token(&self) -> String {
        let page = self.get("/").await.html();
        hidden(&page).into_iter().find(|(name, _)| name == "form").unwrap().1
    }
}

/// Returns the hidden fields, in order.
fn hidden(page: &str) -> Vec<(String, String)> {
    let value = |rest: &str, name: &str| {
        let start = rest.find(&format!("{name}=\"")).unwrap() + name.len() + 2;
        rest[start..start + rest[start..].find('"').unwrap()].to_owned()
    };
    page.split("<input type=\"hidden\"").skip(1).map(|rest| (value(rest, " name"), value(rest, " value"))).collect()
}

fn escaped(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}
