//! Determines the effect of a statement on a server with PostgreSQL's own grammar. The system
//! catalog is not consulted.
//!
//! The grammar is that of PostgreSQL 18, in C, wrapped by the crate `pg_query`; the feature
//! `grammar` compiles it. Parsing a statement takes tens of microseconds, so [`EffectClassifier`]
//! caches the result for each statement shape.
//!
//! An analysis of the text alone cannot be exact. It is cautious, with four exceptions: a function
//! with a known name is assumed to be PostgreSQL's own, operators and casts are assumed to be
//! harmless, a view is assumed to be a table, and `t.name` is assumed to be a column, although
//! PostgreSQL reads it as the call `name(t)` if the table has no such column. Only a session with
//! `default_transaction_read_only` closes these gaps; [`StatementEffect::allows_writes`] detects
//! statements that undo this setting.

use std::{collections::HashMap, sync::Arc};

use pg_query::protobuf::{Node, ParseResult};

use crate::{
    Fingerprint, Fingerprinter, Lexer, TokenKind, functions::is_side_effect_free, split_statements,
};

mod read_write;
mod session_effects;
mod statement;
mod tree;

pub use session_effects::session_effects;
pub use tree::visit;

/// The effect of a text of one or more statements on a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// The text only reads, or changes only its own session: transactions, settings, cursors, and
    /// prepared statements that read.
    ReadOnly,
    /// The text changes, or may change, data, the schema or the server's state, or notifies other
    /// sessions.
    Writes,
    /// The text reads, and takes locks that block other sessions: `FOR UPDATE`, `LOCK TABLE`.
    Locks,
    /// The text runs a function, procedure or code block that is not known to be harmless.
    UnknownFunction,
    /// PostgreSQL's grammar rejects the text, or it is nested too deeply to analyze.
    Unreadable,
}

/// The effect of a text, and the names of session objects that it uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatementEffect {
    /// The combined effect of all statements: the effect of the first one that does more than read.
    pub effect: Effect,
    /// Names of session objects that the text creates, uses or drops, in order.
    pub names: Vec<NameUse>,
    /// Whether the text can make transactions read-write that `default_transaction_read_only` made
    /// read-only, as can `BEGIN READ WRITE`, `SET TRANSACTION READ WRITE`, or `SET` or `set_config`
    /// of the setting.
    pub allows_writes: bool,
}

/// A use of a session object's name by a statement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameUse {
    /// `PREPARE name`, `DECLARE name`.
    Creates(SessionObject),
    /// `EXECUTE name`, `FETCH FROM name`.
    Uses(SessionObject),
    /// `DEALLOCATE name`, `CLOSE name`.
    Drops(SessionObject),
    /// `DEALLOCATE ALL`, `CLOSE ALL`, `DISCARD ALL`.
    DropsAll(NameKind),
}

/// A prepared statement or cursor of a session, identified by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SessionObject {
    /// The kind of object.
    pub kind: NameKind,
    /// The name, case-folded as by the server.
    pub name: Box<str>,
}

/// A kind of named session object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// A prepared statement, from SQL or from the protocol: both share one namespace.
    Statement,
    /// A cursor, declared in SQL.
    Cursor,
}

/// Classifies a text without a cache. See [`EffectClassifier`].
///
/// ```
/// use howdah_sql::grammar::{Effect, classify};
///
/// assert_eq!(classify(b"select * from t where id = $1").effect, Effect::ReadOnly);
/// assert_eq!(classify(b"with d as (delete from t returning *) select * from d").effect, Effect::Writes);
/// assert_eq!(classify(b"select * from t for update").effect, Effect::Locks);
/// ```
pub fn classify(sql: &[u8]) -> StatementEffect {
    match tree(sql) {
        Some(tree) => {
            let allows_writes = read_write::allows_writes(sql, &tree);
            StatementEffect { allows_writes, ..statement::classify_all(&tree) }
        }
        None => {
            StatementEffect { effect: Effect::Unreadable, names: Vec::new(), allows_writes: false }
        }
    }
}

