//! HTTP authentication schemes whose credentials differ with each try of a request.
//!
//! A caller is known by a hash of `Authorization`. Credentials with a nonce, a time or a signature are another value
//! with each try, so a retry would be another caller and would be executed again. Hashing the part of them that stays
//! the same would be no way out: nobody has verified it, so a stranger who knows it could read the caller's replays.

/// How long the credentials of a scheme stay the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CredentialLife {
    Same,
    /// They are the same, unless a parameter says otherwise.
    SameUnlessSigned,
    Differs,
    /// They differ with each try, and name no caller.
    NamesNobody,
}

#[derive(Clone, Copy, Debug)]
pub struct SchemeRow {
    /// Their names, in any case; `*` at an end stands for any text.
    pub names: &'static [&'static str],
    pub life: CredentialLife,
    pub reason: &'static str,
}

const fn row(names: &'static [&'static str], life: CredentialLife, reason: &'static str) -> SchemeRow {
    SchemeRow { names, life, reason }
}

/// All schemes of IANA's "Hypertext Transfer Protocol (HTTP) Authentication Scheme Registry" (2025-02-18), and others
/// that are in use. The first row with a name counts. docs/callers.md has the same table.
pub const SCHEMES: [SchemeRow; 23] = {
    use CredentialLife::{Differs, NamesNobody, Same, SameUnlessSigned};
    [
        row(&["Basic"], Same, "a name and a password (RFC 7617)"),
        row(&["Bearer"], Same, "a token (RFC 6750), until it is refreshed"),
        row(&["ApiKey", "Api-Key", "JWT", "Key", "Token"], Same, "a key or a token"),
        row(&["L402", "LSAT"], Same, "a token, and the proof that it is paid for"),
        row(
            &["OAuth"],
            SameUnlessSigned,
            "OAuth 1 has a nonce, a time and a signature (RFC 5849 section 3.1); a token alone stays the same",
        ),
        row(&["Digest"], Differs, "a nonce, its count and a hash of both (RFC 7616 section 3.4)"),
        row(
            &["DPoP"],
            Differs,
            "the token stays the same, but only the proof beside it shows who has it (RFC 9449 section 7.1)",
        ),
        row(&["GNAP"], Differs, "as with DPoP: a token, and a proof beside it (RFC 9635 section 7.2)"),
        row(&["Concealed"], Differs, "a proof for one TLS connection (RFC 9729)"),
        row(&["HOBA"], Differs, "a nonce and a signature (RFC 7486 section 2)"),
        row(&["Mutual"], Differs, "the values of a key exchange, and a count (RFC 8120)"),
        row(&["Negotiate", "NTLM", "Kerberos"], Differs, "a message of one connection's handshake (RFC 4559)"),
        row(&["SCRAM-*"], Differs, "a message of a handshake, with nonces (RFC 7804)"),
        row(&["PrivateToken"], Differs, "a token that is spent once (RFC 9577)"),
        row(&["Payment"], NamesNobody, "the proof of one payment (draft-ryan-httpauth-payment)"),
        row(&["vapid", "WebPush"], Differs, "a token that libraries sign for each message (RFC 8292)"),
        row(
            &[
                "AWS",
                "AWS2",
                "AWS3*",
                "AWS4-*",
                "ACS3-*",
                "GOOG1",
                "GOOG4-*",
                "JDCLOUD2-*",
                "OBS",
                "OSS",
                "OSS4-*",
                "QBox",
                "Qiniu",
                "SDK-*",
                "TC3-*",
                "TOS4-*",
                "UCloud",
            ],
            Differs,
            "a cloud's signature over the request and its time",
        ),
        row(
            &["SharedKey", "SharedKeyLite", "SharedAccessSignature"],
            Differs,
            "Azure's signature over the request or an expiry",
        ),
        row(&["Hawk", "MAC", "EG1-*", "amx", "APIAuth"], Differs, "a nonce or a time, and a MAC over them"),
        row(&["Signature"], Differs, "a signature over the request (draft-cavage-http-signatures)"),
        row(&["Nostr"], Differs, "an event that is signed for each request (NIP-98)"),
        row(&["UsernameToken", "WSSE"], Differs, "the credentials are in another field, with a nonce"),
        row(
            &["*ECDSA*", "*Ed25519*", "*HMAC*", "*SHA1*", "*SHA256*", "*SHA512*", "*Signature*"],
            Differs,
            "the name says that the value is a signature",
        ),
    ]
};

