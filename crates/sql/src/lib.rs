//! SQL text, seen as tokens: normal form, fingerprint, leading command, placeholders.
//!
//! Everything works on bytes, because a statement in a log or on the wire is in the encoding of its
//! database, and nothing here fails: text that PostgreSQL would refuse gets a normal form like any
//! other, in time linear to its length. What the crate is *not*: a parser. It knows PostgreSQL's
//! lexical rules (manual, section 4.1) and a few words of its grammar, never what a name refers to.
//! The feature `grammar` brings PostgreSQL's own parser, and with it the module `grammar`, for the one question that
//! needs it: whether a statement changes anything.
//!
//! ```
//! let literal = howdah_sql::fingerprint(b"SELECT * FROM orders WHERE id = 42 -- by key");
//! let bound = howdah_sql::fingerprint(b"select * from orders where id = $1");
//! assert_eq!(literal, bound);
//! assert_eq!(howdah_sql::normalize(b"SELECT 1;"), "select ?");
//! ```

mod cache;
mod command;
mod fingerprint;
mod functions;
#[cfg(feature = "grammar")]
pub mod grammar;
mod lexer;
mod normal;
mod placeholder;
mod skeleton;
mod split;
mod transaction;
mod words;

pub use cache::{Fingerprinter, Known};
pub use command::Command;
pub use fingerprint::{Fingerprint, ParseFingerprintError, fingerprint};
pub use functions::{is_side_effect_free, is_side_effect_free_builtin};
pub use lexer::{Lexer, Token, TokenKind};
pub use normal::{normalize, normalize_into};
pub use placeholder::placeholder_count;
pub use skeleton::ParameterizedText;
pub use split::{Statements, split_statements};
pub use transaction::TransactionBlock;
