//! Declares the options of the file: the only place that has each one's kind, default and meaning.
//!
//! [`options!`] declares the options of one table. A declaration is also the option's reading, its entry in the JSON
//! Schema, its line in `config/reference.toml`, and its row in `docs/configuration.md`.

/// Declares the options of a table: `KEYS`, which describes them, and `read`, which makes a struct of their values: one
/// that exists after a `for`, or else this one.
///
/// An option is its meaning, `name: kind = default`, and `=> type, reader(arguments)`: a method of
/// [`Section`](super::reader::Section) that gets the name first. After a `for`, the struct has the type. An option
/// without a default must be written. An option without a reader has no field: the module of its table reads it.
macro_rules! options {
    ($(#[$meta:meta])* struct $table:ident for $values:ident { $(
        $(#[doc = $about:literal])+
        $key:ident: $kind:ident $(($($of:tt)*))? $(= $default:tt)? $(=> $reader:ident($($argument:tt)*))?;
    )+ }) => {
        $(#[$meta])*
        pub(super) struct $table;

        $crate::options::options! { impl $table for $values { $(
            $(#[doc = $about])+ $key: $kind $(($($of)*))? $(= $default)? $(=> $reader($($argument)*))?;
        )+ } }
    };
    ($(#[$meta:meta])* struct $table:ident { $(
        $(#[doc = $about:literal])+
        $key:ident: $kind:ident $(($($of:tt)*))? $(= $default:tt)? $(=> $type:ty, $reader:ident($($argument:tt)*))?;
    )+ }) => {
        $(#[$meta])*
        pub(super) struct $table {
            $($(pub $key: $type,)?)+
        }

        $crate::options::options! { impl $table for $table { $(
            $(#[doc = $about])+ $key: $kind $(($($of)*))? $(= $default)? $(=> $reader($($argument)*))?;
        )+ } }
    };
    (impl $table:ident for $values:ident { $(
        $(#[doc = $about:literal])+
        $key:ident: $kind:ident $(($($of:tt)*))? $(= $default:tt)? $(=> $reader:ident($($argument:tt)*))?;
    )+ }) => {
        impl $table {
            /// The options, in the order in which documents list them.
            pub(super) const KEYS: &'static [$crate::key_doc::KeyDoc] = &[$($crate::key_doc::KeyDoc {
                name: stringify!($key),
                kind: $crate::key_doc::ValueKind::$kind $(($($of)*))?,
                default: [$(Some(stringify!($default)),)? None][0],
                about: concat!($($about),+).trim_ascii_start(),
            }),+];

            /// Reads every option, whatever problems the others have.
            pub(super) fn read(section: &$crate::reader::Section<'_>) -> $values {
                $values { $($($key: section.$reader(stringify!($key), $($argument)*),)?)+ }
            }
        }
    };
}

pub(super) use options;
