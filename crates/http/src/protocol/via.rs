//! The member of `Via` that names this instance, by which it notices a request that comes back to it.

use std::sync::LazyLock;

use http::header::VIA;
use http::{HeaderMap, HeaderValue, Version};

/// The instance's members of `Via`. The name is random: Oncegates in a row are legitimate, and only a request that this
/// very process has forwarded before runs in a loop.
static OWN: LazyLock<OwnMembers> = LazyLock::new(|| {
    let number = getrandom::u32().expect("the operating system has random numbers");
    OwnMembers::new(format!("oncegate-{number:08x}"))
});

struct OwnMembers {
    /// The name in the place of a host: RFC 9110, section 7.6.3, allows a pseudonym, which is a token.
    pseudonym: String,
    http_10: HeaderValue,
    http_11: HeaderValue,
    http_2: HeaderValue,
}

impl OwnMembers {
    fn new(pseudonym: String) -> Self {
        let member =
            |version| HeaderValue::try_from(format!("{version} {pseudonym}")).expect("a token is a field's value");
        Self { http_10: member("1.0"), http_11: member("1.1"), http_2: member("2.0"), pseudonym }
    }

    fn is_in(&self, headers: &HeaderMap) -> bool {
        let mut members = headers.get_all(VIA).iter().flat_map(|value| value.as_bytes().split(|byte| *byte == b','));
        // The protocol comes first, then the name, then perhaps a comment.
        members.any(|member| {
            let mut words = member.split(u8::is_ascii_whitespace).filter(|word| !word.is_empty());
            words.nth(1).is_some_and(|name| name.eq_ignore_ascii_case(self.pseudonym.as_bytes()))
        })
    }
}

pub fn own_member(version: Version) -> HeaderValue {
    match version {
        Version::HTTP_10 => OWN.http_10.clone(),
        Version::HTTP_2 => OWN.http_2.clone(),
        _ => OWN.http_11.clone(),
    }
}

/// Whether this instance has forwarded the request before.
pub fn has_been_here(headers: &HeaderMap) -> bool {
    headers.contains_key(VIA) && OWN.is_in(headers)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_member_with_the_own_name_is_the_own_one() {
        let own = OwnMembers::new("oncegate-00c0ffee".into());
        for (lines, is_own) in [
            (&[][..], false),
            (&["1.1 oncegate-00c0ffee"], true),
            (&["1.1 edge, HTTP/2.0  Oncegate-00C0FFEE (a comment)"], true),
            (&["1.1 edge", "1.0 a,1.1\toncegate-00c0ffee,1.1 b"], true),
            (&["1.1 oncegate-00c0ffe1, 1.1 oncegate"], false),
            (&["oncegate-00c0ffee, 1.1 oncegate-00c0ffee.example, 1.1 a oncegate-00c0ffee"], false),
            (&[", ,"], false),
        ] {
            let headers: HeaderMap = lines.iter().map(|line| (VIA, HeaderValue::from_static(line))).collect();
            assert_eq!(own.is_in(&headers), is_own, "{lines:?}");
        }
    }

    #[test]
    fn each_version_has_its_member_under_one_name() {
        for (version, begins) in [
            (Version::HTTP_10, "1.0 oncegate-"),
            (Version::HTTP_11, "1.1 oncegate-"),
            (Version::HTTP_2, "2.0 oncegate-"),
        ] {
            let member = own_member(version);
            assert!(member.to_str().expect("it is text").starts_with(begins), "{member:?}");
            assert!(has_been_here(&HeaderMap::from_iter([(VIA, member)])));
        }
    }
}
