//! Keywords whose value is one of a few words: an enum, its words and how they are read, once.

/// Defines an enum whose variants each stand for a word.
macro_rules! choice {
    (
        $(#[$docs:meta])*
        pub enum $name:ident { $( $(#[$variant_docs:meta])* $variant:ident = $word:literal, )+ }
    ) => {
        $(#[$docs])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $( $(#[$variant_docs])* $variant, )+ }

        impl $name {
            /// What an error says was expected.
            pub const EXPECTED: &'static str =
                concat!("one of:", $(" ", $word),+);

            /// The word that stands for it in a connection string.
            pub const fn as_str(self) -> &'static str {
                match self { $( Self::$variant => $word, )+ }
            }

            /// What a word stands for, if anything.
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
