//! Choices: values that are written as one of a few words.

use oncegate_domain::fingerprint::BodyRule;
use oncegate_domain::key::KeySyntax;
use oncegate_domain::response_policy::{OnUnknown, ResponseVerdict};
use oncegate_domain::route_table::Spelling;
use oncegate_trust::tls::ClientCertificates;

/// A value that is written as a word.
pub trait Word: Copy + PartialEq + 'static {
    /// The words, in the order in which messages and documents list them.
    const WORDS: &'static [&'static str];
    /// The values, in the same order.
    const VALUES: &'static [Self];

    /// The value that a word stands for.
    fn parse(word: &str) -> Option<Self> {
        Self::WORDS.iter().position(|known| *known == word).map(|index| Self::VALUES[index])
    }

    /// The word of the value.
    fn word(self) -> &'static str;
}

/// Declares an enum whose values are written as words, or gives words to one that exists.
#[macro_export]
macro_rules! words {
    ($(#[$meta:meta])* pub enum $name:ident { $($(#[doc = $doc:literal])+ $value:ident = $word:literal),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[doc = $doc])+ $value),+ }

        $crate::words! { $name { $($value = $word),+ } }
    };
    ($($name:ident { $($value:ident = $word:literal),+ $(,)? })+) => { $(
        impl $crate::Word for $name {
            const WORDS: &'static [&'static str] = &[$($word),+];
            const VALUES: &'static [Self] = &[$(Self::$value),+];

            fn word(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }
    )+ };
}

words! {
    BodyRule { Auto = "auto", Json = "json", Jsonrpc = "jsonrpc", Graphql = "graphql", Form = "form", Raw = "raw", None = "none" }
    ClientCertificates { Required = "required", Optional = "optional" }
    KeySyntax { Ietf = "ietf", SfString = "sf-string", Opaque = "opaque", Uuid = "uuid" }
    OnUnknown { Hold = "hold", Retry = "retry", RetryWhenQuiet = "retry-when-quiet", Vendor = "vendor" }
    ResponseVerdict { Store = "store", Release = "release", Unknown = "unknown" }
    Spelling { Refuse = "refuse", Same = "same", Pass = "pass" }
}

/// Joins words to "`a`, `b` or `c`".
pub fn one_of(words: &[&str]) -> String {
    let quoted: Vec<_> = words.iter().map(|word| format!("`{word}`")).collect();
    match quoted.split_last() {
        Some((last, before)) if !before.is_empty() => format!("{} or {last}", before.join(", ")),
        _ => quoted.concat(),
    }
}
