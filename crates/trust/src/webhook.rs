//! Signatures of webhooks: verifies that an event comes from its sender, by a secret that only both have, or by the
//! sender's public key.
//!
//! The bytes are verified as they came. Nothing of the event is believed before.

use std::borrow::Cow;
use std::time::{Duration, SystemTime};

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_ASN1, UnparsedPublicKey};
use aws_lc_rs::{digest, hmac};
use base64::Engine;
use base64::engine::DecodePaddingMode;
use base64::engine::general_purpose::{GeneralPurpose, GeneralPurposeConfig, STANDARD};
use http::header::CONTENT_TYPE;
use http::{HeaderMap, HeaderName, Method};
use serde::Deserialize;
use serde_json::Value;

use oncegate_domain::macros::named;
use oncegate_domain::urlencoded;

/// The signatures of one request that are tried. A sender has two during a rotation.
const SIGNATURES_MAX: usize = 8;

/// The parameters of a form that are sorted. Twilio sends dozens.
const PARAMETERS_MAX: usize = 1_000;

/// The text between the signed values of an item.
const SEPARATOR: char = ':';

/// Senders leave out the padding of some secrets.
const BASE64: GeneralPurpose = GeneralPurpose::new(
    &base64::alphabet::STANDARD,
    GeneralPurposeConfig::new().with_decode_padding_mode(DecodePaddingMode::Indifferent),
);

/// The way in which a sender signs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SignatureScheme {
    /// The field with the signatures; with `items`, the JSON Pointer of an item's signature.
    field: Box<str>,
    /// The text before each signature of a list, which has spaces between its members if this ends in a comma, and else
    /// commas.
    #[serde(default)]
    prefix: Box<str>,
    #[serde(default)]
    algorithm: SignatureAlgorithm,
    #[serde(default)]
    encoding: Encoding,
    #[serde(default)]
    secret: SecretForm,
    /// The signed bytes. In braces: `body`; `method`; `url`; `form`, the sorted parameters of a form; a member of the
    /// list, such as `t=`; the JSON Pointer of a value of the item; or the name of a field.
    signed: Box<str>,
    /// The field or member with the time of the delivery, in seconds since 1970.
    time: Option<Box<str>>,
    #[serde(default)]
    in_milliseconds: bool,
    /// The JSON Pointer of a list in the body, whose items are signed one by one.
    items: Option<Box<str>>,
    /// The JSON Pointer of the one signed value of an item that may have a `:`. With two such values, whoever has an
    /// event could divide the signed text elsewhere, and send the event under another id.
    free_text: Option<Box<str>>,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SignatureAlgorithm {
    #[default]
    HmacSha256,
    HmacSha1,
    EcdsaP256,
}

#[derive(Clone, Copy, Debug, Default, Deserialize, PartialEq, Eq)]
#[serde(rename_all = "kebab-case")]
enum Encoding {
    #[default]
    Hex,
    Base64,
}

#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum SecretForm {
    #[default]
    Text,
    Hex,
    /// After `whsec_`, which may be left out.
    Base64,
    /// A public key in base64, without the lines of PEM.
    PublicKey,
}

/// A secret or a public key of a sender.
#[derive(Clone)]
pub enum SigningKey {
    Shared(hmac::Key),
    Public(Box<[u8]>),
}

/// The signature that each request of a route must have.
#[derive(Clone, derive_more::Debug)]
pub struct SignatureRule {
    pub scheme: &'static SignatureScheme,
    /// The current secret and, during a rotation, the next or the last one.
    #[debug("hidden")]
    pub keys: Vec<SigningKey>,
    /// The difference between the time of the delivery and now that is allowed.
    pub tolerance: Duration,
    /// The URL that the sender calls, as far as its path.
    pub url: Box<str>,
}

/// A request as far as senders sign it.
#[derive(Clone, Copy)]
pub struct SignedRequest<'a> {
    pub method: &'a Method,
    pub path_and_query: &'a str,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

named! {
    /// The reason for which a request is not from its sender.
    pub enum SignatureFault {
        /// It has no signature, or not all that is signed, or a signed value that could be divided elsewhere.
        Missing => "missing",
        /// Its time differs too much from now.
        Stale => "stale",
        /// No signature is by one of the secrets.
        Wrong => "wrong",
    }
}

impl SignatureFault {
    /// The fault in a sentence.
    pub fn detail(self) -> &'static str {
        match self {
            Self::Missing => "The request lacks the signature of its sender, or has one that cannot be read.",
            Self::Stale => "The request was signed too long ago, or in the future.",
            Self::Wrong => "The signature of the request is not by one of the secrets of this route.",
        }
    }
}

impl SignatureScheme {
    /// Whether the URL is signed, so that the rule must know it.
    pub fn signs_url(&self) -> bool {
        self.signed.contains("{url}")
    }

