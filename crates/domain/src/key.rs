//! The idempotency key: the client's name for one operation.

use data_encoding::HEXLOWER;

use super::macros::named;
use super::scope::Salt;
use super::urlencoded::escape;

/// A checked idempotency key. A value of this type is the proof that the key is well-formed and within its limits.
/// Anybody who knows a key can get its replays: only its beginning is printed.
#[derive(Clone, PartialEq, Eq, Hash, derive_more::Debug)]
#[debug("Key({})", self.prefix())]
pub struct Key(Box<str>);

impl Key {
    /// Reads a key from its field's value. An error is the rule that the value breaks.
    pub fn parse(value: &[u8], syntax: KeySyntax, limits: KeyLimits) -> Result<Self, KeyError> {
        // Space and tab around a value are not part of it (RFC 9110, section 5.5).
        let value = trim_blanks(value);
        let key = match syntax {
            KeySyntax::Ietf if value.first() == Some(&b'"') => sf_string(value)?,
            KeySyntax::Ietf => plain(value, 0x21)?,
            KeySyntax::Opaque => plain(value, 0x20)?,
            KeySyntax::SfString if value.is_empty() => return Err(KeyError::Empty),
            KeySyntax::SfString => sf_string(value)?,
            KeySyntax::Uuid if value.first() == Some(&b'"') => uuid(sf_string(value)?)?,
            KeySyntax::Uuid => uuid(plain(value, 0x21)?)?,
        };
        Self::within(limits, key)
    }

    /// Reads a key from another place than a field. The place does not count in a comparison, so that nothing else
    /// would tell two spellings apart: quotes and blanks are a part of the key. An error is the rule that the value
    /// breaks.
    pub fn parse_exact(value: &[u8], syntax: KeySyntax, limits: KeyLimits) -> Result<Self, KeyError> {
        let key = match syntax {
            KeySyntax::Ietf => plain(value, 0x21)?,
            KeySyntax::Opaque => plain(value, 0x20)?,
            KeySyntax::SfString if value.is_empty() => return Err(KeyError::Empty),
            KeySyntax::SfString => sf_string(value)?,
            KeySyntax::Uuid => uuid(plain(value, 0x21)?)?,
        };
        Self::within(limits, key)
    }

    fn within(limits: KeyLimits, key: String) -> Result<Self, KeyError> {
        if key.is_empty() {
            return Err(KeyError::Empty);
        }
        let key = Self(key.into());
        limits.check(&key).map(|()| key)
    }

    /// The key of values that are one key together. No other values give the same one: each is escaped, and a `+`
    /// between them is in none.
    pub fn join(values: &[&[u8]], limits: KeyLimits) -> Result<Self, KeyError> {
        let values: Vec<_> = values.iter().map(|value| escape(value)).collect();
        if values.iter().any(String::is_empty) {
            return Err(KeyError::Empty);
        }
        let key = Self(values.join("+").into());
        limits.check(&key).map(|()| key)
    }

    /// The key that stands for a secret: its hash under the service's salt, in hexadecimal digits.
    pub fn of_secret(secret: &[u8], salt: &Salt) -> Self {
        Self(HEXLOWER.encode(&salt.mac("oncegate key", [secret])).into())
    }

    pub fn from_stored(bytes: &[u8]) -> Option<Self> {
        let key = str::from_utf8(bytes).ok().filter(|key| !key.is_empty())?;
        Some(Self(key.into()))
    }

    /// The key's bytes, unquoted: the spellings `"k"` and `k` are one key.
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// The beginning, for logs: it tells keys apart and reveals none.
    pub fn prefix(&self) -> KeyPrefix {
        KeyPrefix::new(&self.0)
    }
}

/// The first eight characters of a key, with `…` where it has more: else one would search for a key that was not sent.
#[derive(Clone, Copy, Debug, Default, derive_more::Display)]
#[display("{}", self.as_str())]
pub struct KeyPrefix {
    text: [u8; KeyPrefix::BYTES_MAX],
    length: usize,
}

impl KeyPrefix {
    const CHARS_MAX: usize = 8;
    const MORE: &str = "…";
    const BYTES_MAX: usize = Self::CHARS_MAX + Self::MORE.len();

    fn new(key: &str) -> Self {
        let (shown, more) = match key.len() > Self::CHARS_MAX {
            true => (&key[..Self::CHARS_MAX], Self::MORE),
            false => (key, ""),
        };
        let (length, mut text) = (shown.len() + more.len(), [0; Self::BYTES_MAX]);
        text[..shown.len()].copy_from_slice(shown.as_bytes());
        text[shown.len()..length].copy_from_slice(more.as_bytes());
        Self { text, length }
    }

    /// The text; empty where no key is known.
    pub fn as_str(&self) -> &str {
        str::from_utf8(&self.text[..self.length]).unwrap_or_default()
    }
}

