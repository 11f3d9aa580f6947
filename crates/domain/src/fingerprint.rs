//! Fingerprints, by which two requests with one key are compared.

use std::borrow::Cow;
use std::sync::Arc;

use hmac::{Hmac, Mac};
use http::header::{COOKIE, HOST};
use http::{HeaderMap, HeaderName, HeaderValue};
use sha2::{Digest, Sha256};

use super::macros::{hex_bytes, named};
use super::normal_path::RequestPath;
use crate::acting_for;
use crate::media_type::content_type;
use crate::part_bits::{PartBits, PartKey};
use crate::path_pattern::PathPattern;
use crate::place::{BodyPart, Place, cbor, form, multipart, protobuf, xml};
use crate::urlencoded;
use body_format::BodyFormat;
use canonical_json::canonicalize_selected;
use content_coding::is_encoded;
pub use path_form::PathForm;
pub use secret::{Secret, Secrets};
use selections::Selections;

mod body_format;
mod content_coding;
mod graphql;
mod jsonrpc;
mod path_form;
mod request_parts;
mod secret;
mod selections;

hex_bytes! {
    /// The hash of the parts of a request that a retry must have unchanged, made by a [`Recipe`].
    pub struct Fingerprint;
}

/// The parts of a request that a fingerprint may include.
#[derive(Clone, Copy, Debug)]
pub struct FingerprintInput<'a> {
    pub method: &'a str,
    pub path: &'a RequestPath<'a>,
    /// The route's path, whose segments have names.
    pub pattern: Option<&'a PathPattern>,
    /// The host that the request names, by the authority of its target or by its `Host` field.
    pub host: Option<&'a [u8]>,
    /// The query as sent, without the question mark.
    pub query: Option<&'a str>,
    pub headers: &'a HeaderMap,
    pub body: &'a [u8],
}

/// The recipe of a fingerprint: its version and the parts that it includes. Every record has its recipe, so that a
/// retry is compared by the recipe of its first attempt, however the configuration has changed since: nothing enters a
/// fingerprint but the request, and the secret that the recipe names.
///
/// Its stored form is words with a space in between, the defaults left out: `1` for the default recipe,
/// `1 body=raw path=lenient:101 query=no hmac=1f2e3d4c`. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq, derive_more::Display)]
#[display("{}", _0.words)]
pub struct Recipe(Arc<RecipeParts>);

/// A recipe's parts, and its stored form, made once, which ends with the name of the secret.
#[derive(Debug, PartialEq, Eq)]
struct RecipeParts {
    rules: FingerprintRules,
    selections: Selections,
    words: String,
}

/// The parts of a request that a fingerprint includes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FingerprintRules {
    pub body: BodyRule,
    pub path: PathForm,
    pub query: bool,
    /// The fields that are included, with all their values in order.
    pub headers: Vec<HeaderName>,
    /// The values that are included, in the formats that have such places; empty for all.
    pub include: Vec<Place>,
    /// The values that are left out.
    pub exclude: Vec<Place>,
    /// The places of the key, which never count.
    pub own: Vec<Place>,
}

impl Default for FingerprintRules {
    fn default() -> Self {
        Self {
            body: BodyRule::Auto,
            path: PathForm::Normal,
            query: true,
            headers: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
            own: Vec::new(),
        }
    }
}

named! {
    /// The form in which the body is included.
    pub enum BodyRule {
        /// By the media type: JSON by its canonical form, forms by their pairs, multipart bodies by their parts,
        /// anything else by its bytes.
        Auto => "auto",
        /// As a form's pairs, whatever the media type.
        Form => "form",
        /// JSON as a GraphQL request, its document by its hash; anything else as by [`Self::Auto`].
        Graphql => "graphql",
        /// As JSON, whatever the media type; a body that does not parse, by its bytes.
        Json => "json",
        /// JSON-RPC of any media type, by its method and its parameters without `_meta`; all else as by [`Self::Auto`].
        Jsonrpc => "jsonrpc",
        /// Not at all: two requests with different bodies are the same.
        None => "none",
        /// By its bytes as sent, encoded or not.
        Raw => "raw",
    }
}

