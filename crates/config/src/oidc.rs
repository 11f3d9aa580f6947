//! Reads and checks `[admin.oidc]`: the issuer with which operators sign in to the page (OpenID Connect).

use std::fmt;
use std::sync::Arc;

use http::uri::{Authority, PathAndQuery};

use super::options::options;
use super::problem::ParseResult;
use super::reader::Section;
use super::service_url;
use super::upstream::UpstreamTarget;

const ISSUER_EXAMPLE: &str = "write it like `https://login.example/realms/ops`";
const URL_EXAMPLE: &str = "write the address that browsers see, like `https://oncegate.ops.example`";

/// The issuer with which operators sign in, and what its claims allow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The `iss` of its tokens, and the beginning of the address of its description.
    pub issuer: Box<str>,
    /// The name under which this page is registered with the issuer.
    pub client_id: Box<str>,
    /// The secret of a confidential client; `None` for a public one.
    pub client_secret: Option<ClientSecret>,
    /// The page's own address.
    pub url: PageUrl,
    /// The claim whose values say what a person may do.
    pub roles_claim: Box<str>,
    /// The values that may look.
    pub read: Vec<Box<str>>,
    /// The values that may look and change.
    pub operate: Vec<Box<str>>,
}

/// A secret of a client of an issuer. Never printed.
#[derive(Clone, PartialEq, Eq)]
pub struct ClientSecret(Box<str>);

impl ClientSecret {
    /// The secret itself, for the issuer.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for ClientSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ClientSecret(..)")
    }
}

/// The address of the page as browsers see it, in their spelling: lower case, without a default port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PageUrl {
    /// Whether browsers speak TLS to it.
    pub is_https: bool,
    /// The host, and the port unless it is the scheme's default.
    pub authority: Authority,
}

impl PageUrl {
    fn parse(text: &str) -> ParseResult<Option<Self>> {
        if text.is_empty() {
            return Ok(None);
        }
        let (service, rest) = service_url::parse_service(text, URL_EXAMPLE)?;
        if !matches!(rest, "" | "/") {
            return Err(format!("has a path or a query, and the page is at `/`: {URL_EXAMPLE}"));
        }
        check_transport(&service)?;
        let (is_https, default_port) = match &service {
            UpstreamTarget::Https(..) => (true, ":443"),
            _ => (false, ":80"),
        };
        let host = service.host().to_ascii_lowercase();
        let host = host.strip_suffix(default_port).unwrap_or(&host);
        let authority = host.parse().map_err(|_| format!("has no host that can be parsed: {URL_EXAMPLE}"))?;
        Ok(Some(Self { is_https, authority }))
    }
}

/// The origin as browsers send it (RFC 6454 section 6.2).
impl fmt::Display for PageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}://{}", if self.is_https { "https" } else { "http" }, self.authority)
    }
}

options! {
    /// The options of `[admin.oidc]`.
    pub(super) struct OidcOptions {
        /// the issuer, as its tokens name it; its description is at `/.well-known/openid-configuration` below it
        issuer: Text = "" => String, parsed(parse_issuer);
        /// the client that is registered with the issuer for this page
        client_id: Text = "" => String, string();
        /// the client's secret; empty for a public client, which has PKCE alone
        client_secret: Text = "" => Option<ClientSecret>, optional_concealed(parse_secret);
        /// the page's own address as browsers see it; the redirect URI is `/sign-in/oidc/callback` below it
        url: Text = "" => Option<PageUrl>, parsed(PageUrl::parse);
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
    let is_absent = needed.iter().all(|(_, is_missing)| *is_missing) && !others.contains(&true);
    if is_absent || !section.is_right(&["issuer", "client_id", "client_secret", "url", "read", "operate"]) {
        return None;
    }
    let names = ["issuer", "client_id", "client_secret", "url", "read", "operate"];
    let last = names.map(|name| section.position(name)).into_iter().max().expect("there are six");
    for (name, _) in needed.iter().filter(|(_, is_missing)| *is_missing) {
        section
            .reader()
            .problem(&last, format!("needs `{name}` beside it: the issuer, the client and the page's address"));
    }
    if read.is_empty() && operate.is_empty() {
        section
            .reader()
            .problem(&last, "needs `operate` or `read` beside it: without a value in them nobody can sign in");
    }
    let url = url?;
    Some(Arc::new(OidcConfig {
        issuer: issuer.into(),
        client_id: client_id.into(),
        client_secret,
        url,
        roles_claim,
        read,
        operate,
    }))
}

/// Parses the address of an endpoint of an issuer: HTTPS, or HTTP on this machine.
///
/// # Errors
/// The problem, beginning with a verb.
pub fn parse_issuer_url(text: &str) -> ParseResult<(UpstreamTarget, PathAndQuery)> {
    let (service, target) = service_url::parse(text, ISSUER_EXAMPLE)?;
    check_transport(&service)?;
    Ok((service, target))
}

/// Requires TLS, or a loopback address: a person between could change an answer and sign in as anybody, or read a cookie and have
/// the session.
fn check_transport(service: &UpstreamTarget) -> ParseResult<()> {
    match matches!(service, UpstreamTarget::Https(..)) || service.is_loopback() {
        true => Ok(()),
        false => Err("has no TLS: write `https://`; `http://` is for this machine alone".into()),
    }
}

pub(super) fn parse_issuer(text: &str) -> ParseResult<String> {
    if !text.is_empty() {
        let (_, target) = parse_issuer_url(text)?;
        // OpenID Connect Discovery section 2: no query and no fragment.
        if target.query().is_some() {
            return Err(format!("has a query, which no issuer has: {ISSUER_EXAMPLE}"));
        }
    }
    Ok(text.to_owned())
}

fn parse_value(text: &str) -> ParseResult<Box<str>> {
    match text {
        "" => Err("is empty: write a name".into()),
        text => Ok(text.into()),
    }
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
            let url = PageUrl::parse(text).unwrap().unwrap();
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
            assert!(PageUrl::parse(wrong).is_err(), "{wrong}");
        }
    }
}