/// The beginning and the end of a key of more than `chars_max` characters, for lists: some clients begin all their keys
/// with the same word, as Stripe's do with `stripe-node-retry-`.
pub fn shorten_middle(key: &str, chars_max: usize) -> String {
    let (count, end) = (key.chars().count(), chars_max.saturating_sub(1) / 2);
    if count <= chars_max {
        return key.to_owned();
    }
    let (head, tail): (String, String) = (key.chars().take(end).collect(), key.chars().skip(count - end).collect());
    format!("{head}…{tail}")
}

named! {
    pub enum KeySyntax {
        /// A value that starts with `"` is a strict structured-field String (RFC 9651, section 4.2.5, parameters
        /// ignored), as in the IETF draft; any other value is bare, as most clients send it: 0x21-0x7E without comma.
        Ietf => "ietf",
        /// The value as it is, quotes kept and counted: 0x20-0x7E without comma, because a comma joins two field lines.
        Opaque => "opaque",
        SfString => "sf-string",
        /// A UUID (RFC 9562, section 4), bare or as a structured-field String; its letters' case makes no difference.
        Uuid => "uuid",
    }
}

/// The lengths of a key, in characters (all are ASCII) and after unquoting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyLimits {
    pub length_min: usize,
    pub length_max: usize,
}

impl KeyLimits {
    /// The limits within which all limits are: no key outside of them was ever stored.
    pub const WIDEST: Self = Self { length_min: 1, length_max: 1024 };

    /// The limits within which all limits of secrets are, of which only a hash is kept: a token with many claims has
    /// several kibibytes, and most servers take no longer fields.
    pub const WIDEST_SECRET: Self = Self { length_min: 1, length_max: 16 * 1024 };

    /// Checks the length of a key that was read within other limits.
    pub fn check(&self, key: &Key) -> Result<(), KeyError> {
        self.check_length(key.0.len())
    }

