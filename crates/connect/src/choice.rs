//! Enums for keywords with a fixed set of values: variants, keywords and parsing in one place.

/// Defines an enum whose variants each correspond to a keyword.
macro_rules! choice {
    (
        $(#[$docs:meta])*
        pub enum $name:ident { $( $(#[$variant_docs:meta])* $variant:ident = $word:literal, )+ }
    ) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $( $(#[$variant_docs])* $variant, )+ }

        impl $name {
            /// The list of valid values, for error messages.
            pub const EXPECTED: &'static str =
                concat!("one of:", $(" ", $word),+);

            /// Returns the keyword in a connection string.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }

            /// Parses a keyword; `None` if it is not in [`Self::EXPECTED`].
            pub fn parse(word: &str) -> Option<Self> {
                match word { $( $word => Some(Self::$variant), )+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }
    };
}

pub(crate) use choice;
