//! SQL text as tokens: normal form, fingerprint, leading command, placeholders.
//!
//! All functions work on bytes, because a statement in a log or on the wire is in the encoding of
//! its database or client. They accept any text: even text that PostgreSQL would reject gets a
//! normal form, in time linear in its length. The crate is not a parser. It implements PostgreSQL's
//! lexical rules (manual, section 4.1) and a few keywords of its grammar, but does not resolve
//! names. The feature `grammar` adds PostgreSQL's own parser, and the module `grammar`, which
//! determines whether a statement changes anything, and what it leaves in its session.
//!
//! ```
//! let literal = howdah_sql::fingerprint(b"SELECT * FROM orders WHERE id = 42 -- by key");
//! let bound = howdah_sql::fingerprint(b"select * from orders where id = $1");
//! assert_eq!(literal, bound);
//! assert_eq!(howdah_sql::normalize(b"SELECT 1;"), "select ?");
//! ```

mod cache;
mod client_copy;
mod command;
mod encoding;
mod fingerprint;
mod functions;
#[cfg(feature = "grammar")]
pub mod grammar;
mod keywords;
mod lexer;
mod normal;
mod parameterized;
mod parameterized_cache;
mod placeholder;
mod session_effects;
mod split;
mod transaction;

pub use cache::{CachedShape, Fingerprinter};
pub use client_copy::ClientCopy;
pub use command::SqlCommand;
pub use encoding::may_hide_ascii;
pub use fingerprint::{Fingerprint, ParseFingerprintError, fingerprint};
pub use functions::{is_builtin, is_side_effect_free, is_side_effect_free_builtin};
pub use lexer::{Lexer, SqlToken, TokenKind};
pub use normal::{normalize, normalize_into};
pub use parameterized::ParameterizedText;
pub use parameterized_cache::{Analyzed, ParameterizedCache};
pub use placeholder::placeholder_count;
pub use session_effects::{FUNCTIONS_MAX, SessionEffects, StateKinds, UndetectableState};
pub use split::{Statements, split_statements};
pub use transaction::TransactionBlock;