    pub fn check_length(&self, length: usize) -> Result<(), KeyError> {
        match length {
            length if length < self.length_min => Err(KeyError::TooShort),
            length if length > self.length_max => Err(KeyError::TooLong),
            _ => Ok(()),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyError {
    BadCharacter,
    /// It is no structured-field String, and begins with a quote or has to be one.
    BadString,
    Empty,
    /// The route requires a UUID.
    NotUuid,
    /// More than one field line: it is not defined which one counts.
    Several,
    TooLong,
    TooShort,
}

fn sf_string(value: &[u8]) -> Result<String, KeyError> {
    let item: sfv::Item = sfv::Parser::new(value).parse().map_err(|_| KeyError::BadString)?;
    match item.bare_item {
        sfv::BareItem::String(string) => Ok(string.as_str().to_owned()),
        _ => Err(KeyError::BadString),
    }
}

/// Removes the spaces and tabs at both ends. A line feed stays, and is refused: a service that reads the key from a
/// body may take `k` and `k\n` for two keys.
pub fn trim_blanks(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

/// Printable ASCII from `lowest` on, without comma.
fn plain(value: &[u8], lowest: u8) -> Result<String, KeyError> {
    let allowed = |byte: &u8| (lowest..=0x7e).contains(byte) && *byte != b',';
    if !value.iter().all(allowed) {
        return Err(KeyError::BadCharacter);
    }
    Ok(String::from_utf8_lossy(value).into_owned())
}

fn uuid(text: String) -> Result<String, KeyError> {
    let is_uuid = text.len() == 36
        && text.bytes().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
    match (is_uuid, text.is_empty()) {
        (true, _) => Ok(text.to_ascii_lowercase()),
        (false, true) => Err(KeyError::Empty),
        (false, false) => Err(KeyError::NotUuid),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(value: &str) -> Result<String, KeyError> {
        let limits = KeyLimits { length_min: 1, length_max: 16 };
        Key::parse(value.as_bytes(), KeySyntax::Ietf, limits).map(|key| key.0.into())
    }

    #[test]
    fn quoted_and_bare_spellings_are_one_key() {
        assert_eq!(parse("abc"), Ok("abc".into()));
        assert_eq!(parse("\"abc\""), Ok("abc".into()));
        assert_eq!(parse("\"abc\";v=1"), Ok("abc".into()));
        assert_eq!(parse(r#""a\"b\\c""#), Ok(r#"a"b\c"#.into()));
        assert_eq!(parse("  \"a b\" "), Ok("a b".into()));
        assert_eq!(parse("\t abc \t"), Ok("abc".into()));
    }

    #[test]
    fn outside_of_a_field_each_spelling_is_a_key_of_its_own() {
        let limits = KeyLimits { length_min: 1, length_max: 40 };
        let parse = |value: &str, syntax| Key::parse_exact(value.as_bytes(), syntax, limits).map(|key| key.0.into());
        for (value, ietf, opaque) in [
            ("a", Ok("a"), Ok("a")),
            ("\"a\"", Ok("\"a\""), Ok("\"a\"")),
            (" a", Err(KeyError::BadCharacter), Ok(" a")),
            ("a ", Err(KeyError::BadCharacter), Ok("a ")),
            ("a\tb", Err(KeyError::BadCharacter), Err(KeyError::BadCharacter)),
            ("", Err(KeyError::Empty), Err(KeyError::Empty)),
        ] {
            assert_eq!(parse(value, KeySyntax::Ietf), ietf.map(str::to_owned), "{value:?}");
            assert_eq!(parse(value, KeySyntax::Opaque), opaque.map(str::to_owned), "{value:?}");
        }
        let uuid = "67e55044-10b1-426f-9247-bb680e5fe0c8";
        assert_eq!(parse(uuid, KeySyntax::Uuid), Ok(uuid.to_owned()));
        assert_eq!(parse(&format!("\"{uuid}\""), KeySyntax::Uuid), Err(KeyError::NotUuid));
    }

    #[test]
    fn a_key_of_the_shortest_or_the_longest_length_is_one_and_one_beyond_is_not() {
        let limits = KeyLimits { length_min: 3, length_max: 5 };
        let parse = |value: &str| Key::parse(value.as_bytes(), KeySyntax::Ietf, limits).map(drop);
        let found = ["ab", "abc", "abcde", "abcdef"].map(parse);
        assert_eq!(found, [Err(KeyError::TooShort), Ok(()), Ok(()), Err(KeyError::TooLong)]);
    }

    #[test]
    fn a_malformed_key_is_refused_with_its_reason() {
        for (value, why) in [
            ("", KeyError::Empty),
            ("\"\"", KeyError::Empty),
            ("a b", KeyError::BadCharacter),
            ("a,b", KeyError::BadCharacter),
            ("k\u{e9}y", KeyError::BadCharacter),
            ("a\tb", KeyError::BadCharacter),
            ("abc\n", KeyError::BadCharacter),
            ("\r\nabc", KeyError::BadCharacter),
            ("\u{c}abc", KeyError::BadCharacter),
            ("\"abc\"\n", KeyError::BadString),
            ("\"abc", KeyError::BadString),
            ("\"abc\"def", KeyError::BadString),
            ("\"a\", \"b\"", KeyError::BadString),
            ("\"a\\n\"", KeyError::BadString),
            ("\"k\u{e9}y\"", KeyError::BadString),
            ("12345678901234567", KeyError::TooLong),
            ("\"12345678901234567\"", KeyError::TooLong),
        ] {
            assert_eq!(parse(value), Err(why), "{value:?}");
        }
    }

    #[test]
    fn each_syntax_accepts_its_own_keys_alone() {
        const UUID: &str = "8E03978e-40d5-43e8-bc93-6894a57f9324";
        let quoted = format!("\"{UUID}\"");
        let folded = UUID.to_ascii_lowercase();
        for (syntax, value, key) in [
            (KeySyntax::Opaque, "\"abc\";v=1", Ok("\"abc\";v=1")),
            (KeySyntax::Opaque, "a b", Ok("a b")),
            (KeySyntax::Opaque, "a,b", Err(KeyError::BadCharacter)),
            (KeySyntax::Opaque, "", Err(KeyError::Empty)),
            (KeySyntax::SfString, "\"a b\"", Ok("a b")),
            (KeySyntax::SfString, "abc", Err(KeyError::BadString)),
            (KeySyntax::SfString, "", Err(KeyError::Empty)),
            (KeySyntax::SfString, "?1", Err(KeyError::BadString)),
            (KeySyntax::Uuid, UUID, Ok(&folded)),
            (KeySyntax::Uuid, &quoted, Ok(&folded)),
            (KeySyntax::Uuid, "", Err(KeyError::Empty)),
            (KeySyntax::Uuid, "8e03978e40d543e8bc936894a57f9324", Err(KeyError::NotUuid)),
            (KeySyntax::Uuid, "8e03978e-40d5-43e8-bc93-6894a57f932g", Err(KeyError::NotUuid)),
        ] {
            let limits = KeyLimits { length_min: 1, length_max: 255 };
            let parsed = Key::parse(value.as_bytes(), syntax, limits);
            assert_eq!(parsed.as_ref().map(|key| &*key.0).map_err(|error| *error), key, "{syntax:?} {value:?}");
        }
    }

    #[test]
    fn a_key_is_never_printed_whole() {
        let limits = KeyLimits { length_min: 1, length_max: 255 };
        for (text, shown) in [("k", "k"), ("01234567", "01234567"), ("012345678", "01234567…")] {
            let key = Key::parse(text.as_bytes(), KeySyntax::Ietf, limits).unwrap();
            assert_eq!((key.prefix().as_str(), format!("{key:?}")), (shown, format!("Key({shown})")));
        }
    }
}