/// Parses a text with PostgreSQL's grammar; `None` if the grammar rejects the text, or it is nested
/// too deeply to be parsed.
///
/// Invalid UTF-8 is replaced by U+FFFD first, so positions in the tree are positions in the text
/// only if the text is UTF-8.
pub fn tree(sql: &[u8]) -> Option<ParseResult> {
    // Quotes and keywords are ASCII in every server encoding, so replacing invalid UTF-8 does not
    // change the structure of the text.
    let tree = parse(&String::from_utf8_lossy(sql))?;
    // The parser may return an empty tree for texts that are nested beyond its stack.
    (!tree.stmts.is_empty() || split_statements(sql).next().is_none()).then_some(tree)
}

/// A predicate that tells whether a function has no side effects. Its argument is the parts of the
/// function's name: `["lower"]`, `["app", "total"]`.
pub type SideEffectFree<'f> = &'f dyn Fn(&[&str]) -> bool;

/// Returns the effect of one statement of a [`tree()`]; `harmless` decides which functions have no
/// side effects.
pub fn statement_effect(statement: &Node, harmless: SideEffectFree<'_>) -> Effect {
    statement::classify_statement(statement, &mut Vec::new(), harmless)
}

/// Returns the parse tree of a text, if the grammar accepts it.
fn parse(sql: &str) -> Option<ParseResult> {
    // `pg_query` also collects names from the tree, and panics on trees that it does not expect.
    let parsed = std::panic::catch_unwind(|| pg_query::parse(sql, 0));
    parsed.ok()?.ok().map(|result| result.protobuf)
}

/// Classifies texts, and caches the result for each shape.
///
/// Texts of one shape differ in literals, and in the names of savepoints and of statements to
/// deallocate. These matter only in options of EXPLAIN, in values of the read-only settings and in
/// DEALLOCATE, so texts with one of these are not cached. Nor are texts that the server rejects
/// although they have the shape of a valid text.
#[derive(Debug, Default)]
pub struct EffectClassifier {
    fingerprinter: Fingerprinter,
    cache: HashMap<Fingerprint, Arc<StatementEffect>>,
}

/// Maximum number of cached shapes; the cache is cleared when it is full.
const CACHED_MAX: usize = 64 << 10;

impl EffectClassifier {
    /// Returns the same result as [`classify()`], from the cache if possible.
    pub fn classify(&mut self, sql: &[u8]) -> Arc<StatementEffect> {
        let shape = self.fingerprinter.shape(sql);
        if shape.normal.contains("explain") || shape.normal.contains("deallocate") {
            return Arc::new(classify(sql));
        }
        if read_write::depends_on_constants(sql) {
            return Arc::new(classify(sql));
        }
        // The server rejects a zero byte even in a comment, which the shape leaves out.
        if !is_lexically_complete(sql) || has_numeric_junk(sql) || sql.contains(&0) {
            return Arc::new(classify(sql));
        }
        if let Some(effect) = self.cache.get(&shape.fingerprint) {
            return Arc::clone(effect);
        }
        let judgement = Arc::new(classify(sql));
        if self.cache.len() >= CACHED_MAX {
            self.cache.clear();
        }
        self.cache.insert(shape.fingerprint, Arc::clone(&judgement));
        judgement
    }
}

/// Whether the text ends outside constants, quoted names and comments. A text that ends inside one
/// is rejected by the server, but may have the shape of a valid text.
fn is_lexically_complete(sql: &[u8]) -> bool {
    let last = Lexer::new(sql).last().map_or(&b""[..], |token| token.text);
    let ended = [last, b"\n;"].concat();
    Lexer::new(&ended).last().is_some_and(|token| token.text == b";")
}

/// Whether an alphabetic character directly follows a number or a placeholder, as in `select 1from
/// t`. The scanner rejects this (`integer_junk`, `param_junk` in scan.l) although the shape is that
/// of `select 1 from t`.
fn has_numeric_junk(sql: &[u8]) -> bool {
    let mut before = None;
    Lexer::new(sql).any(|token| {
        let ends_in_digit = matches!(before, Some(TokenKind::Number | TokenKind::Placeholder));
        before = Some(token.kind);
        let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_' || *byte >= 0x80;
        ends_in_digit && token.text.first().is_some_and(is_letter)
    })
}

#[cfg(test)]
mod tests;