    /// The fields that a signature needs.
    pub fn fields(&self) -> impl Iterator<Item = HeaderName> {
        let own = self.items.is_none().then_some(&*self.field);
        let pieces = self.signed.split(['{', '}']).skip(1).step_by(2);
        let pieces = pieces.filter(|piece| !matches!(*piece, "body" | "form" | "method" | "url"));
        own.into_iter().chain(pieces).filter_map(|name| HeaderName::try_from(name).ok())
    }

    /// Reads a secret as the sender shows it.
    ///
    /// # Errors
    /// The problem, without the secret.
    pub fn read_key(&self, text: &str) -> Result<SigningKey, &'static str> {
        let bytes = match self.secret {
            SecretForm::Text => text.as_bytes().to_vec(),
            SecretForm::Hex => decode_hex(text).ok_or("is no secret of this sender: it has hexadecimal digits")?,
            SecretForm::Base64 => BASE64
                .decode(text.strip_prefix("whsec_").unwrap_or(text))
                .map_err(|_| "is no secret of this sender: it has `whsec_` and base64")?,
            SecretForm::PublicKey => {
                let key = BASE64.decode(text).map_err(|_| "is no public key: it is in base64, without lines of PEM")?;
                return Ok(SigningKey::Public(key.into()));
            }
        };
        if bytes.is_empty() {
            return Err("is empty: anybody could sign with it");
        }
        let algorithm = match self.algorithm {
            SignatureAlgorithm::HmacSha1 => hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY,
            SignatureAlgorithm::HmacSha256 | SignatureAlgorithm::EcdsaP256 => hmac::HMAC_SHA256,
        };
        Ok(SigningKey::Shared(hmac::Key::new(algorithm, &bytes)))
    }
}

impl SignatureRule {
    /// Checks what can be checked before the body is there: that the request has a signature, and by its time.
    ///
    /// # Errors
    /// The fault of a request whose body need not be read.
    pub fn check_head(&self, request: SignedRequest<'_>, now: SystemTime) -> Result<(), SignatureFault> {
        if self.scheme.items.is_some() {
            return Ok(());
        }
        let part = Part { rule: self, request, list: self.list(request.headers)?, item: &Value::Null };
        part.signatures().next().ok_or(SignatureFault::Missing)?;
        part.check_time(now)
    }

    /// The text of the field that has the signatures.
    fn list<'a>(&self, headers: &'a HeaderMap) -> Result<&'a str, SignatureFault> {
        let mut fields = headers.get_all(&*self.scheme.field).iter();
        // A second field could be meant for another reader.
        let (Some(field), None) = (fields.next(), fields.next()) else { return Err(SignatureFault::Missing) };
        field.to_str().map_err(|_| SignatureFault::Wrong)
    }

    /// Verifies a request.
    ///
    /// # Errors
    /// The fault of a request that is not known to be from the sender, and now.
    pub fn verify(&self, request: SignedRequest<'_>, now: SystemTime) -> Result<(), SignatureFault> {
        let Some(items) = &self.scheme.items else {
            let list = self.list(request.headers)?;
            return self.verify_part(&Part { rule: self, request, list, item: &Value::Null }, now);
        };
        let document: Value = serde_json::from_slice(request.body).map_err(|_| SignatureFault::Missing)?;
        let items = document.pointer(items).and_then(Value::as_array).filter(|items| !items.is_empty());
        items.ok_or(SignatureFault::Missing)?.iter().try_for_each(|item| {
            let list = item.pointer(&self.scheme.field).and_then(Value::as_str).ok_or(SignatureFault::Missing)?;
            self.verify_part(&Part { rule: self, request, list, item }, now)
        })
    }

    fn verify_part(&self, part: &Part<'_>, now: SystemTime) -> Result<(), SignatureFault> {
        let signatures: Vec<Vec<u8>> = part.signatures().collect();
        if signatures.is_empty() {
            return Err(SignatureFault::Missing);
        }
        let mut message = Vec::new();
        part.write(&mut message).ok_or(SignatureFault::Missing)?;
        if !self.keys.iter().any(|key| key.has_signed(&message, &signatures)) {
            return Err(SignatureFault::Wrong);
        }
        part.check_time(now)
    }
}

impl SigningKey {
    fn has_signed(&self, message: &[u8], signatures: &[Vec<u8>]) -> bool {
        match self {
            Self::Shared(key) => {
                let tag = hmac::sign(key, message);
                signatures.iter().any(|signature| verify_slices_are_equal(tag.as_ref(), signature).is_ok())
            }
            Self::Public(key) => {
                let key = UnparsedPublicKey::new(&ECDSA_P256_SHA256_ASN1, key);
                signatures.iter().any(|signature| key.verify(message, signature).is_ok())
            }
        }
    }
}

