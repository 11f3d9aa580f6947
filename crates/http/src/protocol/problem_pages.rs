//! The pages behind the `type` of problem documents, and their list.
//!
//! They are served on the clients' listener below `/.oncegate/problems/` while `problem_base` has that default, so that
//! the link in a problem document works wherever the proxy is reached. Every other path below `/.oncegate/` is answered
//! with 404: no request for it reaches the service.

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Response, StatusCode};

use super::refusal::Refusal;
use super::refusal::rows::RefusalRow;
use crate::body::Body;

/// The default of `problem_base`.
const HOME: &str = "/.oncegate/problems/";
const OURS: &str = "/.oncegate/";

/// Answers a request for one of our own pages; `None` for another path. The path is in its normal form.
pub fn answer_request(method: &Method, path: &str, problem_base: &str) -> Option<Response<Body>> {
    if problem_base != HOME || !path.starts_with(OURS) {
        return None;
    }
    let page = match path.strip_prefix(HOME) {
        Some("") => Some(list_page()),
        Some(slug) => Refusal::ALL.into_iter().find(|refusal| refusal.slug() == slug).map(problem_page),
        None => None,
    };
    let is_read = matches!(*method, Method::GET | Method::HEAD);
    Some(match page {
        Some(page) if is_read => respond(StatusCode::OK, page),
        Some(_) => {
            let body = html_page(
                "Not allowed",
                "<h1>Not allowed</h1>\n<p>This page can only be read, with GET or HEAD.</p>\n",
            );
            let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, body);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        None => {
            let text = format!("<h1>Nothing here</h1>\n<p>There is a <a href=\"{HOME}\">list of problems</a>.</p>\n");
            respond(StatusCode::NOT_FOUND, html_page("Nothing here", &text))
        }
    })
}

/// The content security policy: it allows this page's own style and nothing else, and no framing.
const POLICY: &str =
    "default-src 'none'; style-src 'sha256-STYLE'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

