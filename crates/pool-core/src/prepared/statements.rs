//! [`StatementRegistry`]: the texts that clients have prepared, each stored once for all clients
//! and workers.

use std::{
    hash::{BuildHasher, Hash, Hasher},
    sync::Arc,
};

use hashbrown::{DefaultHashBuilder, Equivalent, HashSet, HashTable};
use parking_lot::{Mutex, MutexGuard};

use crate::{
    listen::channels as listen,
    messages::fast_path,
    prepared::{
        deallocate,
        parse_settings::{
            COUNT, ParseSettingValues, ParseSettings, borrowed, depends_on_parse_settings, owned,
        },
    },
    session::{
        restore::changes_parameters,
        state::{SessionStateFlags, SetKind},
    },
};

/// Prefix of the names of pooled statements on servers.
pub(crate) const NAME_PREFIX: &[u8] = b"howdah_";

/// A statement text with its parameter types, which one or more clients have prepared, each under
/// its own name.
#[derive(Debug)]
pub(crate) struct PooledStatement {
    /// Id of the statement; ids start at 1. Ids are never reused, so a name on a server always
    /// means the same text.
    pub(crate) id: u64,
    /// The statement's name on every server: `howdah_` and the id.
    pub(crate) name: Box<[u8]>,
    /// The body of a Parse after the name: the SQL, a zero byte, and the parameter types.
    pub(crate) text: Box<[u8]>,
    /// The session state that running the statement may change although its command tag does not
    /// show it.
    pub(crate) session_state: SessionStateFlags,
    /// Whether running the statement changes no parameters, prepared statements or LISTEN channels;
    /// see [`is_simple`]. Also `false` if it calls `set_config`.
    pub(crate) is_simple: bool,
    /// The settings under which the statement is parsed; `None` if its meaning does not depend on
    /// them, or if they are unknown.
    pub(crate) settings: Option<Arc<ParseSettings>>,
    /// The id of `settings`; 0 if the meaning does not depend on them. [`UNKNOWN_SETTINGS`] if they
    /// are unknown: the statement then gets the settings in force at its next use.
    pub(crate) settings_key: u64,
    /// Whether other clients may use the statement. They use it only while its settings are in
    /// force, because a server that analyzes it again does so under the current settings.
    pub(crate) is_shared: bool,
}

/// Value of [`PooledStatement::settings_key`] for settings that are not known yet.
pub(crate) const UNKNOWN_SETTINGS: u64 = u64::MAX;

/// Whether a statement never changes parameters, prepared statements or LISTEN channels, apart from
/// functions that it calls, so that its text need not be inspected on each use. True for most
/// statements.
pub(crate) fn is_simple(sql: &[u8]) -> bool {
    fast_path::is_simple(sql)
        || !deallocate::is_deallocation(sql)
            && !listen::starts_with_listen(sql)
            && !changes_parameters(sql)
            && SetKind::from_text(sql, |_| false) == SetKind::NotSet
}

/// Returns the SQL in the body of a Parse, given the part after the name.
pub(crate) fn sql_text(text: &[u8]) -> &[u8] {
    memchr::memchr(0, text).map_or(text, |end| &text[..end])
}

/// The table of statements in use. It is accessed when a client prepares a statement, and usually
/// not when it binds one.
///
/// An entry lives until its statement fails to parse or turns out to be outdated, or until the
/// first eviction after the last client has dropped its name for the statement.
#[derive(Debug, Default)]
pub struct StatementRegistry(Mutex<StatementTable>);

#[derive(Debug, Default)]
struct StatementTable {
    /// Shared statements, by text and settings key.
    by_text: HashTable<Arc<PooledStatement>>,
    hasher: DefaultHashBuilder,
    last_id: u64,
    settings: HashSet<InternedParseSettings>,
    last_settings_id: u64,
    clear_settings_at: usize,
    clear_at: usize,
    bytes: usize,
    clear_at_bytes: usize,
}

/// Number of entries below which none is evicted on account of their number.
const CLEAR_THRESHOLD_MIN: usize = 1024;
/// Total length of texts, in bytes, below which none is evicted on account of their length: 32 MiB.
const CLEAR_THRESHOLD_BYTES_MIN: usize = 32 << 20;

