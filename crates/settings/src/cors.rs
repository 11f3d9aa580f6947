//! The origins whose pages may read answers of Oncegate's own.

use std::fmt;

/// The origins whose pages may read Oncegate's own answers and its replays.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CorsPolicy {
    /// The origins, in lower case.
    pub origins: Vec<Box<str>>,
    /// Whether `*` is one of them.
    pub is_any: bool,
    /// Whether such a page may send cookies and read the answer.
    pub credentials: bool,
}

impl CorsPolicy {
    /// Whether pages of this origin may read the answers. `null` stands for many origins and is never one of the list.
    pub fn allows(&self, origin: &[u8]) -> bool {
        self.is_any || self.origins.iter().any(|allowed| allowed.as_bytes().eq_ignore_ascii_case(origin))
    }

    /// Whether it allows no origin at all.
    pub fn is_empty(&self) -> bool {
        self.origins.is_empty() && !self.is_any
    }
}

/// The origins, as in the configuration.
impl fmt::Display for CorsPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let any = self.is_any.then_some("*");
        let origins: Vec<_> = any.into_iter().chain(self.origins.iter().map(|origin| &**origin)).collect();
        f.write_str(&origins.join(", "))?;
        f.write_str(if self.credentials { ", with cookies" } else { "" })
    }
}