/// The ends of names of parameters that betray credentials of an unknown scheme.
pub const BETRAYING_ENDS: [&str; 3] = ["nonce", "signature", "timestamp"];

/// Other such names.
pub const BETRAYING_NAMES: [&str; 7] = ["created", "date", "hmac", "mac", "nc", "sig", "ts"];

/// Beginnings of signed values that name no scheme: those of Baidu's cloud, and of Azure Cosmos DB.
const SIGNED_WITHOUT_SCHEME: [&str; 2] = ["bce-auth-v", "type%3dmaster%26"];

/// The longest name of a scheme that is shown.
const SHOWN_MAX: usize = 40;

/// Credentials that differ with each try.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ChangingCredentials {
    Scheme(String),
    /// A parameter with this name says so. The scheme is `None` where the value has none.
    Parameter(Option<String>, String),
    /// They are the signature of a cloud that names no scheme.
    WithoutScheme,
}

/// Finds out whether the value of an `Authorization` field (RFC 9110 section 11.4) differs with each try.
pub fn find_changing(value: &[u8]) -> Option<ChangingCredentials> {
    let text = String::from_utf8_lossy(value.trim_ascii());
    let scheme_end = text.find([' ', '\t']);
    let scheme = scheme_end.map(|end| &text[..end]).filter(|name| is_token(name));
    let Some(scheme) = scheme else {
        if SIGNED_WITHOUT_SCHEME.iter().any(|beginning| starts_with(&text, beginning)) {
            return Some(ChangingCredentials::WithoutScheme);
        }
        return find_betraying_parameter(&text).map(|name| ChangingCredentials::Parameter(None, name));
    };
    let shown = || scheme.chars().take(SHOWN_MAX).collect();
    match find_row(scheme).map(|row| row.life) {
        Some(CredentialLife::Differs | CredentialLife::NamesNobody) => Some(ChangingCredentials::Scheme(shown())),
        Some(CredentialLife::Same | CredentialLife::SameUnlessSigned) | None => {
            let parameter = find_betraying_parameter(&text[scheme.len()..])?;
            Some(ChangingCredentials::Parameter(Some(shown()), parameter))
        }
    }
}

/// Whether the value of an `Authorization` field is a proof of payment, which names no caller.
pub fn is_payment(value: &[u8]) -> bool {
    let scheme = value.trim_ascii().split(u8::is_ascii_whitespace).next().and_then(|name| str::from_utf8(name).ok());
    scheme.and_then(find_row).is_some_and(|row| row.life == CredentialLife::NamesNobody)
}

pub fn find_row(scheme: &str) -> Option<&'static SchemeRow> {
    SCHEMES.iter().find(|row| row.names.iter().any(|name| matches_name(name, scheme)))
}

/// Whether a value is the name of a scheme and nothing else, as a client sends it whose token is empty.
pub fn is_lone_scheme(value: &[u8]) -> bool {
    let is_name = |name: &&str| value.eq_ignore_ascii_case(name.as_bytes());
    SCHEMES.iter().flat_map(|row| row.names).any(is_name)
}

fn matches_name(pattern: &str, name: &str) -> bool {
    match (pattern.strip_prefix('*'), pattern.strip_suffix('*')) {
        (Some(rest), _) => {
            let part = rest.trim_end_matches('*').as_bytes();
            name.as_bytes().windows(part.len()).any(|window| window.eq_ignore_ascii_case(part))
        }
        (None, Some(beginning)) => starts_with(name, beginning),
        (None, None) => name.eq_ignore_ascii_case(pattern),
    }
}

fn starts_with(text: &str, beginning: &str) -> bool {
    let found = text.as_bytes().get(..beginning.len());
    found.is_some_and(|found| found.eq_ignore_ascii_case(beginning.as_bytes()))
}

