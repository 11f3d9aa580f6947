//! Arm: the pages behind the `type` of our own errors, and the list of them.
//!
//! They are served on the clients' listener, below `/.oncegate/problems/`, as long as `problem_base` is that default: the link in a
//! problem document then leads to its explanation wherever the proxy is reached. All else below `/.oncegate/` is ours
//! too, and not there: no request for it reaches the service.

use std::fmt::Write;

use http::header::{ALLOW, CACHE_CONTROL, CONTENT_SECURITY_POLICY, CONTENT_TYPE, HeaderName, HeaderValue};
use http::{Method, Request, Response, StatusCode};

use super::refuse::Refusal;
use crate::body::Body;
use crate::domain::path::normal_form;
use texts::Page;

mod texts;

/// The default of `problem_base`.
const HOME: &str = "/.oncegate/problems/";
const OURS: &str = "/.oncegate/";

/// The answer to a request for one of our own pages; `None` if it asks for something else.
pub fn answer<B>(request: &Request<B>, problem_base: &str) -> Option<Response<Body>> {
    if problem_base != HOME {
        return None;
    }
    let path = normal_form(request.uri().path());
    if !path.starts_with(OURS) {
        return None;
    }
    let page = match path.strip_prefix(HOME) {
        Some("") => Some(list()),
        Some(slug) => Refusal::ALL.into_iter().find(|refusal| refusal.slug() == slug).map(page),
        None => None,
    };
    let is_read = matches!(*request.method(), Method::GET | Method::HEAD);
    Some(match page {
        Some(page) if is_read => respond(StatusCode::OK, page),
        Some(_) => {
            let body = html("Not allowed", "<h1>Not allowed</h1>\n<p>This page can be read, and nothing else.</p>\n");
            let mut response = respond(StatusCode::METHOD_NOT_ALLOWED, body);
            response.headers_mut().insert(ALLOW, HeaderValue::from_static("GET, HEAD"));
            response
        }
        None => {
            let text = format!("<h1>Nothing here</h1>\n<p>There is a <a href=\"{HOME}\">list of problems</a>.</p>\n");
            respond(StatusCode::NOT_FOUND, html("Nothing here", &text))
        }
    })
}

/// Says that nothing but this page's own style may be used, here or by whoever frames it.
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
    // The texts change with the program and not before; a 404 may be a page of the next version.
    let cache = if status == StatusCode::OK { "public, max-age=3600" } else { "no-store" };
    headers.insert(CACHE_CONTROL, HeaderValue::from_static(cache));
    response
}

fn list() -> String {
    let mut text = "<h1>Problems</h1>\n<p>What Oncegate, the proxy before this service, answers in its own name. \
                    None of these answers comes from the service, and none is ever stored.</p>\n<ul>\n"
        .to_owned();
    for refusal in Refusal::ALL {
        let (slug, title, status) = (refusal.slug(), inline(refusal.title()), refusal.status().as_u16());
        let item = format!("<li><a href=\"{HOME}{slug}\"><code>{slug}</code></a> {status} <span>{title}</span></li>\n");
        text.push_str(&item);
    }
    text.push_str("</ul>\n");
    html("Problems", &text)
}

fn page(refusal: Refusal) -> String {
    let slug = refusal.slug();
    let Page { means, executed, client, operator, .. } =
        texts::PAGES.iter().find(|page| page.slug == slug).expect("each slug has a page, as a test holds");
    let mut text = format!("<h1>{}</h1>\n", inline(refusal.title()));
    let (status, retry) = (refusal.status().as_u16(), refusal.next());
    writeln!(text, "<p><code>{slug}</code> · status {status} · <code>\"retry\": \"{retry}\"</code></p>")
        .expect("a String takes everything");
    for (heading, words) in [
        ("What it means", means),
        ("Was anything executed?", executed),
        ("What the client should do now", client),
        ("What the operator can look at", operator),
    ] {
        writeln!(text, "<h2>{heading}</h2>\n<p>{}</p>", inline(words)).expect("a String takes everything");
    }
    writeln!(text, "<p><a href=\"{HOME}\">All problems</a></p>").expect("a String takes everything");
    html(slug, &text)
}

fn html(title: &str, main: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · Oncegate</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{main}</main>\n</body>\n\
         </html>\n"
    )
}

/// Escapes what means something in HTML; what stands between backticks is code.
fn inline(text: &str) -> String {
    let mut html = String::with_capacity(text.len());
    let mut in_code = false;
    for letter in text.chars() {
        match letter {
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
/// SHA-256 in Base64, so that the policy allows this style and no other; a test holds it.
const STYLE_HASH: &str = "hzbboefRtuFPj+d35cuRNspBWyNWUjeZ5elbFpGRbJ8=";

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use http_body_util::BodyExt;
    use sha2::{Digest, Sha256};

    use super::*;

    fn ask(method: Method, path: &str) -> Option<Response<Body>> {
        answer(&Request::builder().method(method).uri(path).body(()).unwrap(), HOME)
    }

    async fn text(response: Response<Body>) -> String {
        String::from_utf8(response.into_body().collect().await.unwrap().to_bytes().to_vec()).unwrap()
    }

    #[test]
    fn each_slug_has_a_page_and_each_page_a_slug() {
        let slugs: BTreeSet<_> = Refusal::ALL.iter().map(|refusal| refusal.slug()).collect();
        let pages: BTreeSet<_> = texts::PAGES.iter().map(|page| page.slug).collect();
        assert_eq!(slugs, pages);
        assert_eq!(texts::PAGES.len(), pages.len());
        for Page { slug, means, executed, client, operator } in &texts::PAGES {
            for text in [means, executed, client, operator] {
                assert!(text.ends_with('.') && text.matches('`').count() % 2 == 0, "{slug}: {text}");
            }
        }
    }

    #[tokio::test]
    async fn each_page_says_what_its_problem_document_says() {
        let list = text(ask(Method::GET, HOME).unwrap()).await;
        for refusal in Refusal::ALL {
            let path = format!("{HOME}{}", refusal.slug());
            assert!(list.contains(&format!("href=\"{path}\"")), "{path}");
            let response = ask(Method::GET, &path).unwrap();
            assert_eq!(response.status(), StatusCode::OK);
            let page = text(response).await;
            for said in [refusal.title(), refusal.slug(), refusal.next(), refusal.status().as_str()] {
                assert!(page.contains(said), "{path}: {said}");
            }
            assert!(!page.contains("<script") && !page.contains('`'), "{path}");
        }
    }

    #[test]
    fn all_below_our_own_folder_is_ours_however_it_is_spelt() {
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
    fn with_another_base_nothing_is_ours() {
        let request = Request::get("/.oncegate/problems/in-flight").body(()).unwrap();
        assert!(answer(&request, "https://docs.example.com/errors#").is_none());
    }

    #[test]
    fn the_default_base_is_where_the_pages_are() {
        let key = crate::config::keys::TOP.iter().find(|key| key.name == "problem_base").unwrap();
        assert_eq!(key.default, Some(format!("{HOME:?}").as_str()));
    }

    #[test]
    fn the_policy_allows_the_style_and_nothing_else() {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let hash = Sha256::digest(STYLE);
        let base64: String = hash
            .chunks(3)
            .flat_map(|three| {
                let bits = three.iter().fold(0, |bits, byte| bits << 8 | u32::from(*byte)) << (8 * (3 - three.len()));
                let letter = move |place: usize| match place <= three.len() {
                    true => char::from(LETTERS[(bits >> (18 - 6 * place)) as usize & 63]),
                    false => '=',
                };
                (0..4).map(letter)
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
