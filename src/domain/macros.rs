//! Macros for the parts that many types have.

/// Defines an enum whose values have names, each written once beside its value: `ALL`, `name` and `parse`.
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
pub(crate) use named;

/// Shows a type in `{:?}` as in `{}`.
macro_rules! debug_as_display {
    ($type:ident) => {
        impl std::fmt::Debug for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                std::fmt::Display::fmt(self, f)
            }
        }
    };
}
pub(crate) use debug_as_display;

/// Gives a type of 32 bytes its stored form, and hexadecimal digits as its text.
macro_rules! hex_bytes {
    ($type:ident) => {
        impl $type {
            /// The bytes as they are stored.
            pub fn as_bytes(&self) -> &[u8; 32] {
                &self.0
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(data_encoding::HEXLOWER.encode_mut_str(&self.0, &mut [0; 64]))
            }
        }

        $crate::domain::macros::debug_as_display!($type);
    };
}
pub(crate) use hex_bytes;
