//! [`Statements`]: the texts that clients have prepared, each once for all clients and workers.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use hashbrown::{DefaultHashBuilder, Equivalent, HashSet, HashTable};

use crate::{
    deallocate,
    dirt::{SessionStateFlags, SetKind},
    listen,
    parse_settings::{COUNT, ParseSettings, Values, is_sensitive, looked_at, owned},
    plain,
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
    pub(crate) dirt: SessionStateFlags,
    /// See [`is_plain`]; false as well if it calls `set_config`.
    pub(crate) is_plain: bool,
    /// The settings under which it is parsed, if its meaning depends on them and they are known.
    pub(crate) settings: Option<Arc<ParseSettings>>,
    /// Their id; 0 if its meaning does not depend on settings, and [`UNKNOWN_SETTINGS`] if they are not known:
    /// then they are those in force when it is next used.
    pub(crate) key: u64,
    /// Whether other clients may find it. They use it only while its settings are in force: if the server
    /// has to analyse it anew, it does so under the settings in force then.
    pub(crate) is_shared: bool,
}

/// See [`Statement::key`].
pub(crate) const UNKNOWN_SETTINGS: u64 = u64::MAX;

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
    /// Those that are shared, by text and key.
    by_text: HashTable<Arc<Statement>>,
    hasher: DefaultHashBuilder,
    last_id: u64,
    settings: HashSet<ByValues>,
    last_settings_id: u64,
    clear_settings_at: usize,
    clear_at: usize,
    bytes: usize,
    clear_at_bytes: usize,
}

/// Entries before the first clearing.
const CLEAR_AT_LEAST: usize = 1024;
/// Bytes of texts before the first clearing.
const CLEAR_AT_LEAST_BYTES: usize = 32 << 20;

impl Statements {
    /// The statement of a text with its parameter types, parsed under these settings. Without settings, one
    /// that depends on them is not shared, and takes those in force at its next use.
    pub(crate) fn intern(
        &self,
        text: &[u8],
        settings: Option<&Arc<ParseSettings>>,
    ) -> Arc<Statement> {
        let key = settings.map_or(0, |settings| settings.id);
        let mut table = self.table();
        if let Some(statement) = table.find(text, key) {
            return Arc::clone(statement);
        }
        let is_sensitive = is_sensitive(sql_of(text));
        let (key, settings) = match settings {
            _ if !is_sensitive => (0, None),
            Some(settings) => (key, Some(Arc::clone(settings))),
            None => (UNKNOWN_SETTINGS, None),
        };
        if table.by_text.len() >= table.clear_at.max(CLEAR_AT_LEAST)
            || table.bytes >= table.clear_at_bytes.max(CLEAR_AT_LEAST_BYTES)
        {
            table.clear();
        }
        let is_shared = key != UNKNOWN_SETTINGS;
        let statement = Arc::new(table.statement(text, settings, key, is_shared));
        if is_shared {
            table.bytes += text.len();
            table.insert(Arc::clone(&statement));
        }
        statement
    }

    /// The same as another statement, for one client only.
    pub(crate) fn private(&self, of: &Statement) -> Arc<Statement> {
        Arc::new(self.table().statement(&of.text, of.settings.clone(), of.key, false))
    }

    /// The object for settings that statements are parsed under.
    pub(crate) fn parse_settings(&self, values: &[Option<&[u8]>; COUNT]) -> Arc<ParseSettings> {
        let mut table = self.table();
        if let Some(ByValues(known)) = table.settings.get(values) {
            return Arc::clone(known);
        }
        if table.settings.len() >= table.clear_settings_at.max(CLEAR_AT_LEAST) {
            table.settings.retain(|ByValues(known)| Arc::strong_count(known) > 1);
            table.clear_settings_at = table.settings.len() * 2;
        }
        table.last_settings_id += 1;
        let id = table.last_settings_id;
        let settings = Arc::new(ParseSettings { id, values: owned(values) });
        table.settings.insert(ByValues(Arc::clone(&settings)));
        settings
    }

