//! Reads and checks `cors`: the origins whose pages may read answers of Oncegate's own.

use http::uri::Authority;

use super::options::options;
use super::reader::{Located, Section};
use oncegate_settings::CorsPolicy;

options! {
    struct CorsOptions {
        /// origins as `https://shop.example`, or `*` for any
        origins: Texts = [] => Vec<Located<Box<str>>>, list(parse_origin);
        /// whether pages of these origins may send cookies
        credentials: Boolean = false => bool, boolean();
    }
}

pub(super) fn read(section: &Section<'_>) -> CorsPolicy {
    let CorsOptions { origins, credentials } = CorsOptions::read(section);
    let mut policy = CorsPolicy { credentials, ..CorsPolicy::default() };
    for origin in origins {
        match &*origin.value {
            "*" if credentials => {
                let message = "`*` cannot be combined with `credentials = true`: any page could then act for whoever has it \
                     open; list the origins";
                section.reader().problem(&origin.position.max(section.position("credentials")), message);
                return policy;
            }
            "*" => policy.is_any = true,
            _ => policy.origins.push(origin.value),
        }
    }
    // Nobody has decided that these origins get the credentials that another table gives to its own.
    let is_others = |own| Some(own) < section.first_layer("credentials");
    if credentials && !policy.is_empty() && section.first_layer("origins").is_some_and(is_others) {
        let written = section.position("credentials");
        let message = format!("needs `credentials` beside it: `{written} = true` was written for other origins");
        section.problem("origins", message);
    }
    policy
}

/// Parses an origin as browsers send it: scheme, host and port, unless the port is the scheme's own (RFC 6454 section
/// 6.2).
fn parse_origin(text: &str) -> Result<Box<str>, String> {
    if text == "*" {
        return Ok(text.into());
    }
    let text = text.to_ascii_lowercase();
    let is_scheme = |scheme: &str| {
        let rest = |byte: u8| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte);
        scheme.starts_with(|first: char| first.is_ascii_alphabetic()) && scheme.bytes().all(rest)
    };
    let Some((scheme, host)) = text.split_once("://").filter(|(scheme, _)| is_scheme(scheme)) else {
        return Err("is no origin: write `https://shop.example`, or `*` for any".into());
    };
    let default_port = match scheme {
        "http" => Some(80),
        "https" => Some(443),
        _ => None,
    };
    match host.parse::<Authority>() {
        Ok(authority) if authority.host().is_empty() || host.contains('@') || host.ends_with(':') => {
            Err("is no origin: write a scheme and a host, as in `https://shop.example`".into())
        }
        Ok(authority) if authority.port_u16().is_some() && authority.port_u16() == default_port => {
            Err("has the port that its scheme implies, which browsers leave out: leave it out too".into())
        }
        Ok(_) => Ok(text.into()),
        Err(_) => Err("has more than a scheme, a host and a port: write `https://shop.example`".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_origin_is_a_scheme_a_host_and_a_port() {
        for (text, origin) in [
            ("https://Shop.example", "https://shop.example"),
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000"),
            ("http://[::1]:3000", "http://[::1]:3000"),
            ("https://shop.example:80", "https://shop.example:80"),
            ("capacitor://localhost", "capacitor://localhost"),
            ("*", "*"),
        ] {
            assert_eq!(parse_origin(text).as_deref(), Ok(origin));
        }
        for (text, why) in [
            ("", "is no origin"),
            ("null", "is no origin"),
            ("shop.example", "is no origin"),
            ("https://*.shop.example/", "more than"),
            ("https://shop.example/", "more than"),
            ("https://shop.example?a", "more than"),
            ("https://", "more than"),
            ("https://user@shop.example", "is no origin"),
            ("https://shop.example:443", "leave it out"),
            ("http://shop.example:80", "leave it out"),
        ] {
            let message = parse_origin(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
        }
    }

    #[test]
    fn an_origin_is_compared_as_a_whole() {
        let policy = CorsPolicy { origins: vec!["https://shop.example".into()], ..CorsPolicy::default() };
        for (origin, allowed) in [
            ("https://shop.example", true),
            ("HTTPS://SHOP.EXAMPLE", true),
            ("http://shop.example", false),
            ("https://shop.example:8443", false),
            ("https://a.shop.example", false),
            ("https://shop.example.evil", false),
            ("null", false),
            ("", false),
        ] {
            assert_eq!(policy.allows(origin.as_bytes()), allowed, "{origin}");
        }
    }
}
