//! A service's request to pay before it executes: x402, the HTTP scheme `Payment` of machine payments, and L402.

use http::header::WWW_AUTHENTICATE;
use http::{HeaderMap, HeaderName, StatusCode};

use oncegate_domain::response_policy::ServiceStatus;

/// The fields by which x402 says what has to be paid.
const REQUIREMENTS: [HeaderName; 2] =
    [HeaderName::from_static("payment-required"), HeaderName::from_static("x-payment-required")];

/// The authentication schemes whose credentials are a proof of payment.
const SCHEMES: [&str; 3] = ["payment", "l402", "lsat"];

/// Whether a response asks its client to send the same request again with a payment: nothing was executed. A 402
/// without such a challenge is a decision, as on a declined card.
pub fn is_payment_challenge(status: ServiceStatus, headers: &HeaderMap) -> bool {
    status == ServiceStatus::Http(StatusCode::PAYMENT_REQUIRED)
        && (REQUIREMENTS.iter().any(|name| headers.contains_key(name))
            || headers.get_all(WWW_AUTHENTICATE).iter().any(|value| names_scheme(value.as_bytes())))
}

/// Whether a list of challenges (RFC 9110 section 11.6.1) names one of the schemes. Reads malformed lists too: a
/// challenge that is overlooked would be replayed to the client that has paid.
fn names_scheme(challenges: &[u8]) -> bool {
    let (mut is_quoted, mut is_escaped) = (false, false);
    let mut is_separator = |byte: &u8| {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
        *byte == b',' && !is_quoted
    };
    challenges.split(|byte| is_separator(byte)).any(|item| {
        let scheme = item.trim_ascii().split(u8::is_ascii_whitespace).next().unwrap_or_default();
        SCHEMES.iter().any(|name| scheme.eq_ignore_ascii_case(name.as_bytes()))
    })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn only_a_402_that_says_how_to_pay_is_a_challenge() {
        for (status, fields, expected) in [
            (402, &[("payment-required", "eyJ4NDAyVmVyc2lvbiI6Mn0=")][..], true),
            (402, &[("x-payment-required", "e30=")], true),
            (402, &[("www-authenticate", "Payment id=\"a\", method=\"tempo\"")], true),
            (402, &[("www-authenticate", "payment")], true),
            (402, &[("www-authenticate", "L402 macaroon=\"a\", invoice=\"b\"")], true),
            (402, &[("www-authenticate", "Bearer realm=\"a\"")], false),
            (402, &[("www-authenticate", "Bearer realm=\"a, Payment\"")], false),
            (402, &[("www-authenticate", "Bearer realm=\"a \\\", Payment\"")], false),
            (402, &[("www-authenticate", "Bearer realm=\"a\" , Payment id=\"b\"")], true),
            (402, &[("www-authenticate", "Bearer"), ("www-authenticate", "Payment id=\"b\"")], true),
            (402, &[("www-authenticate", "Bearer Payment=\"b\", Payments")], false),
            (402, &[("payment-response", "e30=")], false),
            (402, &[], false),
            (401, &[("www-authenticate", "Payment id=\"a\"")], false),
            (200, &[("payment-required", "e30=")], false),
        ] {
            let mut headers = HeaderMap::new();
            for (name, value) in fields {
                headers.append(*name, HeaderValue::from_static(value));
            }
            let status = StatusCode::from_u16(status).unwrap().into();
            assert_eq!(is_payment_challenge(status, &headers), expected, "{status} {fields:?}");
        }
    }
}