#[derive(Debug, PartialEq, Eq)]
pub struct IncludedBody<'a> {
    /// The form's name: `encoded` for an encoded body whose content is not known, `none`, `raw` for bytes, `graphql`,
    /// `jsonrpc`, or the name of a format.
    pub form: &'static str,
    /// Whether the body was sent encoded, and its content is included.
    pub is_decoded: bool,
    pub content: IncludedContent<'a>,
}

/// The content of a body as it counts.
#[derive(Debug, PartialEq, Eq)]
pub enum IncludedContent<'a> {
    Bytes(Cow<'a, [u8]>),
    Parts(Vec<BodyPart>),
}

impl IncludedContent<'_> {
    pub fn into_owned(self) -> IncludedContent<'static> {
        match self {
            Self::Bytes(bytes) => IncludedContent::Bytes(Cow::Owned(bytes.into_owned())),
            Self::Parts(parts) => IncludedContent::Parts(parts),
        }
    }

    /// The content as people read it: parts on a line each.
    pub fn to_text(&self) -> String {
        match self {
            Self::Bytes(bytes) => String::from_utf8_lossy(bytes).into_owned(),
            Self::Parts(parts) => {
                let lines = parts.iter().map(|part| format!("{}={}", part.place, String::from_utf8_lossy(&part.value)));
                lines.collect::<Vec<_>>().join("\n")
            }
        }
    }

    fn hash(&self, hash: &mut Hasher) {
        match self {
            Self::Bytes(bytes) => hash.part(bytes),
            Self::Parts(parts) => {
                hash.part(&(parts.len() as u64).to_be_bytes());
                for part in parts {
                    hash.part(part.place.as_bytes());
                    hash.part(&part.value);
                }
            }
        }
    }
}

impl Recipe {
    /// Makes a route's recipe: keyed where there is a secret.
    pub fn new(mut rules: FingerprintRules, secret: Option<&Secret>) -> Self {
        for place in std::mem::take(&mut rules.own) {
            match place {
                Place::Header(name, None) => rules.headers.retain(|field| *field != name),
                // A field that is named in the rules counts as a whole.
                Place::Cookie(_) | Place::Header(_, Some(_)) => {}
                place if rules.exclude.contains(&place) => {}
                place => rules.exclude.push(place),
            }
        }
        Self::from_parts(rules, secret.map(Secret::name).as_deref())
    }

    pub fn from_stored(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        if words.next() != Some("1") {
            return None;
        }
        let (mut rules, mut secret_name) = (FingerprintRules::default(), None);
        for word in words {
            match word.split_once('=')? {
                ("body", rule) => rules.body = BodyRule::parse(rule).filter(|rule| *rule != BodyRule::Auto)?,
                ("exclude", list) => rules.exclude = parse_places(list)?,
                ("headers", list) => {
                    rules.headers = list.split(',').map(|name| name.parse().ok()).collect::<Option<_>>()?
                }
                ("hmac", name) if is_secret_name(name) => secret_name = Some(name),
                ("include", list) => rules.include = parse_places(list)?,
                ("path", form) => rules.path = PathForm::from_word(form)?,
                ("query", "no") => rules.query = false,
                _ => return None,
            }
        }
        Some(Self::from_parts(rules, secret_name))
    }

    pub fn to_stored(&self) -> &str {
        &self.0.words
    }

    fn from_parts(rules: FingerprintRules, secret_name: Option<&str>) -> Self {
        let words = to_words(&rules, secret_name);
        let selections = Selections::new(&rules.include, &rules.exclude);
        Self(Arc::new(RecipeParts { rules, selections, words }))
    }

    /// Whether a request field of this name, in lower case, is a part of the fingerprint.
    pub fn reads_field(&self, name: &str) -> bool {
        self.0.rules.headers.iter().any(|field| *field == *name)
    }

    /// The name of the secret that the fingerprint needs, as of [`Secret::name`].
    pub fn secret_name(&self) -> Option<&str> {
        self.0.words.rsplit_once(SECRET_WORD).map(|(_, name)| name)
    }

