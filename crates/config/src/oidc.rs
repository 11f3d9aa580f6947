//! Reads and checks `[admin.oidc]`: the issuer with which operators sign in to the page (OpenID Connect).

use std::sync::Arc;

use super::options::options;
use super::reader::Section;
use super::value_parsers::not_empty;
use oncegate_settings::{
    ClientSecret, OidcConfig, PageUrl, ParseResult, UpstreamTarget, parse_issuer_url, parse_service, require_tls,
};

const URL_EXAMPLE: &str = "write the address that browsers see, like `https://oncegate.ops.example`";

options! {
    struct OidcOptions {
        /// the issuer, as its tokens name it; its description is at `/.well-known/openid-configuration` below it
        issuer: Text = "" => String, parsed(parse_issuer);
        /// the client that is registered with the issuer for this page
        client_id: Text = "" => String, string();
        /// the client's secret; empty for a public client, which has PKCE alone
        client_secret: Concealed = "" => Option<ClientSecret>, optional(parse_secret);
        /// the page's own address as browsers see it; the redirect URI is `/sign-in/oidc/callback` below it
        url: Text = "" => Option<PageUrl>, optional(parse_page_url);
        /// the claim of the ID token with a person's groups or roles; dots lead into it, as in `realm_access.roles`
        roles_claim: Text = "groups" => Box<str>, parsed(parse_value);
        /// the values of that claim that may look
        read: Texts = [] => Vec<Box<str>>, values(parse_value);
        /// the values of that claim that may look and change
        operate: Texts = [] => Vec<Box<str>>, values(parse_value);
    }
}

/// Reads the table. `None` where it is absent or has a problem.
pub(super) fn read(section: &Section<'_>) -> Option<Arc<OidcConfig>> {
    let OidcOptions { issuer, client_id, client_secret, url, roles_claim, read, operate } = OidcOptions::read(section);
    let needed = [("issuer", issuer.is_empty()), ("client_id", client_id.is_empty()), ("url", url.is_none())];
    let others = [client_secret.is_some(), !read.is_empty(), !operate.is_empty()];
    let all = ["issuer", "client_id", "client_secret", "url", "read", "operate"];
    let is_absent = needed.iter().all(|(_, is_missing)| *is_missing) && !others.contains(&true);
    if is_absent || !section.is_right(&all) {
        return None;
    }
    for (name, _) in needed.iter().filter(|(_, is_missing)| *is_missing) {
        section.conflict(&all, format!("needs `{name}` beside it: the issuer, the client and the page's address"));
    }
    if read.is_empty() && operate.is_empty() {
        section.conflict(&all, "needs `operate` or `read` beside it: without a value in them nobody can sign in");
    }
    let url = url?;
    let (issuer, client_id) = (issuer.into(), client_id.into());
    Some(Arc::new(OidcConfig { issuer, client_id, client_secret, url, roles_claim, read, operate }))
}

fn parse_page_url(text: &str) -> ParseResult<PageUrl> {
    let (service, rest) = parse_service(text, URL_EXAMPLE)?;
    if !matches!(rest, "" | "/") {
        return Err(format!("has a path or a query, and the page is at `/`: {URL_EXAMPLE}"));
    }
    require_tls(&service)?;
    let (is_https, default_port) = match &service {
        UpstreamTarget::Https(..) => (true, ":443"),
        _ => (false, ":80"),
    };
    let host = service.host().to_ascii_lowercase();
    let host = host.strip_suffix(default_port).unwrap_or(&host);
    let authority = host.parse().map_err(|_| format!("has no host that can be parsed: {URL_EXAMPLE}"))?;
    Ok(PageUrl { is_https, authority })
}

pub(super) fn parse_issuer(text: &str) -> ParseResult<String> {
    if !text.is_empty() {
        let (_, target) = parse_issuer_url(text)?;
        // OpenID Connect Discovery section 2: no query and no fragment.
        if target.query().is_some() {
            return Err("has a query, which no issuer has: write it like `https://login.example/realms/ops`".into());
        }
    }
    Ok(text.to_owned())
}

fn parse_value(text: &str) -> ParseResult<Box<str>> {
    not_empty(text, "is empty: write a name")
}

fn parse_secret(text: &str) -> ParseResult<ClientSecret> {
    match text.bytes().any(|byte| byte.is_ascii_control()) {
        true => Err("has a line end or another control character: leave it out".into()),
        false => Ok(ClientSecret(text.into())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_address_is_spelled_as_browsers_spell_it() {
        for (text, shown) in [
            ("https://oncegate.ops.example", "https://oncegate.ops.example"),
            ("HTTPS://Oncegate.Ops.Example:443/", "https://oncegate.ops.example"),
            ("https://oncegate.ops.example:8443", "https://oncegate.ops.example:8443"),
            ("http://localhost:80", "http://localhost"),
            ("http://127.0.0.1:8081/", "http://127.0.0.1:8081"),
            ("http://[::1]:8081", "http://[::1]:8081"),
        ] {
            let url = parse_page_url(text).unwrap();
            assert_eq!(url.to_string(), shown, "{text}");
        }
        for wrong in [
            "http://oncegate.ops.example",
            "http://10.0.0.7:8081",
            "https://oncegate.ops.example/page",
            "https://oncegate.ops.example?x",
            "https://a@oncegate.ops.example",
            "oncegate.ops.example",
            "h2c://localhost",
        ] {
            assert!(parse_page_url(wrong).is_err(), "{wrong}");
        }
    }
}
