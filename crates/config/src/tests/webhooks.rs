//! Routes of webhooks: senders, and their signatures by the vectors of their own documents and libraries.

use std::collections::HashMap;
use std::time::{Duration, SystemTime};

use http::{HeaderMap, HeaderName, Method};
use serde::Deserialize;

use super::*;
use oncegate_trust::webhook::{SignatureFault, SignedRequest};

/// A delivery with a valid signature.
#[derive(Clone, Deserialize)]
struct SenderVector {
    sender: String,
    source: String,
    secret: String,
    #[serde(default)]
    url: String,
    headers: HashMap<String, String>,
    body: String,
    /// The time of its signature, in seconds since 1970.
    now: Option<u64>,
}

impl SenderVector {
    fn all() -> Vec<Self> {
        serde_json::from_str(include_str!("sender_vectors.json")).unwrap()
    }

    /// The scheme and the host of its URL, and the rest.
    fn url(&self) -> (&str, &str) {
        let host = self.url.find("://").map_or(0, |at| at + 3);
        self.url.split_at(host + self.url[host..].find('/').unwrap_or(0))
    }

    /// The verdict of a route with these secrets, so many seconds after the signature.
    fn verdict(&self, secrets: &[&str], body: &str, age: i64) -> Result<(), SignatureFault> {
        let (url, path_and_query) = self.url();
        let mut headers = HeaderMap::new();
        for (name, value) in &self.headers {
            headers.append(HeaderName::try_from(name.as_str()).unwrap(), value.parse().unwrap());
        }
        let lines = format!("sender = '{}'\nsignature = {{ secrets = {secrets:?}, url = '{url}' }}", self.sender);
        let config =
            config(&format!("secret = 'a secret of some length'\n{}", route(&format!("kind = 'webhook'\n{lines}"))));
        let rule = config.live.routes[0].signature.clone().unwrap();
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(self.now.unwrap_or(1).saturating_add_signed(age));
        let request = SignedRequest { method: &Method::POST, path_and_query, headers: &headers, body: body.as_bytes() };
        rule.verify(request, now)
    }
}

#[test]
fn each_senders_signature_is_verified_by_its_own_vectors() {
    for vector in SenderVector::all() {
        let SenderVector { sender, source, secret, body, .. } = &vector;
        let of_sender = |other: &&SenderVector| other.sender == *sender && other.secret != *secret;
        let others = SenderVector::all();
        let wrong = match &**sender {
            "adyen" => "00112233",
            "sendgrid" => &others.iter().find(of_sender).unwrap().secret,
            _ => "d2hzZWNfYW5vdGhlcg",
        };
        let stale = if vector.now.is_some() { Err(SignatureFault::Stale) } else { Ok(()) };
        assert_eq!(vector.verdict(&[secret], body, 0), Ok(()), "{sender}: {source}");
        assert_eq!(vector.verdict(&[secret], body, 299), Ok(()), "{sender}");
        assert_eq!(vector.verdict(&[wrong, secret], body, -299), Ok(()), "{sender}, during a rotation");
        for age in [301, -301] {
            assert_eq!(vector.verdict(&[secret], body, age), stale, "{sender}, another time");
        }
        assert_eq!(vector.verdict(&[wrong], body, 0), Err(SignatureFault::Wrong), "{sender}, another secret");
        let other = body.replacen("Reference\":\"", "Reference\":\"x", 1) + " ";
        let fault = if body.contains("\"property\"") { SignatureFault::Missing } else { SignatureFault::Wrong };
        assert_eq!(vector.verdict(&[secret], &other, 0), Err(fault), "{sender}, another body");
        for missing in vector.headers.keys().filter(|name| name.to_ascii_lowercase().contains("signature")) {
            let headers = vector.headers.iter().filter(|(name, _)| *name != missing);
            let headers = headers.map(|(name, value)| (name.clone(), value.clone())).collect();
            let unsigned = SenderVector { headers, ..vector.clone() };
            assert_eq!(unsigned.verdict(&[secret], body, 0), Err(SignatureFault::Missing), "{sender}, no signature");
        }
    }
}

#[test]
fn a_signed_text_of_an_item_that_is_divided_elsewhere_is_not_signed() {
    let of_adyen = |vector: &SenderVector| vector.body.contains("\":slashes are fun\"");
    let vector = SenderVector::all().into_iter().find(of_adyen).unwrap();
    assert_eq!(vector.verdict(&[&vector.secret], &vector.body, 0), Ok(()), "a `:` in the merchant's own reference");
    let mut body = vector.body;
    for (from, to) in [
        ("\"M8NB66SBZSGLNK82\"", "\"M8NB66SBZSGLNK82:\",\"originalReference\":\"AntoniStroinski\""),
        ("\"merchantAccountCode\":\"AntoniStroinski\"", "\"merchantAccountCode\":\"\""),
        ("\":slashes are fun\"", "\"slashes are fun\""),
    ] {
        assert!(body.contains(from), "{from}");
        body = body.replace(from, to);
    }
    let vector = SenderVector { body: body.clone(), ..vector };
    assert_eq!(vector.verdict(&[&vector.secret], &body, 0), Err(SignatureFault::Missing), "another id");
}

