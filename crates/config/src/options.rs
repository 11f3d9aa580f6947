//! Declares the options of the file: the only place that has each one's name, kind, default and meaning.
//!
//! [`options!`] declares the options of one table. A declaration is also the option's field and its reading, its entry in
//! the JSON Schema, its line in `config/reference.toml`, its row in `docs/configuration.md`, and, for an option of a route,
//! the name under which `oncegate check` and the page of routes show it.

/// Declares the options of a table: `KEYS`, which describes them, and a struct with their values, which `read` fills.
///
/// An option is its meaning, `name: kind = default`, for an option of a route `as "setting"`, and
/// `=> type, reader(arguments)`: a method of [`Section`](super::reader::Section) that gets the name first. An option
/// without a default must be written. An option without a reader has no field: the module of its table reads it.
macro_rules! options {
    ($(#[$meta:meta])* $visibility:vis struct $table:ident { $(
        $(#[doc = $about:literal])+
        $key:ident: $kind:ident $(($($of:tt)*))? $(= $default:tt)? $(as $label:literal)?
            $(=> $type:ty, $reader:ident($($argument:tt)*))?;
    )+ }) => {
        $(#[$meta])*
        #[allow(missing_docs, reason = "the meaning of an option is the comment of its declaration")]
        $visibility struct $table {
            $($(pub $key: $type,)?)+
        }

        impl $table {
            /// The options, in the order in which documents list them.
            pub(super) const KEYS: &'static [$crate::key_doc::KeyDoc] = &[$($crate::key_doc::KeyDoc {
                name: stringify!($key),
                kind: $crate::key_doc::ValueKind::$kind $(($($of)*))?,
                default: [$(Some(stringify!($default)),)? None][0],
                about: concat!($($about),+).trim_ascii_start(),
                label: [$(Some($label),)? None][0],
            }),+];

            /// Reads every option, whatever problems the others have.
            pub(super) fn read(section: &$crate::reader::Section<'_>) -> Self {
                Self { $($($key: section.$reader(stringify!($key), $($argument)*),)?)+ }
            }
        }
    };
}

pub(super) use options;
