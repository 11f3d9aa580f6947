//! Macros for the parts that many types have.

/// Defines an enum whose values have names, each written once beside its value: `ALL`, `name` and `parse`.
#[macro_export]
macro_rules! named {
    ($(#[$about:meta])* $vis:vis enum $type:ident { $($(#[$doc:meta])* $value:ident => $name:literal),+ $(,)? }) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $type { $($(#[$doc])* $value),+ }

        #[allow(dead_code)]
        impl $type {
            /// All values, each once, in the order in which the source lists them.
            $vis const ALL: [Self; [$($name),+].len()] = [$(Self::$value),+];

            /// The name.
            $vis const fn name(self) -> &'static str {
                match self { $(Self::$value => $name),+ }
            }

            /// Reads a name; `None` if no value has it.
            $vis fn parse(name: &str) -> Option<Self> {
                Self::ALL.into_iter().find(|value| value.name() == name)
            }
        }
    };
}
pub use named;

/// Shows a type in `{:?}` as in `{}`.
#[macro_export]
macro_rules! debug_as_display {
    ($type:ident) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub use debug_as_display;

/// Defines a type of 32 bytes, whose text is hexadecimal digits.
#[macro_export]
macro_rules! hex_bytes {
    ($(#[$about:meta])* pub struct $type:ident;) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, derive_more::Debug, derive_more::Display)]
        #[debug("{self}")]
        #[display("{}", data_encoding::HEXLOWER.encode_display(_0))]
        pub struct $type([u8; 32]);

        impl $type {
            pub fn from_stored(bytes: &[u8]) -> Option<Self> {
                bytes.try_into().ok().map(Self)
            }

            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }
    };
}
pub use hex_bytes;