    /// The most bytes that a body of this size, in its request's fields, may become before it is included; 0 if it is
    /// no part of the fingerprint.
    pub fn body_size_limit(&self, headers: &HeaderMap, size: usize) -> usize {
        match self.0.rules.body {
            BodyRule::None => 0,
            BodyRule::Raw => size,
            _ if is_encoded(headers) => size.max(content_coding::content_limit(size)),
            _ => size,
        }
    }

    /// Whether a body may count in a format that its media type does not name, or that only a part of it is in.
    pub fn reads_any_body(&self) -> bool {
        matches!(self.0.rules.body, BodyRule::Form | BodyRule::Json | BodyRule::Jsonrpc)
    }

    /// Whether a body may count in a form that takes about ten times as long for each byte as that of JSON.
    pub fn is_slow(&self) -> bool {
        !self.0.selections.xml.is_empty()
    }

    pub fn reads_body(&self) -> bool {
        self.0.rules.body != BodyRule::None
    }

    /// The fingerprint of a request by this recipe; `None` if it needs a secret that is not among `secrets` any more,
    /// so that requests cannot be compared.
    pub fn fingerprint(&self, parts: &FingerprintInput<'_>, secrets: &Secrets) -> Option<Fingerprint> {
        self.hash(parts, &self.body(parts), secrets)
    }

    /// The fingerprint, and the bits of the parts that count in it unless it is `known`: a replay needs none. The body
    /// is brought into its form once for both.
    pub fn fingerprint_with_bits(
        &self,
        parts: &FingerprintInput<'_>,
        secrets: &Secrets,
        key: &PartKey,
        known: Option<Fingerprint>,
    ) -> Option<(Fingerprint, Option<PartBits>)> {
        let body = self.body(parts);
        let fingerprint = self.hash(parts, &body, secrets)?;
        let bits = (known != Some(fingerprint)).then(|| PartBits::new(key, self.parts(parts, &body)));
        Some((fingerprint, bits))
    }

    fn hash(&self, parts: &FingerprintInput<'_>, body: &IncludedBody<'_>, secrets: &Secrets) -> Option<Fingerprint> {
        let mut hash = match self.secret_name() {
            None => Hasher::Plain(Sha256::new()),
            Some(name) => Hasher::Keyed(Box::new(secrets.named(name)?.mac.clone())),
        };
        hash.part(b"oncegate fingerprint 1");
        hash.part(parts.method.as_bytes());
        hash.part(self.included_path(parts).as_bytes());
        match self.included_query(parts) {
            None => hash.part(b"no query"),
            Some(query) => {
                hash.part(b"query");
                hash.part(query.as_bytes());
            }
        }
        self.0.rules.headers.iter().for_each(|name| include_field(&mut hash, name, parts));
        // A request without them costs nothing.
        for name in acting_for::fields_in(parts.headers) {
            hash.part(b"acting for");
            include_field(&mut hash, name, parts);
        }
        hash.part(body.form.as_bytes());
        if body.form == ENCODED {
            // Bytes that are not understood mean something else under another coding.
            let codings: Vec<_> = content_coding::names(parts.headers).collect();
            hash.part(&codings.join(&b','));
        }
        body.content.hash(&mut hash);
        Some(hash.finish())
    }

    fn included_path<'a>(&self, parts: &'a FingerprintInput<'_>) -> Cow<'a, str> {
        let RecipeParts { rules, selections, .. } = &*self.0;
        match selections.select_path(parts.pattern, parts.path) {
            None => rules.path.apply(parts.path),
            Some(path) => rules.path.apply(&RequestPath::new(&path)).into_owned().into(),
        }
    }