#[test]
fn every_sender_has_a_row_and_a_vector_or_a_token() {
    for sender in WebhookSender::VALUES.iter().filter(|sender| **sender != WebhookSender::None) {
        assert!(webhook::preset(*sender).is_some(), "{sender:?} has no row");
        let is_tested = SenderVector::all().iter().any(|vector| vector.sender == sender.word());
        assert!(is_tested || *sender == WebhookSender::Pubsub, "{sender:?} has no vector");
    }
}

#[test]
fn a_webhook_needs_its_sender_and_what_the_sender_signs_with() {
    for (lines, problem) in [
        ("kind = 'webhook'", "routes[0].sender: is missing: whose webhooks are they?"),
        ("sender = 'github'", "sender: counts only with `kind = \"webhook\"`"),
        ("kind = 'webhook'\nsender = 'github'", "signature.secrets: is missing: without it, anybody"),
        ("kind = 'webhook'\nsender = 'github'\nsignature = { secrets = [''] }", "signature.secrets[0]: is empty"),
        ("kind = 'webhook'\nsender = 'svix'\nsignature = { secrets = ['whsec_:'] }", "is no secret of this sender"),
        ("kind = 'webhook'\nsender = 'twilio'\nsignature = { secrets = ['s'] }", "signature.url: is missing"),
        (
            "kind = 'webhook'\nsender = 'twilio'\nsignature = { secrets = ['s'], url = 'a.b' }",
            "is not the begin of a URL",
        ),
        ("kind = 'webhook'\nsender = 'slack'\nsignature = { secrets = ['s'] }", "delivery: needs a `secret`"),
        (
            "kind = 'webhook'\nsender = 'stripe'\nsignature = { secrets = ['s'], tolerance = '300d' }",
            "tolerance: is longer than the ",
        ),
        ("kind = 'webhook'\nsender = 'pubsub'", "`jwt:email` needs the issuer"),
        (
            "kind = 'webhook'\nsender = 'pubsub'\n[jwt]\nissuer = 'https://a'\naudience = 'b'",
            "needs `email=…` in `jwt.require`",
        ),
        (
            "delivery = 'async'\nsplit = 'json:/a/*'",
            "key.from: is not in an element of `split`: write it like `json:/a/0/id`",
        ),
        (
            "delivery = 'async'\nsplit = 'json:/*'\nkey.from = 'json:/0/id'\ndialect = 'graphql'",
            "has batches of its own",
        ),
        ("split = 'json:/*'\nkey.from = 'json:/0/id'", "`split` needs `delivery = \"async\"`"),
        ("replay.until = '2d'", "`replay.until` (2d) must be shorter than `ttl` (1d)"),
        ("replay.until = '1h'\nafter_ttl = 'refuse'", "refuses what `replay.until` executes anew"),
        ("replay.until = '1h'\ndialect = 'repeatability'", "refuses late retries by their dates"),
        ("vendor = 'stripe'\ndelivery = 'async'", "a route to a vendor answers at once"),
        ("vendor = 'square'\nkey.from = 'json:/order'", "must have `json:/idempotency_key`"),
        ("on_unknown = 'vendor'\nvendor = 'openai'", "needs a `vendor` that promises"),
        ("set_headers = { Connection = 'close' }", "is a field of the connection"),
        ("set_headers = { Idempotency-Key = 'k' }", "sets a field of the key"),
        ("vendor = 'paypal'\nset_headers = { PayPal-Request-Id = 'k' }", "sets a field of the key"),
        ("accepted = 300", "accepted: must be 200 to 203"),
        ("index = ['json:/a/*']", "has a `*`"),
        ("index = ['path:id']", "is no `{NAME}` segment"),
        ("index = ['json:/a', 'json:/a']", "names a place twice"),
        ("index = ['json:/a', 'json:/b', 'json:/c', 'json:/d', 'json:/e']", "has more than 4 places"),
    ] {
        let secret = if lines.contains("delivery = 'async'") || lines.contains("vendor") {
            "secret = 'a secret of some length'\n"
        } else {
            ""
        };
        let problems = problems(&format!("{secret}{}", route(lines)));
        assert!(problems.len() == 1 && problems[0].contains(problem), "{lines}: {problems:?}");
    }
    for (upstream, problem) in [
        ("https://api.example.com", "is no host of the vendor"),
        ("http://api.example.com", "in clear: write `https://`"),
    ] {
        let text =
            format!("upstream = '{upstream}'\nsecret = 'a secret of some length'\n{}", route("vendor = 'stripe'"));
        let problems = problems_in(FakeEnvironment::default(), &text);
        assert!(problems.len() == 1 && problems[0].contains(problem), "{upstream}: {problems:?}");
    }
    let secret = "kind = 'webhook'\nsender = 'svix'\nsignature = { secrets = ['whsec_hunter2:'] }";
    assert!(!format!("{:?}", problems(&route(secret))).contains("hunter2"));
    let right = "kind = 'webhook'\nsender = 'github'\nsignature = { secrets = ['hunter2'] }";
    let config = config(&route(right));
    assert_eq!((config.live.warnings.len(), config.live.routes[0].options.accepted.as_u16()), (0, 200));
    assert!(!format!("{:?}", config.live.routes).contains("hunter2"));
}
