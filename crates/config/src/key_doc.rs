//! The description of an option, beside its reading.

/// An option: a key of a table.
#[derive(Clone, Copy, Debug)]
pub struct KeyDoc {
    /// The name in the file.
    pub name: &'static str,
    /// The kind of its value.
    pub kind: ValueKind,
    /// The default, as TOML; `None` for a key that must be written.
    pub default: Option<&'static str>,
    /// Its meaning, in one line.
    pub about: &'static str,
}

/// The kind of a key's value.
#[derive(Clone, Copy, Debug)]
pub enum ValueKind {
    /// `true` or `false`.
    Boolean,
    /// A text that may hold a password: a problem of it does not show it.
    Concealed,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A text such as `30s`.
    Duration,
    /// A table of texts that may hold passwords, by the names of fields: a problem of one does not show it.
    Fields,
    /// A whole number.
    Integer,
    /// A text that begins with `/`: the path of a route.
    Path,
    /// A place of a request or a message, or one of these words; several joined by `+` where `about` says so.
    Place(&'static [&'static str]),
    /// A list of such places.
    Places(&'static [&'static str]),
    /// Such a place, or a list of them.
    PlaceOrPlaces,
    /// A table of tables with these keys. `about` describes their names.
    Named(&'static [KeyDoc]),
    /// A text, a number or a boolean.
    Scalar,
    /// A text such as `64KiB`.
    Size,
    /// A table with these keys.
    Table(&'static [KeyDoc]),
    /// Any number of tables with these keys.
    Tables(&'static [KeyDoc]),
    /// A text whose form `about` describes.
    Text,
    /// A list of such texts.
    Texts,
    /// Such a text, or a list of them.
    TextOrTexts,
}