    fn included_query<'a>(&self, parts: &FingerprintInput<'a>) -> Option<Cow<'a, str>> {
        let RecipeParts { rules, selections, .. } = &*self.0;
        let query = parts.query.filter(|_| rules.query)?;
        Some(selections.select_query(query).map_or(Cow::Borrowed(query), Cow::Owned))
    }

    /// The body in the form in which it is included. An encoded body counts by its content, as if it were not encoded.
    pub fn body<'a>(&self, parts: &FingerprintInput<'a>) -> IncludedBody<'a> {
        let included = |form, content| IncludedBody { form, is_decoded: false, content };
        let sent = IncludedContent::Bytes(Cow::Borrowed(parts.body));
        match self.0.rules.body {
            BodyRule::None => included("none", IncludedContent::Bytes(Cow::Borrowed(b""))),
            BodyRule::Raw => included("raw", sent),
            _ if is_encoded(parts.headers) => {
                let Some(decoded) = content_coding::decode(parts.headers, parts.body) else {
                    return included(ENCODED, sent);
                };
                let (form, content) = match self.canonical_content(parts.headers, &decoded) {
                    Some((form, content)) => (form, content.into_owned()),
                    None => ("raw", IncludedContent::Bytes(decoded.into())),
                };
                IncludedBody { form, is_decoded: true, content }
            }
            _ => {
                let (form, content) = self.canonical_content(parts.headers, parts.body).unwrap_or(("raw", sent));
                included(form, content)
            }
        }
    }

    /// The canonical form of a content, and its name; `None` for one that is compared by its bytes.
    fn canonical_content<'a>(
        &self,
        headers: &HeaderMap,
        content: &'a [u8],
    ) -> Option<(&'static str, IncludedContent<'a>)> {
        let RecipeParts { rules, selections, .. } = &*self.0;
        let content_type = content_type(headers);
        let format = match rules.body {
            BodyRule::None | BodyRule::Raw => return None,
            BodyRule::Form => BodyFormat::Form,
            BodyRule::Json => BodyFormat::Json,
            BodyRule::Jsonrpc if let Some(body) = jsonrpc::canonical(content, &selections.json) => {
                return Some(("jsonrpc", IncludedContent::Bytes(body.into())));
            }
            BodyRule::Auto | BodyRule::Graphql | BodyRule::Jsonrpc => {
                // A form without a media type is read as one, and no other body that says what it is.
                let named =
                    || selections.only_format().filter(|format| content_type.is_empty() || *format != BodyFormat::Form);
                BodyFormat::of(content_type).or_else(named)?
            }
        };
        let parts = match format {
            BodyFormat::Json => {
                if rules.body == BodyRule::Graphql
                    && let Some(body) = graphql::canonical(content, &selections.json, &selections.directives)
                {
                    return Some(("graphql", IncludedContent::Bytes(body.into())));
                }
                let body = canonicalize_selected(content, &selections.json).ok()?;
                return Some(("json", IncludedContent::Bytes(body)));
            }
            // Without a place in it nobody has said how it is to be read.
            BodyFormat::Cbor if selections.cbor.is_empty() => return None,
            BodyFormat::Xml if selections.xml.is_empty() => return None,
            BodyFormat::Cbor => cbor::parts(content, selections.cbor.selection())?,
            BodyFormat::Form => form::parts(content, selections.form.selection())?,
            BodyFormat::Multipart => multipart::parts(content_type, content, selections.form.selection())?,
            BodyFormat::Protobuf => protobuf::parts(content_type, content, selections.protobuf.selection())?,
            BodyFormat::Xml => xml::parts(content, selections.xml.selection())?,
        };
        Some((format.name(), IncludedContent::Parts(parts)))
    }
}

/// The beginning of a recipe's last word, which no other word has: all else is escaped, or has no space.
const SECRET_WORD: &str = " hmac=";

/// The form of an encoded body that is not decoded.
const ENCODED: &str = "encoded";

/// Includes a field by its name and the number of its values.
fn include_field(hash: &mut Hasher, name: &HeaderName, parts: &FingerprintInput<'_>) {
    let values = field_values(name, parts);
    hash.part(name.as_str().as_bytes());
    hash.part(&(values.len() as u64).to_be_bytes());
    values.iter().for_each(|value| hash.part(value));
}