impl StatementRegistry {
    /// Returns the statement for a text with its parameter types, parsed under `settings`. Without
    /// `settings`, a statement that depends on them is not shared, and gets the settings in force
    /// at its next use.
    pub(crate) fn intern(
        &self,
        text: &[u8],
        settings: Option<&Arc<ParseSettings>>,
    ) -> Arc<PooledStatement> {
        let key = settings.map_or(0, |settings| settings.id);
        let mut table = self.lock_table();
        if let Some(statement) = table.find(text, key) {
            return Arc::clone(statement);
        }
        let is_sensitive = depends_on_parse_settings(sql_text(text));
        let (key, settings) = match settings {
            _ if !is_sensitive => (0, None),
            Some(settings) => (key, Some(Arc::clone(settings))),
            None => (UNKNOWN_SETTINGS, None),
        };
        if table.by_text.len() >= table.clear_at.max(CLEAR_THRESHOLD_MIN)
            || table.bytes >= table.clear_at_bytes.max(CLEAR_THRESHOLD_BYTES_MIN)
        {
            table.clear();
        }
        let is_shared = key != UNKNOWN_SETTINGS;
        let statement = Arc::new(table.new_statement(text, settings, key, is_shared));
        if is_shared {
            table.bytes += text.len();
            table.insert(Arc::clone(&statement));
        }
        statement
    }

    /// Returns a copy of a statement, with a new id, that only one client uses.
    pub(crate) fn intern_private(&self, of: &PooledStatement) -> Arc<PooledStatement> {
        Arc::new(self.lock_table().new_statement(
            &of.text,
            of.settings.clone(),
            of.settings_key,
            false,
        ))
    }

    /// Returns the shared object for a set of parse settings.
    pub(crate) fn parse_settings(&self, values: &[Option<&[u8]>; COUNT]) -> Arc<ParseSettings> {
        let mut table = self.lock_table();
        if let Some(InternedParseSettings(known)) = table.settings.get(values) {
            return Arc::clone(known);
        }
        if table.settings.len() >= table.clear_settings_at.max(CLEAR_THRESHOLD_MIN) {
            table.settings.retain(|InternedParseSettings(known)| Arc::strong_count(known) > 1);
            table.clear_settings_at = table.settings.len() * 2;
        }
        table.last_settings_id += 1;
        let id = table.last_settings_id;
        let settings = Arc::new(ParseSettings { id, values: owned(values) });
        table.settings.insert(InternedParseSettings(Arc::clone(&settings)));
        settings
    }

    /// Locks the table for a lookup or a change.
    fn lock_table(&self) -> MutexGuard<'_, StatementTable> {
        self.0.lock()
    }
}

impl StatementRegistry {
    /// Removes from the table a statement that a server reported as outdated. Clients that prepare
    /// its text from now on get a new statement; clients that have already prepared it keep the old
    /// one.
    pub(crate) fn retire(&self, statement: &PooledStatement) {
        let mut table = self.lock_table();
        let hash = hash_text(&table.hasher, &statement.text, statement.settings_key);
        if let Ok(found) = table.by_text.find_entry(hash, |known| known.id == statement.id) {
            found.remove();
            table.bytes -= statement.text.len();
        }
    }

    /// Removes from the table a statement that failed to parse, unless other clients also use it.
    pub(crate) fn parse_failed(&self, statement: &Arc<PooledStatement>) {
        if Arc::strong_count(statement) <= 2 {
            self.retire(statement);
        }
    }
}

impl StatementTable {
    /// Returns the statement for a text: the one that depends on no settings, or the one parsed
    /// under the settings with id `key`.
    fn find(&self, text: &[u8], key: u64) -> Option<&Arc<PooledStatement>> {
        let find = |key| {
            let is_it =
                |known: &Arc<PooledStatement>| known.settings_key == key && *known.text == *text;
            self.by_text.find(hash_text(&self.hasher, text, key), is_it)
        };
        find(0).or_else(|| if key == 0 { None } else { find(key) })
    }