/// The subject of one signature: the request, or an item of its body.
struct Part<'a> {
    rule: &'a SignatureRule,
    request: SignedRequest<'a>,
    /// The text of the list of signatures.
    list: &'a str,
    item: &'a Value,
}

impl<'a> Part<'a> {
    fn members(&self) -> impl Iterator<Item = &'a str> {
        let separator = if self.rule.scheme.prefix.ends_with(',') { ' ' } else { ',' };
        self.list.split(separator).map(str::trim)
    }

    fn signatures(&self) -> impl Iterator<Item = Vec<u8>> {
        let SignatureScheme { prefix, encoding, .. } = self.rule.scheme;
        let decode = move |text: &str| match encoding {
            Encoding::Hex => decode_hex(text),
            Encoding::Base64 => STANDARD.decode(text).ok(),
        };
        let signatures = self.members().filter_map(move |member| decode(member.strip_prefix(&**prefix)?));
        signatures.filter(|signature| !signature.is_empty()).take(SIGNATURES_MAX)
    }

    /// The value of a member or of a field that occurs once.
    fn value(&self, name: &str) -> Option<&'a str> {
        if name.ends_with('=') {
            return self.members().find_map(|member| member.strip_prefix(name));
        }
        let mut values = self.request.headers.get_all(name).iter();
        values.next().filter(|_| values.next().is_none())?.to_str().ok()
    }

    fn check_time(&self, now: SystemTime) -> Result<(), SignatureFault> {
        let SignatureRule { scheme, tolerance, .. } = self.rule;
        let Some(time) = &scheme.time else { return Ok(()) };
        let time: u64 = self.value(time).and_then(|time| time.parse().ok()).ok_or(SignatureFault::Missing)?;
        let since = if scheme.in_milliseconds { Duration::from_millis(time) } else { Duration::from_secs(time) };
        let signed_at = SystemTime::UNIX_EPOCH.checked_add(since).ok_or(SignatureFault::Stale)?;
        let difference = now.duration_since(signed_at).unwrap_or_else(|ahead| ahead.duration());
        if difference > *tolerance { Err(SignatureFault::Stale) } else { Ok(()) }
    }

    /// Writes the signed bytes. `None` if a part of them is missing, or could be a part of another one.
    fn write(&self, message: &mut Vec<u8>) -> Option<()> {
        let Self { request, item, .. } = *self;
        for (index, piece) in self.rule.scheme.signed.split(['{', '}']).enumerate() {
            match piece {
                text if index % 2 == 0 => message.extend(text.bytes()),
                "body" => message.extend(request.body),
                "method" => message.extend(request.method.as_str().bytes()),
                "url" => message.extend(self.rule.url.bytes().chain(request.path_and_query.bytes())),
                "form" => self.write_form(message)?,
                pointer if pointer.starts_with('/') => {
                    let text = match item.pointer(pointer) {
                        None | Some(Value::Null) => continue,
                        Some(Value::String(text)) => Cow::Borrowed(&**text),
                        Some(value @ (Value::Number(_) | Value::Bool(_))) => value.to_string().into(),
                        Some(Value::Array(_) | Value::Object(_)) => return None,
                    };
                    if text.contains(SEPARATOR) && self.rule.scheme.free_text.as_deref() != Some(pointer) {
                        return None;
                    }
                    message.extend(text.bytes());
                }
                name => message.extend(self.value(name)?.bytes()),
            }
        }
        Some(())
    }

    /// Writes the parameters of a form, sorted and each once. Of another body the URL has the hash.
    fn write_form(&self, message: &mut Vec<u8>) -> Option<()> {
        let SignedRequest { path_and_query, headers, body, .. } = self.request;
        let media_type = headers.get(CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or_default();
        let essence = media_type.split(';').next().unwrap_or_default().trim();
        if essence.eq_ignore_ascii_case("application/x-www-form-urlencoded") {
            let mut pairs: Vec<_> = urlencoded::pairs(body).take(PARAMETERS_MAX + 1).collect();
            if pairs.len() > PARAMETERS_MAX {
                return None;
            }
            pairs.sort();
            pairs.dedup();
            message.extend(pairs.into_iter().flat_map(|(name, value)| [name, value]).flatten());
            return Some(());
        }
        let (_, query) = path_and_query.split_once('?').unwrap_or_default();
        let hash = urlencoded::pairs(query.as_bytes()).find(|(name, _)| name == b"bodySHA256");
        let own = digest::digest(&digest::SHA256, body);
        let is_signed =
            hash.and_then(|(_, hash)| decode_hex(str::from_utf8(&hash).ok()?)).is_some_and(|hash| hash == own.as_ref());
        (body.is_empty() || is_signed).then_some(())
    }
}

fn decode_hex(text: &str) -> Option<Vec<u8>> {
    data_encoding::HEXLOWER_PERMISSIVE.decode(text.as_bytes()).ok()
}