/// The values of a field, whatever the protocol version of the request.
fn field_values<'a>(name: &HeaderName, parts: &FingerprintInput<'a>) -> Vec<Cow<'a, [u8]>> {
    let values = parts.headers.get_all(name).iter().map(HeaderValue::as_bytes);
    if *name == HOST {
        // HTTP/2 has `:authority` instead (RFC 9113, section 8.3.1). The case of letters does not count (RFC 3986,
        // section 3.2.2).
        parts.host.map(|host| host.to_ascii_lowercase().into()).into_iter().collect()
    } else if *name == COOKIE {
        // HTTP/2 may split it at each `; ` (RFC 9113, section 8.2.3).
        let crumbs: Vec<&[u8]> = values.collect();
        (!crumbs.is_empty()).then(|| crumbs.join(&b"; "[..]).into()).into_iter().collect()
    } else {
        values.map(Cow::Borrowed).collect()
    }
}

fn to_words(rules: &FingerprintRules, secret_name: Option<&str>) -> String {
    let mut words = String::from("1");
    if rules.body != BodyRule::Auto {
        words.push_str(&format!(" body={}", rules.body.name()));
    }
    if let Some(form) = rules.path.word() {
        words.push_str(&format!(" path={form}"));
    }
    if !rules.query {
        words.push_str(" query=no");
    }
    if !rules.headers.is_empty() {
        let names: Vec<_> = rules.headers.iter().map(HeaderName::as_str).collect();
        words.push_str(&format!(" headers={}", names.join(",")));
    }
    for (word, list) in [("include", &rules.include), ("exclude", &rules.exclude)] {
        if !list.is_empty() {
            let list: Vec<_> = list.iter().map(|place| urlencoded::escape(place.to_string().as_bytes())).collect();
            words.push_str(&format!(" {word}={}", list.join(",")));
        }
    }
    if let Some(name) = secret_name {
        words.push_str(SECRET_WORD);
        words.push_str(&name.to_ascii_lowercase());
    }
    words
}

fn is_secret_name(text: &str) -> bool {
    text.len() == 8 && text.bytes().all(|digit| digit.is_ascii_hexdigit())
}

/// Reads the places of a recipe: each is escaped like a value of a form, so that neither a space nor a comma in it can
/// end it.
fn parse_places(list: &str) -> Option<Vec<Place>> {
    let unescaped =
        list.split(',').map(|escaped| String::from_utf8(urlencoded::unescape(escaped.as_bytes()).into_owned()).ok());
    unescaped.map(|place| Place::parse(&place?).ok()).collect()
}

enum Hasher {
    Keyed(Box<Hmac<Sha256>>),
    Plain(Sha256),
}

impl Hasher {
    /// Adds a part, its length first, so that different parts cannot be joined into the same bytes.
    fn part(&mut self, bytes: &[u8]) {
        for piece in [&(bytes.len() as u64).to_be_bytes()[..], bytes] {
            match self {
                Self::Keyed(mac) => mac.update(piece),
                Self::Plain(hash) => Digest::update(hash, piece),
            }
        }
    }

    fn finish(self) -> Fingerprint {
        Fingerprint(match self {
            Self::Keyed(mac) => mac.finalize().into_bytes().into(),
            Self::Plain(hash) => hash.finalize().into(),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, GzBuilder};

    use super::*;

    /// A request's fields, for as long as a test runs.
    fn fields(list: &[(&'static str, &'static str)]) -> &'static HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in list {
            headers.append(*name, HeaderValue::from_static(value));
        }
        Box::leak(Box::new(headers))
    }