    fn insert(&mut self, statement: Arc<PooledStatement>) {
        let Self { by_text, hasher, .. } = self;
        let of = |known: &Arc<PooledStatement>| hash_text(hasher, &known.text, known.settings_key);
        by_text.insert_unique(of(&statement), statement, of);
    }

    fn new_statement(
        &mut self,
        text: &[u8],
        settings: Option<Arc<ParseSettings>>,
        key: u64,
        is_shared: bool,
    ) -> PooledStatement {
        self.last_id += 1;
        let id = self.last_id;
        let name = [NAME_PREFIX, id.to_string().as_bytes()].concat().into();
        let sql = sql_text(text);
        let session_state = SessionStateFlags::from_text(sql);
        let is_simple = is_simple(sql) && !session_state.has(SessionStateFlags::SETTINGS);
        PooledStatement {
            id,
            name,
            text: text.into(),
            session_state,
            is_simple,
            settings,
            settings_key: key,
            is_shared,
        }
    }

    /// Evicts entries that no client uses, and sets the thresholds for the next eviction.
    fn clear(&mut self) {
        self.by_text.retain(|statement| Arc::strong_count(statement) > 1);
        self.bytes = self.by_text.iter().map(|statement| statement.text.len()).sum();
        self.clear_at = self.by_text.len() * 2;
        self.clear_at_bytes = self.bytes * 2;
    }
}

fn hash_text(hasher: &DefaultHashBuilder, text: &[u8], key: u64) -> u64 {
    hasher.hash_one((text, key))
}

/// Parse settings that are hashed and compared by their values, not by their id.
#[derive(Debug)]
struct InternedParseSettings(Arc<ParseSettings>);

impl InternedParseSettings {
    fn values(&self) -> &ParseSettingValues {
        &self.0.values
    }
}

impl Hash for InternedParseSettings {
    fn hash<H: Hasher>(&self, state: &mut H) {
        borrowed(self.values()).hash(state);
    }
}

impl PartialEq for InternedParseSettings {
    fn eq(&self, other: &Self) -> bool {
        self.values() == other.values()
    }
}

impl Eq for InternedParseSettings {}

impl Equivalent<InternedParseSettings> for [Option<&[u8]>; COUNT] {
    fn equivalent(&self, known: &InternedParseSettings) -> bool {
        borrowed(known.values()) == *self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_and_types_share_one_statement() {
        let statements = StatementRegistry::default();
        let plain = statements.intern(b"select $1\0\0\0", None);
        assert!(Arc::ptr_eq(&plain, &statements.intern(b"select $1\0\0\0", None)));
        let typed = statements.intern(b"select $1\0\0\x01\0\0\0\x17", None);
        assert_ne!(plain.name, typed.name);
        assert_eq!(*plain.name, *b"howdah_1");
    }

    #[test]
    fn unused_long_texts_are_evicted_by_bytes() {
        let statements = StatementRegistry::default();
        for i in 0..100 {
            statements.intern(&[&[b'x'; 1 << 20][..], i.to_string().as_bytes()].concat(), None);
        }
        assert!(statements.0.lock().bytes <= CLEAR_THRESHOLD_BYTES_MIN + (2 << 20));
    }

    #[test]
    fn invalid_text_is_not_cached() {
        let statements = StatementRegistry::default();
        let (wrong, shared) =
            (statements.intern(b"wrong", None), statements.intern(b"shared", None));
        let other = Arc::clone(&shared);
        statements.parse_failed(&wrong);
        statements.parse_failed(&shared);
        assert_ne!(statements.intern(b"wrong", None).id, wrong.id);
        assert_eq!(statements.intern(b"shared", None).id, other.id);
    }

    #[test]
    fn unused_statements_are_evicted_and_names_never_reused() {
        let statements = StatementRegistry::default();
        let kept = statements.intern(b"kept", None);
        for i in 0..10 * CLEAR_THRESHOLD_MIN {
            statements.intern(format!("select {i}").as_bytes(), None);
        }
        assert!(statements.0.lock().by_text.len() <= CLEAR_THRESHOLD_MIN);
        assert!(Arc::ptr_eq(&kept, &statements.intern(b"kept", None)));
        assert_eq!(statements.intern(b"new", None).id, 10 * CLEAR_THRESHOLD_MIN as u64 + 2);
    }
}
