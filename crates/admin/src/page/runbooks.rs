//! The runbooks: the pages to which the alerts lead.

/// Defines the table of the runbooks from the names of their files.
macro_rules! runbooks {
    ($($name:literal),+ $(,)?) => {
        const RUNBOOKS: &[(&str, &str)] = &[
            $(($name, include_str!(concat!("../../../../docs/runbooks/", $name, ".md")))),+
        ];
    };
}

runbooks![
    "consumer",
    "dead-keys",
    "down",
    "error-budget",
    "events",
    "issuer",
    "key-misuse",
    "lease-lost",
    "reload-failed",
    "replay-jump",
    "routes-differ",
    "store-clock",
    "store-trouble",
    "two-primaries",
    "unknown-keys",
];

pub(super) fn find(name: &str) -> Option<&'static str> {
    RUNBOOKS.iter().find(|(known, _)| *known == name).map(|(_, text)| *text)
}
