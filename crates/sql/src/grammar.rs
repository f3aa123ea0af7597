//! What a statement may do to a server, by PostgreSQL's own grammar. Not what it means: no catalog is
//! asked, so names are taken at their word.
//!
//! The grammar is that of PostgreSQL 18, in C, by way of `pg_query`; the feature `grammar` compiles it.
//! A parse costs tens of microseconds, so [`Judge`] remembers the answer for each shape of statement.
//!
//! What follows from the text alone has limits, all on the safe side but four: a function that is
//! known by name is taken to be PostgreSQL's own, operators and casts are taken to be harmless, a
//! view is taken for a table, and `t.name` for a column, which PostgreSQL takes for the call `name(t)`
//! where the table has no such column. Only a server that refuses writes closes these: see
//! [`Judgement::allows_writes`] for what would undo that.

use std::{collections::HashMap, sync::Arc};

use pg_query::protobuf::{Node, ParseResult};

use crate::{
    Fingerprint, Fingerprinter, Lexer, TokenKind, functions::is_side_effect_free, split_statements,
};

mod read_write;
mod statement;
mod tree;

pub use tree::visit;

/// What a text of one or more statements may do to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Effect {
    /// It reads, or changes nothing but its own session: transactions, settings, cursors, and
    /// prepared statements that read.
    ReadOnly,
    /// It changes data, schema or the server, or tells other sessions something.
    Writes,
    /// It reads, and takes locks that others notice: `FOR UPDATE`, `LOCK TABLE`.
    Locks,
    /// It calls a function that is not known to be harmless.
    UnknownFunction,
    /// PostgreSQL's grammar does not accept it, or it is nested too deeply to be looked through.
    Unreadable,
}

/// What a text says, as far as [`Effect`] and names go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Judgement {
    /// The effect of all its statements together: that of the first that does more than read.
    pub effect: Effect,
    /// Names of the session that it makes, uses or drops, in order.
    pub names: Vec<NameUse>,
    /// Whether it may make transactions read-write that `default_transaction_read_only` made
    /// read-only: `BEGIN READ WRITE`, `SET TRANSACTION READ WRITE`, `set_config` of the setting.
    pub allows_writes: bool,
}

/// What a statement does with a name that its session knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NameUse {
    /// `PREPARE name`, `DECLARE name`.
    Makes(Name),
    /// `EXECUTE name`, `FETCH FROM name`.
    Uses(Name),
    /// `DEALLOCATE name`, `CLOSE name`.
    Drops(Name),
    /// `DEALLOCATE ALL`, `CLOSE ALL`.
    DropsAll(NameKind),
}

/// A name within a session.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Name {
    /// Of what.
    pub sort: NameKind,
    /// The name, as the server folds it.
    pub name: Box<str>,
}

/// What a session gives names to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NameKind {
    /// A prepared statement, of SQL or of the protocol: they share one room.
    Statement,
    /// A cursor.
    Cursor,
}

/// Judges a text without a memory. See [`Judge`].
///
/// ```
/// use howdah_sql::grammar::{Effect, judge};
///
/// assert_eq!(judge(b"select * from t where id = $1").effect, Effect::ReadOnly);
/// assert_eq!(judge(b"with d as (delete from t returning *) select * from d").effect, Effect::Writes);
/// assert_eq!(judge(b"select * from t for update").effect, Effect::Locks);
/// ```
pub fn judge(sql: &[u8]) -> Judgement {
    match tree(sql) {
        Some(tree) => {
            let allows_writes = read_write::allows_writes(sql, &tree);
            Judgement { allows_writes, ..statement::judge_all(&tree) }
        }
        None => Judgement { effect: Effect::Unreadable, names: Vec::new(), allows_writes: false },
    }
}

/// The tree of a text, as PostgreSQL's grammar has it; nothing where [`judge`] says that it is unreadable.
///
/// What is not UTF-8 becomes U+FFFD first; so places in the tree are places in the text only if it is UTF-8.
pub fn tree(sql: &[u8]) -> Option<ParseResult> {
    // Quotes and words are ASCII in every encoding of a server, so what is not UTF-8 can be made so
    // without moving them.
    let tree = parse(&String::from_utf8_lossy(sql))?;
    // On texts that are nested beyond its stack the parser may give an empty tree.
    (!tree.stmts.is_empty() || split_statements(sql).next().is_none()).then_some(tree)
}

/// Whether a function changes nothing, by the parts of its name: `["lower"]`, `["app", "total"]`.
pub type SideEffectFree<'f> = &'f dyn Fn(&[&str]) -> bool;

/// What one statement of a [`tree()`] may do, by the caller's own word on functions.
pub fn effect_of_statement(statement: &Node, harmless: SideEffectFree<'_>) -> Effect {
    statement::judge_one(statement, &mut Vec::new(), harmless)
}

/// The tree of a text, if the grammar gives one.
fn parse(sql: &str) -> Option<ParseResult> {
    // `pg_query` also collects names from the tree, and panics on trees that it does not expect.
    let parsed = std::panic::catch_unwind(|| pg_query::parse(sql, 0));
    parsed.ok()?.ok().map(|result| result.protobuf)
}

/// Judges texts, and remembers the judgement of each shape.
///
/// Literals decide nothing, save in the options of EXPLAIN and in the values of settings; and the names of
/// what is to be deallocated are no part of a shape. Texts with one of these words are parsed each time.
#[derive(Debug, Default)]
pub struct Judge {
    fingerprinter: Fingerprinter,
    known: HashMap<Fingerprint, Arc<Judgement>>,
}

/// Shapes that are remembered, at most; then all are forgotten.
const KNOWN_MAX: usize = 64 << 10;

impl Judge {
    /// What [`judge`] says of `sql`.
    pub fn judge(&mut self, sql: &[u8]) -> Arc<Judgement> {
        let shape = self.fingerprinter.shape(sql);
        if shape.normal.contains("explain") || shape.normal.contains("deallocate") {
            return Arc::new(judge(sql));
        }
        if read_write::depends_on_constants(sql) {
            return Arc::new(judge(sql));
        }
        // A zero byte is nowhere allowed, not even in a comment, of which a shape knows nothing.
        if !is_whole(sql) || has_junk(sql) || sql.contains(&0) {
            return Arc::new(judge(sql));
        }
        if let Some(known) = self.known.get(&shape.fingerprint) {
            return Arc::clone(known);
        }
        let judgement = Arc::new(judge(sql));
        if self.known.len() >= KNOWN_MAX {
            self.known.clear();
        }
        self.known.insert(shape.fingerprint, Arc::clone(&judgement));
        judgement
    }
}

/// Whether the text does not end within a constant, a name or a comment. One that does may have the shape
/// of one that does not.
fn is_whole(sql: &[u8]) -> bool {
    let last = Lexer::new(sql).last().map_or(&b""[..], |token| token.text);
    let ended = [last, b"\n;"].concat();
    Lexer::new(&ended).last().is_some_and(|token| token.text == b";")
}

/// Whether a letter follows a number or a placeholder at once, as in `select 1from t`, which the scanner
/// refuses (`integer_junk`, `param_junk` in scan.l) though its shape is that of `select 1 from t`.
fn has_junk(sql: &[u8]) -> bool {
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
