//! Where requests go.

use std::fmt;

use http::Uri;
use http::uri::Authority;

/// A service behind the proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Upstream(Uri);

impl Upstream {
    /// Reads `http://host` or `http://host:port`.
    ///
    /// # Errors
    /// What would be right, beginning with a verb. Never has the text itself, which may hold a password.
    pub fn parse(text: &str) -> Result<Self, String> {
        let right = "write `http://host` or `http://host:port`";
        let Some((scheme, rest)) = text.split_once("://") else {
            return Err(match text.split_once(':') {
                Some(("unix", _)) => "is not supported yet: only http:// works in this version".into(),
                _ => format!("does not say how the service is spoken to: {right}"),
            });
        };
        if !scheme.eq_ignore_ascii_case("http") {
            return Err(format!("is not supported yet: only http:// works in this version; {right}"));
        }
        let rest = rest.strip_suffix('/').unwrap_or(rest);
        if rest.contains(['/', '?', '#']) {
            return Err(format!("has a path or a query; the request's own is kept, so {right}"));
        }
        if rest.contains('@') {
            return Err(format!("has a user name or password, which would be sent nowhere: {right}"));
        }
        let authority: Authority = rest.parse().map_err(|_| format!("has no host that can be read: {right}"))?;
        // `host:`, `host:http` and `host:99999` all count as hosts without a port there.
        let after_host = rest.rsplit_once(']').map_or(rest, |(_, after)| after);
        match authority.port_u16() {
            None if !after_host.contains(':') => {}
            Some(port) if port > 0 => {}
            _ => return Err("has a port that is not a number from 1 to 65535".into()),
        }
        if authority.host().is_empty() {
            return Err(format!("has no host: {right}"));
        }
        let uri = Uri::builder().scheme("http").authority(authority).path_and_query("/").build();
        uri.map(Self).map_err(|_| format!("cannot be read: {right}"))
    }

    /// Scheme, host and, if one was written, port; the path is `/`.
    pub fn uri(&self) -> &Uri {
        &self.0
    }
}

/// As it would be written.
impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.to_string().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_with_or_without_a_port_is_an_upstream() {
        for (text, uri) in [
            ("http://127.0.0.1:3000", "http://127.0.0.1:3000/"),
            ("http://payments", "http://payments/"),
            ("HTTP://payments:8080/", "http://payments:8080/"),
            ("http://[::1]:3000", "http://[::1]:3000/"),
            ("http://[::1]", "http://[::1]/"),
        ] {
            assert_eq!(Upstream::parse(text).expect(text).uri(), uri);
        }
        assert_eq!(Upstream::parse("http://a:1/").map(|upstream| upstream.to_string()), Ok("http://a:1".into()));
    }

    #[test]
    fn what_does_not_work_yet_is_told_from_what_is_wrong() {
        for text in ["https://payments", "h2c://payments", "unix:/run/app.sock", "unix:///run/app.sock", "ftp://x"] {
            assert!(Upstream::parse(text).is_err_and(|message| message.contains("only http:// works")), "{text}");
        }
        for (text, why) in [
            ("", "does not say how"),
            ("127.0.0.1:3000", "does not say how"),
            ("http://", "no host"),
            ("http://:3000", "host"),
            ("http://a b", "no host that can be read"),
            ("http://a:", "port"),
            ("http://a:0", "port"),
            ("http://a:99999", "port"),
            ("http://a:http", "port"),
            ("http://a/v1", "path"),
            ("http://a//", "path"),
            ("http://a?x=1", "query"),
            ("http://a#x", "query"),
            ("http://user:hunter2@a", "password"),
        ] {
            let message = Upstream::parse(text).expect_err(text);
            assert!(message.contains(why), "{text}: {message}");
            assert!(!message.contains("hunter2"));
        }
    }
}