    fn typed(content_type: &'static str) -> &'static HeaderMap {
        fields(&[("content-type", content_type)])
    }

    fn path_of(sent: &str) -> &'static RequestPath<'static> {
        Box::leak(Box::new(RequestPath::new(sent.to_owned().leak())))
    }

    fn parts(body: &'static str) -> FingerprintInput<'static> {
        FingerprintInput {
            method: "POST",
            path: path_of("/pay"),
            pattern: None,
            host: None,
            query: None,
            headers: typed("application/json"),
            body: body.as_bytes(),
        }
    }

    fn by(rules: FingerprintRules, parts: &FingerprintInput<'_>) -> Fingerprint {
        Recipe::new(rules, None).fingerprint(parts, &Secrets::default()).unwrap()
    }

    fn of(parts: &FingerprintInput<'_>) -> Fingerprint {
        by(FingerprintRules::default(), parts)
    }

    fn places(list: &[&str]) -> Vec<Place> {
        list.iter().map(|place| Place::parse(place).unwrap()).collect()
    }

    #[test]
    fn no_part_can_be_moved_into_the_next() {
        let base = parts("a");
        let requests = [
            base,
            FingerprintInput { method: "POST/", path: path_of("pay"), ..base },
            FingerprintInput { path: path_of("/paya"), body: b"", ..base },
            FingerprintInput { query: Some(""), ..base },
            FingerprintInput { query: Some("a"), body: b"", ..base },
            FingerprintInput { path: path_of("/pay?a"), body: b"", ..base },
            FingerprintInput { body: b"{}", ..base },
            FingerprintInput { body: b"{}", headers: fields(&[]), ..base },
        ];
        for (i, one) in requests.iter().enumerate() {
            for other in &requests[i + 1..] {
                assert_ne!(of(one), of(other), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn json_is_compared_by_its_meaning_and_all_else_by_its_bytes() {
        let spaced = FingerprintInput { body: br#"{ "b": 1.0, "a": 2 }"#, ..parts("") };
        let plain = FingerprintInput { body: br#"{"a":2,"b":1}"#, ..spaced };
        assert_eq!(of(&spaced), of(&plain));
        for json in ["application/problem+json; charset=utf-8", "Application/JSON"] {
            let headers = typed(json);
            assert_eq!(
                of(&FingerprintInput { headers, ..spaced }),
                of(&FingerprintInput { headers, ..plain }),
                "{json}"
            );
        }
        for other in [
            fields(&[]),
            typed("text/plain"),
            typed("+json"),
            typed("application/jsonl"),
            fields(&[("content-type", "application/json"), ("content-encoding", "gzip")]),
            fields(&[("content-type", "application/json"), ("content-type", "application/json")]),
        ] {
            assert_ne!(
                of(&FingerprintInput { headers: other, ..spaced }),
                of(&FingerprintInput { headers: other, ..plain }),
                "{other:?}"
            );
        }
    }

    #[test]
    fn forms_are_compared_by_their_fields() {
        let form = |body: &'static str| {
            of(&FingerprintInput { headers: typed("application/x-www-form-urlencoded; charset=utf-8"), ..parts(body) })
        };
        assert_eq!(form("a=1&b=x+y"), form("a=%31&b=x%20y"));
        assert_eq!(form("a=1&b=x+y"), form("b=x+y&a=1"));
        for other in ["a=1&b=x+z", "a=1&b=x%2By", "a=1", "a=1&b=x+y&b=x+y", "a=1%26b=x+y"] {
            assert_ne!(form("a=1&b=x+y"), form(other), "{other}");
        }
    }

    #[test]
    fn multipart_forms_are_compared_by_their_parts_whatever_the_boundary() {
        let body = |boundary: &str, value: &str| {
            let text = format!(
                "--{boundary}\r\nContent-Disposition: form-data; name=\"a\"\r\n\r\n{value}\r\n--{boundary}--\r\n"
            );
            &*Box::leak(text.into_boxed_str())
        };
        let with = |boundary: &str, value: &str| {
            let content_type = &*Box::leak(format!("multipart/form-data; boundary={boundary}").into_boxed_str());
            of(&FingerprintInput { headers: typed(content_type), ..parts(body(boundary, value)) })
        };
        assert_eq!(with("one", "1"), with("two", "1"));
        assert_ne!(with("one", "1"), with("one", "2"));
    }

    fn gzip(content: &[u8], mtime: u32) -> &'static [u8] {
        let mut encoder = GzBuilder::new().mtime(mtime).write(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        encoder.finish().unwrap().leak()
    }

    #[test]
    fn an_encoded_body_counts_as_its_content() {
        let mixed = "multipart/mixed; boundary=b";
        for (content_type, content, same, other) in [
            ("application/json", r#"{"a":1,"b":2}"#, r#"{ "b": 2, "a": 1 }"#, r#"{"a":1,"b":3}"#),
            ("application/json", "no JSON", "no JSON", "no  JSON"),
            ("application/x-www-form-urlencoded", "a=x+y", "a=x%20y", "a=xy"),
            (mixed, "--b\r\n\r\n1\r\n--b--", "--b\r\n\r\n1\r\n--b--\r\n", "--b\r\n\r\n2\r\n--b--"),
            ("text/plain", "text", "text", "Text"),
        ] {
            let encoded = fields(&[("content-type", content_type), ("content-encoding", "gzip")]);
            let plain = typed(content_type);
            let fingerprint = |rule, headers, body| {
                by(
                    FingerprintRules { body: rule, ..FingerprintRules::default() },
                    &FingerprintInput { headers, body, ..parts("") },
                )
            };
            let auto = |headers, body| fingerprint(BodyRule::Auto, headers, body);
            let first = auto(encoded, gzip(content.as_bytes(), 1));
            for (headers, body) in [
                (encoded, gzip(content.as_bytes(), 2)),
                (encoded, gzip(same.as_bytes(), 1)),
                (plain, content.as_bytes()),
                (plain, same.as_bytes()),
            ] {
                assert_eq!(first, auto(headers, body), "{content_type} {content}");
            }
            for (headers, body) in [
                (encoded, gzip(other.as_bytes(), 1)),
                (plain, other.as_bytes()),
                (plain, gzip(content.as_bytes(), 1)),
                (encoded, content.as_bytes()),
            ] {
                assert_ne!(first, auto(headers, body), "{content_type} {content}");
            }
            let raw = |mtime| fingerprint(BodyRule::Raw, encoded, gzip(content.as_bytes(), mtime));
            assert_ne!(raw(1), raw(2), "as sent");
        }
    }

    #[test]
    fn bytes_that_are_not_decoded_are_another_body_under_another_coding() {
        let with = |coding: &'static str| {
            let headers = fields(&[("content-type", "application/json"), ("content-encoding", coding)]);
            of(&FingerprintInput { headers, ..parts("{}") })
        };
        assert_eq!(with("br"), with("identity, BR"));
        assert_eq!(with("identity"), of(&parts("{}")));
        let all = [with("br"), with("zstd"), with("br, zstd"), with("gzip"), with("identity")];
        for (i, one) in all.iter().enumerate() {
            all[i + 1..].iter().for_each(|other| assert_ne!(one, other));
        }
    }

    #[test]
    fn a_field_counts_whatever_the_protocol_version() {
        let with = |name: &'static str, host: Option<&'static str>, list: &[(&'static str, &'static str)]| {
            let rules =
                FingerprintRules { headers: vec![HeaderName::from_static(name)], ..FingerprintRules::default() };
            let host = host.map(str::as_bytes);
            by(rules, &FingerprintInput { host, headers: fields(list), ..parts("") })
        };
        let host = |host, list| with("host", host, list);
        assert_eq!(host(Some("a.example"), &[("host", "a.example")]), host(Some("A.example"), &[]));
        assert_ne!(host(Some("a.example"), &[]), host(Some("b.example"), &[]));
        assert_ne!(host(Some(""), &[]), host(None, &[]));
        let cookie = |list| with("cookie", None, list);
        assert_eq!(cookie(&[("cookie", "a=1; b=2")]), cookie(&[("cookie", "a=1"), ("cookie", "b=2")]));
        assert_ne!(cookie(&[("cookie", "a=1; b=2")]), cookie(&[("cookie", "b=2"), ("cookie", "a=1")]));
        assert_ne!(cookie(&[("cookie", "")]), cookie(&[]));
    }

    #[test]
    fn a_path_is_compared_in_the_recipes_form() {
        let with = |path: PathForm, sent| {
            by(
                FingerprintRules { path, ..FingerprintRules::default() },
                &FingerprintInput { path: path_of(sent), ..parts("{}") },
            )
        };
        let lenient = || PathForm::from_word("lenient:1").unwrap();
        assert_eq!(with(PathForm::Normal, "/p%61y"), with(PathForm::Normal, "/pay"));
        assert_ne!(with(PathForm::Normal, "/Pay/"), with(PathForm::Normal, "/pay"));
        assert_eq!(with(lenient(), "/Pay/"), with(lenient(), "/pay"));
        assert_ne!(with(lenient(), "/pay/A"), with(lenient(), "/pay/a"));
    }

    #[test]
    fn only_values_that_are_included_and_not_excluded_count() {
        let include = places(&["json:/amount", "json:/items"]);
        let exclude = places(&["json:/items/*/at"]);
        let rules = FingerprintRules { include, exclude, ..FingerprintRules::default() };
        let of = |body| by(rules.clone(), &parts(body));
        let base = of(r#"{"amount":1,"items":[{"id":1,"at":5}],"sent":"now"}"#);
        assert_eq!(base, of(r#"{"amount":1,"items":[{"id":1,"at":6}],"sent":"later"}"#));
        assert_ne!(base, of(r#"{"amount":2,"items":[{"id":1,"at":5}],"sent":"now"}"#));
        assert_ne!(base, of(r#"{"amount":1,"items":[{"id":2,"at":5}],"sent":"now"}"#));
    }

    #[test]
    fn fields_and_query_count_where_the_recipe_includes_them() {
        let query = FingerprintInput { query: Some("dry=1"), ..parts("{}") };
        assert_ne!(of(&query), of(&parts("{}")));
        let blind = || FingerprintRules { query: false, body: BodyRule::None, ..FingerprintRules::default() };
        assert_eq!(by(blind(), &query), by(blind(), &parts("[]")));
        let rules =
            || FingerprintRules { headers: vec![HeaderName::from_static("x-tenant")], ..FingerprintRules::default() };
        let tenants = [
            fields(&[]),
            fields(&[("x-tenant", "")]),
            fields(&[("x-tenant", "a, b")]),
            fields(&[("x-tenant", "a"), ("x-tenant", "b")]),
        ];
        for (i, one) in tenants.iter().enumerate() {
            for other in &tenants[i + 1..] {
                let by = |headers| by(rules(), &FingerprintInput { headers, ..parts("") });
                assert_ne!(by(one), by(other));
            }
        }
    }

    #[test]
    fn a_recipe_reads_back_from_its_stored_form() {
        let secret = Secret::new("s");
        let selections = [
            (vec![], vec![]),
            (places(&["json:/a b,c%", "json:/*/d"]), places(&["json:/~1", "form:a b#/c", "path:txn"])),
        ];
        for body in [
            BodyRule::Auto,
            BodyRule::Form,
            BodyRule::Graphql,
            BodyRule::Json,
            BodyRule::Jsonrpc,
            BodyRule::None,
            BodyRule::Raw,
        ] {
            for (query, key, path) in [(true, None, "lenient"), (false, Some(&secret), "lenient:011"), (true, None, "")]
            {
                for selection in &selections {
                    for headers in [vec![], vec![http::header::CONTENT_TYPE, HeaderName::from_static("x-a")]] {
                        let path = PathForm::from_word(path).unwrap_or_default();
                        let ((include, exclude), own) = (selection.clone(), places(&["json:/key"]));
                        let rules = FingerprintRules { body, path, query, headers, include, exclude, own };
                        let recipe = Recipe::new(rules, key);
                        assert_eq!(Recipe::from_stored(&recipe.to_string()), Some(recipe));
                    }
                }
            }
        }
        assert_eq!(Recipe::new(FingerprintRules::default(), None).to_string(), "1");
        for unknown in [
            "",
            "2",
            "1 body=auto2",
            "1 hmac=12",
            "1 x=y",
            "1 ",
            "1 headers=",
            "1 include=a",
            "1 path=normal",
            "1 path=lenient:0",
        ] {
            assert_eq!(Recipe::from_stored(unknown), None, "{unknown:?}");
        }
    }

    #[test]
    fn a_fingerprint_under_a_secret_that_is_gone_cannot_be_made() {
        let (old, new) = (Secret::new("old"), Secret::new("new"));
        let recipe = Recipe::new(FingerprintRules::default(), Some(&old));
        let with = |secrets: Vec<Secret>| recipe.fingerprint(&parts("{}"), &Secrets::new(secrets));
        assert_eq!(with(vec![new.clone()]), None);
        assert_eq!(with(vec![new, old.clone()]), with(vec![old]));
    }
}