    /// A table that another thread left while it panicked is whole: every change is one insert.
    fn table(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Statements {
    /// A server has found a statement to be outdated: who prepares its text from now on gets another,
    /// and who has prepared it keeps it, with whatever the servers say to that.
    pub(crate) fn retire(&self, statement: &Statement) {
        let mut table = self.table();
        let hash = hash(&table.hasher, &statement.text, statement.key);
        if let Ok(found) = table.by_text.find_entry(hash, |known| known.id == statement.id) {
            found.remove();
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
    /// The statement of a text whose meaning depends on no settings, or the one under these.
    fn find(&self, text: &[u8], key: u64) -> Option<&Arc<Statement>> {
        let find = |key| {
            let is_it = |known: &Arc<Statement>| known.key == key && *known.text == *text;
            self.by_text.find(hash(&self.hasher, text, key), is_it)
        };
        find(0).or_else(|| if key == 0 { None } else { find(key) })
    }

    fn insert(&mut self, statement: Arc<Statement>) {
        let Self { by_text, hasher, .. } = self;
        let of = |known: &Arc<Statement>| hash(hasher, &known.text, known.key);
        by_text.insert_unique(of(&statement), statement, of);
    }

    fn statement(
        &mut self,
        text: &[u8],
        settings: Option<Arc<ParseSettings>>,
        key: u64,
        is_shared: bool,
    ) -> Statement {
        self.last_id += 1;
        let id = self.last_id;
        let name = [NAME_PREFIX, id.to_string().as_bytes()].concat().into();
        let sql = sql_of(text);
        let dirt = SessionStateFlags::of_text(sql);
        let is_plain = is_plain(sql) && !dirt.has(SessionStateFlags::SETTINGS);
        Statement { id, name, text: text.into(), dirt, is_plain, settings, key, is_shared }
    }

    /// Forgets what nobody uses.
    fn clear(&mut self) {
        self.by_text.retain(|statement| Arc::strong_count(statement) > 1);
        self.bytes = self.by_text.iter().map(|statement| statement.text.len()).sum();
        self.clear_at = self.by_text.len() * 2;
        self.clear_at_bytes = self.bytes * 2;
    }
}

fn hash(hasher: &DefaultHashBuilder, text: &[u8], key: u64) -> u64 {
    hasher.hash_one((text, key))
}

/// Settings, found by their values.
#[derive(Debug)]
struct ByValues(Arc<ParseSettings>);

impl ByValues {
    fn values(&self) -> &Values {
        &self.0.values
    }
}

impl Hash for ByValues {
    fn hash<H: Hasher>(&self, state: &mut H) {
        looked_at(self.values()).hash(state);
    }
}

impl PartialEq for ByValues {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl Eq for ByValues {}

impl Equivalent<ByValues> for [Option<&[u8]>; COUNT] {
    fn equivalent(&self, known: &ByValues) -> bool {
        looked_at(known.values()) == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_text_is_one_statement_and_types_count() {
        let statements = Statements::default();
        let plain = statements.intern(b"select $1\0\0\0", None);
        assert!(Arc::ptr_eq(&plain, &statements.intern(b"select $1\0\0\0", None)));
        let typed = statements.intern(b"select $1\0\0\x01\0\0\0\x17", None);
        assert_ne!(plain.name, typed.name);
        assert_eq!(*plain.name, *b"howdah_1");
    }

    #[test]
    fn long_texts_that_nobody_uses_are_cleared_sooner() {
        let statements = Statements::default();
        for i in 0..100 {
            statements.intern(&[&[b'x'; 1 << 20][..], i.to_string().as_bytes()].concat(), None);
        }
        assert!(statements.0.lock().unwrap().bytes <= CLEAR_AT_LEAST_BYTES + (2 << 20));
    }

    #[test]
    fn a_text_that_is_none_is_not_kept() {
        let statements = Statements::default();
        let (wrong, shared) =
            (statements.intern(b"wrong", None), statements.intern(b"shared", None));
        let other = Arc::clone(&shared);
        statements.failed(&wrong);
        statements.failed(&shared);
        assert_ne!(statements.intern(b"wrong", None).id, wrong.id);
        assert_eq!(statements.intern(b"shared", None).id, other.id);
    }

    #[test]
    fn what_nobody_uses_is_cleared_and_its_name_not_used_again() {
        let statements = Statements::default();
        let kept = statements.intern(b"kept", None);
        for i in 0..10 * CLEAR_AT_LEAST {
            statements.intern(format!("select {i}").as_bytes(), None);
        }
        assert!(statements.0.lock().unwrap().by_text.len() <= CLEAR_AT_LEAST);
        assert!(Arc::ptr_eq(&kept, &statements.intern(b"kept", None)));
        assert_eq!(statements.intern(b"new", None).id, 10 * CLEAR_AT_LEAST as u64 + 2);
    }
}
