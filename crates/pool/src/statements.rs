//! [`Statements`]: the texts that clients have prepared, each once for all clients and workers.

use std::{
    borrow::Borrow,
    hash::{Hash, Hasher},
    sync::{Arc, Mutex, PoisonError},
};

use hashbrown::HashSet;

use crate::{
    deallocate,
    dirt::{Dirt, SetKind},
    listen, plain,
    put_back::touches_settings,
};

/// Prefix of the names that statements have on servers.
pub(crate) const NAME_PREFIX: &[u8] = b"howdah_";

/// A text with its parameter types, as some client has prepared it by a name of its own.
#[derive(Debug)]
pub(crate) struct Statement {
    /// Counts from 1 and is never used again, so a name on a server means one text for ever.
    pub(crate) id: u64,
    /// Its name on every server: `howdah_` and the id.
    pub(crate) name: Box<[u8]>,
    /// What a Parse has behind its name: the text, a zero byte, and the parameter types.
    pub(crate) text: Box<[u8]>,
    /// What running it may leave behind.
    pub(crate) dirt: Dirt,
    /// See [`is_plain`].
    pub(crate) is_plain: bool,
}

/// Whether running a text leaves settings and prepared statements as they are, whoever runs it. Of most it
/// does, and then nothing has to be looked for each time.
pub(crate) fn is_plain(sql: &[u8]) -> bool {
    plain::is_plain(sql)
        || !deallocate::begins(sql)
            && !listen::begins(sql)
            && !touches_settings(sql)
            && SetKind::of_text(sql, |_| false) == SetKind::NotSet
}

/// The SQL of what a Parse has behind its name.
pub(crate) fn sql_of(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// The table of statements that are in use. Asked when a client prepares, never when it binds.
///
/// An entry lives as long as a client has a name for it, or until the next clearing after that.
#[derive(Debug, Default)]
pub struct Statements(Mutex<Table>);

#[derive(Debug, Default)]
struct Table {
    by_text: HashSet<ByText>,
    last_id: u64,
    clear_at: usize,
    bytes: usize,
    clear_at_bytes: usize,
}

/// Entries before the first clearing.
const CLEAR_AT_LEAST: usize = 1024;
/// Bytes of texts before the first clearing.
const CLEAR_AT_LEAST_BYTES: usize = 32 << 20;

impl Statements {
    /// The statement of a text with its parameter types.
    pub(crate) fn intern(&self, text: &[u8]) -> Arc<Statement> {
        // A table that another thread left while it panicked is whole: every change is one insert.
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(ByText(statement)) = table.by_text.get(text) {
            return Arc::clone(statement);
        }
        if table.by_text.len() >= table.clear_at.max(CLEAR_AT_LEAST)
            || table.bytes >= table.clear_at_bytes.max(CLEAR_AT_LEAST_BYTES)
        {
            table.clear();
        }
        table.bytes += text.len();
        table.last_id += 1;
        let id = table.last_id;
        let name = [NAME_PREFIX, id.to_string().as_bytes()].concat().into();
        let statement = Arc::new(Statement {
            id,
            name,
            text: text.into(),
            dirt: Dirt::of_text(sql_of(text)),
            is_plain: is_plain(sql_of(text)),
        });
        table.by_text.insert(ByText(Arc::clone(&statement)));
        statement
    }
}

impl Statements {
    /// A server has found a statement to be outdated: who prepares its text from now on gets another,
    /// and who has prepared it keeps it, with whatever the servers say to that.
    pub(crate) fn retire(&self, statement: &Statement) {
        let mut table = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if table.by_text.get(&*statement.text).is_some_and(|known| known.0.id == statement.id) {
            table.by_text.remove(&*statement.text);
            table.bytes -= statement.text.len();
        }
    }

    /// A client's statement that turned out to be none is not kept, unless others wait to hear so.
    pub(crate) fn failed(&self, statement: &Arc<Statement>) {
        if Arc::strong_count(statement) <= 2 {
            self.retire(statement);
        }
    }
}

impl Table {
    /// Forgets what nobody uses.
    fn clear(&mut self) {
        self.by_text.retain(|ByText(statement)| Arc::strong_count(statement) > 1);
        self.bytes = self.by_text.iter().map(|ByText(statement)| statement.text.len()).sum();
        self.clear_at = self.by_text.len() * 2;
        self.clear_at_bytes = self.bytes * 2;
    }
}

/// A statement, found by its text.
#[derive(Debug)]
struct ByText(Arc<Statement>);

impl Borrow<[u8]> for ByText {
    fn borrow(&self) -> &[u8] {
        &self.0.text
    }
}

impl Hash for ByText {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.0.text.hash(state);
    }
}

impl PartialEq for ByText {
    fn eq(&self, other: &Self) -> bool {
        self.0.text == other.0.text
    }
}

impl Eq for ByText {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_is_one_statement_and_types_count() {
        let statements = Statements::default();
        let plain = statements.intern(b"select $1\0\0\0");
        assert!(Arc::ptr_eq(&plain, &statements.intern(b"select $1\0\0\0")));
        let typed = statements.intern(b"select $1\0\0\x01\0\0\0\x17");
        assert_ne!(plain.name, typed.name);
        assert_eq!(*plain.name, *b"howdah_1");
    }

    #[test]
    fn long_texts_that_nobody_uses_are_cleared_sooner() {
        let statements = Statements::default();
        for i in 0..100 {
            statements.intern(&[&[b'x'; 1 << 20][..], i.to_string().as_bytes()].concat());
        }
        assert!(statements.0.lock().unwrap().bytes <= CLEAR_AT_LEAST_BYTES + (2 << 20));
    }

    #[test]
    fn a_text_that_is_none_is_not_kept() {
        let statements = Statements::default();
        let (wrong, shared) = (statements.intern(b"wrong"), statements.intern(b"shared"));
        let other = Arc::clone(&shared);
        statements.failed(&wrong);
        statements.failed(&shared);
        assert_ne!(statements.intern(b"wrong").id, wrong.id);
        assert_eq!(statements.intern(b"shared").id, other.id);
    }

    #[test]
    fn what_nobody_uses_is_cleared_and_its_name_not_used_again() {
        let statements = Statements::default();
        let kept = statements.intern(b"kept");
        for i in 0..10 * CLEAR_AT_LEAST {
            statements.intern(format!("select {i}").as_bytes());
        }
        assert!(statements.0.lock().unwrap().by_text.len() <= CLEAR_AT_LEAST);
        assert!(Arc::ptr_eq(&kept, &statements.intern(b"kept")));
        assert_eq!(statements.intern(b"new").id, 10 * CLEAR_AT_LEAST as u64 + 2);
    }
}