/// The first parameter whose name betrays a value that differs with each try. Schemes have many separators.
fn find_betraying_parameter(text: &str) -> Option<String> {
    if !text.contains('=') {
        return None;
    }
    let parameters = text.split([',', ';', '&', ' ', '\t']);
    let names = parameters.filter_map(|parameter| {
        let (name, value) = parameter.split_once('=')?;
        // A token may end with `=`, as the padding of base64.
        (is_token(name) && !value.is_empty() && !value.starts_with('=')).then_some(name)
    });
    names.map(str::to_owned).find(|name| is_betraying(name))
}

/// Whether the value of a parameter, a field or the like with this name differs with each try.
pub fn is_betraying(name: &str) -> bool {
    let lower = name.to_ascii_lowercase();
    BETRAYING_NAMES.contains(&&*lower) || BETRAYING_ENDS.iter().any(|end| lower.ends_with(end))
}

/// Whether a text is a token (RFC 9110 section 5.6.2).
pub fn is_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each scheme with credentials as they are sent. `None`: they are the same with each try.
    #[test]
    fn credentials_that_differ_with_each_try_are_recognized() {
        let scheme = |name: &str| Some(ChangingCredentials::Scheme(name.into()));
        let parameter =
            |scheme: &str, name: &str| Some(ChangingCredentials::Parameter(Some(scheme.into()), name.into()));
        let bare = |name: &str| Some(ChangingCredentials::Parameter(None, name.into()));
        for (value, expected) in [
            ("Basic dXNlcjpwYXNzd29yZA==", None),
            ("Bearer eyJhbGciOiJub25lIn0.eyJzdWIiOiJhIn0.", None),
            ("bearer abc=", None),
            ("Token 9944b09199c62bcf9418ad846dd0e4bbdfc6ee4b", None),
            ("Token token=\"abc\", nonce=\"def\"", parameter("Token", "nonce")),
            ("ApiKey VnVhQ2ZHY0JDZGJrU==", None),
            ("L402 AGIAJEemVQUTEyNCR0exk7ek90Cg==:1234abcd", None),
            ("GoogleLogin auth=abc", None),
            ("MediaBrowser Client=\"tv\", DeviceId=\"1\", Token=\"abc\"", None),
            ("PVEAPIToken=user@pam!id=aaaaaaaa-bbbb", None),
            ("sk_live_4eC39HqLyjWDarjtT1zdp7dc", None),
            ("c2VjcmV0L3NoYTI1NmhtYWM=", None),
            ("OAuth ya29.token", None),
            ("OAuth realm=\"a\", oauth_nonce=\"k\", oauth_signature=\"s\"", parameter("OAuth", "oauth_nonce")),
            ("OAuth oauth_token=\"a\",oauth_signature_method=\"x\",oauth_timestamp=\"1\"", {
                parameter("OAuth", "oauth_timestamp")
            }),
            ("Digest username=\"a\", nc=00000001, response=\"x\"", scheme("Digest")),
            ("dpop eyJ.a.b", scheme("dpop")),
            ("GNAP OS9M2PMHKUR64TB8N6BW7OZB8CDFONP219RP1L", scheme("GNAP")),
            ("Concealed k=\"a\", p=\"b\"", scheme("Concealed")),
            ("HOBA result=\"kid.chal.nonce.sig\"", scheme("HOBA")),
            ("Mutual sid=abc, nc=1, vkc=x", scheme("Mutual")),
            ("Negotiate YIIJvwYGKwYBBQUCoIIJszCC", scheme("Negotiate")),
            ("NTLM TlRMTVNTUAADAAAA", scheme("NTLM")),
            ("SCRAM-SHA-256 sid=AAAA, data=biws", scheme("SCRAM-SHA-256")),
            ("SCRAM-SHA-512 sid=AAAA", scheme("SCRAM-SHA-512")),
            ("PrivateToken token=\"abc\"", scheme("PrivateToken")),
            ("Payment eyJpZCI6IjEifQ", scheme("Payment")),
            ("vapid t=eyJ.a.b, k=BA1", scheme("vapid")),
            ("WebPush eyJ.a.b", scheme("WebPush")),
            ("AWS AKIAIOSFODNN7EXAMPLE:frJIUN8DYpKDtOLCwo//yllqDzg=", scheme("AWS")),
            ("AWS4-HMAC-SHA256 Credential=A/20150830/us-east-1, Signature=5d67", scheme("AWS4-HMAC-SHA256")),
            ("AWS4-ECDSA-P256-SHA256 Credential=A, Signature=5d67", scheme("AWS4-ECDSA-P256-SHA256")),
            ("GOOG4-RSA-SHA256 Credential=a, Signature=b", scheme("GOOG4-RSA-SHA256")),
            ("ACS3-RSA-SHA256 Credential=a", scheme("ACS3-RSA-SHA256")),
            ("TC3-HMAC-SHA256 Credential=a", scheme("TC3-HMAC-SHA256")),
            ("OSS LTAI:signature", scheme("OSS")),
            ("SharedKey account:ctzMq410TV3wS7upTBcunJTDLEJwMAZuFPfr0mrrA08=", scheme("SharedKey")),
            ("SharedAccessSignature sr=a&sig=b&se=1&skn=c", scheme("SharedAccessSignature")),
            ("bce-auth-v1/ak/2015-04-27T08:23:49Z/1800/host/sig", Some(ChangingCredentials::WithoutScheme)),
            ("type%3Dmaster%26ver%3D1.0%26sig%3Dabc", Some(ChangingCredentials::WithoutScheme)),
            ("type=master&ver=1.0&sig=abc", bare("sig")),
            ("Hawk id=\"a\", ts=\"1\", nonce=\"n\", mac=\"m\"", scheme("Hawk")),
            ("MAC id=\"a\", nonce=\"n\", mac=\"m\"", scheme("MAC")),
            ("EG1-HMAC-SHA256 client_token=a;timestamp=b;nonce=c;signature=d", scheme("EG1-HMAC-SHA256")),
            ("Signature keyId=\"a\",headers=\"date\",signature=\"s\"", scheme("Signature")),
            ("hmac username=\"a\", algorithm=\"hmac-sha256\", signature=\"s\"", scheme("hmac")),
            ("Nostr eyJpZCI6", scheme("Nostr")),
            ("WSSE profile=\"UsernameToken\"", scheme("WSSE")),
            ("Acme-HMAC-SHA512 key:c2ln", scheme("Acme-HMAC-SHA512")),
            ("Acme key=\"a\", timestamp=\"1\"", parameter("Acme", "timestamp")),
            ("Acme key=\"a\", request-nonce=\"1\"", parameter("Acme", "request-nonce")),
            ("Acme key=\"a\"", None),
            ("keyId=\"a\",signature=\"s\"", bare("signature")),
            ("keyId=\"a\", signature=\"s\"", bare("signature")),
            ("", None),
        ] {
            assert_eq!(find_changing(value.as_bytes()), expected, "{value}");
        }
    }

    #[test]
    fn a_payment_is_told_from_credentials_of_a_caller() {
        for (value, expected) in [
            (&b"Payment eyJpZCI6IjEifQ"[..], true),
            (b" payment\tx", true),
            (b"PAYMENT", true),
            (b"Payments x", false),
            (b"Bearer Payment", false),
            (b"Digest nonce=\"a\"", false),
            (b"", false),
        ] {
            assert_eq!(is_payment(value), expected, "{value:?}");
        }
    }

    #[test]
    fn a_name_alone_is_no_credentials() {
        for name in ["Bearer", "basic", "DIGEST", "Token", "Negotiate"] {
            assert!(is_lone_scheme(name.as_bytes()), "{name}");
        }
        assert!(!is_lone_scheme(b"sk_live_1") && !is_lone_scheme(b"SCRAM-SHA-1"));
    }

    #[test]
    fn no_scheme_is_in_two_rows() {
        let names: Vec<_> = SCHEMES.iter().flat_map(|row| row.names).map(|name| name.to_ascii_lowercase()).collect();
        for (index, name) in names.iter().enumerate() {
            assert!(!names[..index].contains(name), "{name}");
        }
    }
}