fn respond(status: StatusCode, page: String) -> Response<Body> {
    let mut response = Response::new(Body::whole(page));
    *response.status_mut() = status;
    let policy = POLICY.replace("STYLE", STYLE_HASH);
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8"));
    headers.insert(CONTENT_SECURITY_POLICY, HeaderValue::from_str(&policy).expect("the policy is visible ASCII"));
    headers.insert(HeaderName::from_static("referrer-policy"), HeaderValue::from_static("no-referrer"));
    headers.insert(HeaderName::from_static("x-content-type-options"), HeaderValue::from_static("nosniff"));
    // The texts change only with the program; a path with 404 may become a page in the next version.
    let cache = if status == StatusCode::OK { "public, max-age=3600" } else { "no-store" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

fn list_page() -> String {
    let mut text = "<h1>Problems</h1>\n<p>The error answers of Oncegate, the proxy in front of this service. \
                    None of them comes from the service, and none is ever stored.</p>\n<ul>\n"
        .to_owned();
    for refusal in Refusal::ALL {
        let (slug, title, status) = (refusal.slug(), to_html(refusal.row().title), refusal.status().as_u16());
        let item = format!("<li><a href=\"{HOME}{slug}\"><code>{slug}</code></a> {status} <span>{title}</span></li>\n");
        text.push_str(&item);
    }
    text.push_str("</ul>\n");
    html_page("Problems", &text)
}

fn problem_page(refusal: Refusal) -> String {
    let RefusalRow { slug, status, title, means, executed, client, operator, .. } = refusal.row();
    let mut text = format!("<h1>{}</h1>\n", to_html(title));
    let retry = refusal.client_action();
    text += &format!("<p><code>{slug}</code> · status {status} · <code>\"retry\": \"{retry}\"</code></p>\n");
    for (heading, paragraph) in [
        ("What it means", means),
        ("Was anything executed?", executed),
        ("What the client should do now", client),
        ("What the operator can look at", operator),
    ] {
        text += &format!("<h2>{heading}</h2>\n<p>{}</p>\n", to_html(paragraph));
    }
    text += &format!("<p><a href=\"{HOME}\">All problems</a></p>\n");
    html_page(slug, &text)
}

fn html_page(title: &str, main: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · Oncegate</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{main}</main>\n</body>\n\
         </html>\n"
    )
}

/// Converts a text to HTML: escapes special characters, and turns backticks into `<code>` elements.
fn to_html(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    let mut in_code = false;
    for character in text.chars() {
        match character {
            '&' => html.push_str("&amp;"),
            '<' => html.push_str("&lt;"),
            '>' => html.push_str("&gt;"),
            '`' => {
                in_code = !in_code;
                html.push_str(if in_code { "<code>" } else { "</code>" });
            }
            other => html.push(other),
        }
    }
    html
}

const STYLE: &str = include_str!("problem_pages/style.css");
/// The SHA-256 of [`STYLE`] in Base64, for the policy; a test checks it.
const STYLE_HASH: &str = "hzbboefRtuFPj+d35cuRNspBWyNWUjeZ5elbFpGRbJ8=";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http::Uri;
    use http_body_util::BodyExt;
    use sha2::{Digest, Sha256};

    use super::*;
    use oncegate_domain::normal_path::normal_form;

    fn ask(method: Method, path: &str) -> Option<Response<Body>> {
        let uri: Uri = path.parse().unwrap();
        answer_request(&method, &normal_form(uri.path()), HOME)
    }

    async fn text(response: Response<Body>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_slug_is_of_one_refusal_and_each_page_has_whole_sentences() {
        let slugs: BTreeSet<_> = Refusal::ALL.iter().map(Refusal::slug).collect();
        assert_eq!(slugs.len(), Refusal::ALL.len());
        for refusal in &Refusal::ALL {
            let RefusalRow { slug, means, executed, client, operator, .. } = refusal.row();
            for text in [means, executed, client, operator] {
                assert!(text.ends_with('.') && text.matches('`').count() % 2 == 0, "{slug}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn each_page_agrees_with_its_problem_document() {
        let list = text(ask(Method::GET, HOME).unwrap()).await;
        for refusal in Refusal::ALL {
            let path = format!("{HOME}{}", refusal.slug());
            assert!(list.contains(&format!("href=\"{path}\"")), "{path}");
            let response = ask(Method::GET, &path).unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let page = text(response).await;
            for value in [refusal.row().title, refusal.slug(), refusal.client_action(), refusal.status().as_str()] {
                assert!(page.contains(value), "{path}: {value}");
            }
            assert!(!page.contains("<script") && !page.contains('`'), "{path}");
        }
    }

    #[test]
    fn every_path_below_our_folder_is_ours_however_it_is_spelled() {
        for (method, path, status) in [
            (Method::GET, "/.oncegate/problems/in-flight", 200),
            (Method::HEAD, "/.oncegate/problems/in-flight", 200),
            (Method::GET, "/.oncegate/problems/in-flight?x=1", 200),
            (Method::GET, "/%2eoncegate/problems/in%2Dflight", 200),
            (Method::GET, "/v1/../.oncegate/problems/", 200),
            (Method::POST, "/.oncegate/problems/in-flight", 405),
            (Method::GET, "/.oncegate/problems/none", 404),
            (Method::POST, "/.oncegate/problems/none", 404),
            (Method::GET, "/.oncegate/problems", 404),
            (Method::GET, "/.oncegate/", 404),
            (Method::POST, "/x/%2E%2E/.oncegate/x", 404),
        ] {
            let response = ask(method.clone(), path).unwrap_or_else(|| panic!("{method} {path} is forwarded"));
            assert_eq!(response.status().as_u16(), status, "{method} {path}");
        }
        for path in ["/", "/v1/.oncegate/problems/", "/.oncegates/x", "/.oncegate/../v1"] {
            assert!(ask(Method::GET, path).is_none(), "{path}");
        }
    }

    #[test]
    fn with_another_base_no_path_is_ours() {
        let path = "/.oncegate/problems/in-flight";
        assert!(answer_request(&Method::GET, path, "https://docs.example.com/errors#").is_none());
    }

    #[test]
    fn the_default_base_is_where_the_pages_are() {
        let key = oncegate_config::TOP.iter().find(|key| key.name == "problem_base").unwrap();
        assert_eq!(key.default, Some(format!("{HOME:?}").as_str()));
    }

    #[test]
    fn the_policy_allows_the_style_and_nothing_else() {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let hash = Sha256::digest(STYLE);
        let base64: String = hash
            .chunks(3)
            .flat_map(|three| {
                let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
                let digit = move |place: usize| match place <= three.len() {
                    true => char::from(DIGITS[(bits >> (18 - 6 * place)) as usize & 63]),
                    false => '=',
                };
                (0..4).map(digit)
            })
            .collect();
        assert_eq!(STYLE_HASH, base64);
        let response = ask(Method::GET, HOME).unwrap();
        let policy = response.headers()[CONTENT_SECURITY_POLICY].to_str().unwrap();
        assert!(
            policy.starts_with("default-src 'none'; style-src 'sha256-") && policy.contains(STYLE_HASH),
            "{policy}"
        );
    }
}
