//! The places that a route's values come from.

use std::collections::BTreeMap;

/// A place that a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ValueOrigin {
    /// A flag or an environment variable.
    External,
    /// The route itself.
    Route,
    /// `[defaults]`.
    Defaults,
    /// The table of its service.
    Service,
    /// A key at the top of the file.
    Top,
    /// A preset, with the key that names it: `dialect` or `kind`.
    Preset(&'static str),
    /// The default of the program.
    BuiltIn,
}

impl ValueOrigin {
    /// The place as people read it.
    pub fn name(self) -> &'static str {
        match self {
            Self::External => "flag or variable",
            Self::Route => "route",
            Self::Defaults => "[defaults]",
            Self::Service => "[[services]]",
            Self::Top => "top of the file",
            Self::Preset(key) => key,
            Self::BuiltIn => "built-in",
        }
    }
}

/// The keys of a route that are written somewhere, such as `key.required`, each with the place that its value comes
/// from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ValueOrigins(BTreeMap<String, ValueOrigin>);

impl ValueOrigins {
    /// Notes a written key, unless a place that comes before is noted already.
    pub fn note(&mut self, key: String, origin: ValueOrigin) {
        self.0.entry(key).or_insert(origin);
    }

    /// Forgets a key whose written value stands for a fallback.
    pub fn forget(&mut self, key: &str) {
        self.0.remove(key);
    }

    /// Adds those of the fallbacks that are, or are in, one of these keys.
    pub fn add_fallbacks(&mut self, fallbacks: &Self, keys: &[&str]) {
        for (key, origin) in fallbacks.0.iter().filter(|(key, _)| keys.iter().any(|whole| is_part_of(key, whole))) {
            self.note(key.clone(), *origin);
        }
    }

    /// The places of the values that are, or are in, one of these keys, the one that counts first before the others,
    /// each with its written keys. Only [`ValueOrigin::BuiltIn`], without keys, where none is written.
    pub fn find(&self, keys: &[&str]) -> Vec<(ValueOrigin, Vec<&str>)> {
        let mut found = BTreeMap::<_, Vec<_>>::new();
        for (key, origin) in self.0.iter().filter(|(key, _)| keys.iter().any(|whole| is_part_of(key, whole))) {
            found.entry(*origin).or_default().push(&**key);
        }
        if found.is_empty() { vec![(ValueOrigin::BuiltIn, Vec::new())] } else { found.into_iter().collect() }
    }
}

/// Whether a key is another one, or is in its table.
fn is_part_of(key: &str, whole: &str) -> bool {
    key.strip_prefix(whole).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_comes_from_the_first_place_that_has_it() {
        let mut origins = ValueOrigins::default();
        origins.note("ttl".into(), ValueOrigin::Route);
        origins.note("ttl".into(), ValueOrigin::Defaults);
        origins.note("key.required".into(), ValueOrigin::Defaults);
        origins.note("key_path".into(), ValueOrigin::Route);
        let mut top = ValueOrigins::default();
        for key in ["cors.origins", "limits.connections", "upstream", "upstream_tls.ca"] {
            top.note(key.into(), ValueOrigin::Top);
        }
        origins.note("upstream".into(), ValueOrigin::Route);
        origins.forget("upstream");
        origins.add_fallbacks(&top, &["cors", "upstream"]);
        assert_eq!(origins.find(&["ttl", "remember"]), [(ValueOrigin::Route, vec!["ttl"])]);
        assert_eq!(origins.find(&["key"]), [(ValueOrigin::Defaults, vec!["key.required"])]);
        assert_eq!(origins.find(&["limits"]), [(ValueOrigin::BuiltIn, vec![])]);
        assert_eq!(
            origins.find(&["upstream", "cors", "ttl"]),
            [(ValueOrigin::Route, vec!["ttl"]), (ValueOrigin::Top, vec!["cors.origins", "upstream"])]
        );
    }
}
