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
