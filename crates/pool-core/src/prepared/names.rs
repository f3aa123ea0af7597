//! The prepared statements of one client, by name, and those that one server has.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::prepared::{parse_settings::ParseSettings, statements::PooledStatement};

/// The prepared statements of one client, by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientStatements {
    pub(crate) named: HashMap<Box<[u8]>, Arc<PooledStatement>>,
    /// The body of the last unnamed Parse, after the name; empty if the client has none. It is
    /// stored because a Bind to it may arrive when the client has another server.
    pub(crate) unnamed: Vec<u8>,
    /// Whether the unnamed statement is known to be
    /// [simple](crate::prepared::statements::is_simple).
    pub(crate) unnamed_is_simple: bool,
    /// The settings in force when the unnamed statement was parsed; `None` if they are unknown.
    pub(crate) unnamed_settings: Option<Arc<ParseSettings>>,
    /// Whether the meaning of the unnamed statement depends on parse settings; `None` if that was
    /// not examined.
    pub(crate) unnamed_is_sensitive: Option<bool>,
}

impl ClientStatements {
    /// Stores the unnamed statement: the body of its Parse after the name.
    pub(crate) fn set_unnamed(
        &mut self,
        text: &[u8],
        is_simple: bool,
        settings: Option<&Arc<ParseSettings>>,
    ) {
        let id = |settings: Option<&Arc<ParseSettings>>| settings.map(|it| it.id);
        if id(settings) != id(self.unnamed_settings.as_ref()) {
            self.unnamed_settings = settings.cloned();
        }
        self.unnamed_is_sensitive = None;
        self.unnamed_is_simple = is_simple;
        self.unnamed.clear();
        self.unnamed.shrink_to(UNNAMED_BYTES_RETAINED);
        self.unnamed.extend_from_slice(text);
    }

    /// Removes the unnamed statement.
    pub(crate) fn clear_unnamed(&mut self) {
        self.unnamed.clear();
    }
}

/// Maximum capacity, in bytes, that is retained when the text of the unnamed statement is replaced.
const UNNAMED_BYTES_RETAINED: usize = 1024;

/// The pooled statements that a server has, by id, with the logical time of their last use.
#[derive(Debug, Default)]
pub(crate) struct ServerStatements {
    last_use: HashMap<u64, u64>,
    clock: u64,
    /// The logical time at which the current batch started. Statements last used before it may be
    /// evicted.
    batch_started: u64,
    /// Whether the server's unnamed statement is that of the linked client, or neither has one.
    pub(crate) unnamed_is_ours: bool,
}

impl ServerStatements {
    /// Whether the server has the statement; if so, records a use.
    #[inline]
    pub(crate) fn touch(&mut self, id: u64) -> bool {
        let Some(used) = self.last_use.get_mut(&id) else { return false };
        self.clock += 1;
        *used = self.clock;
        true
    }

    /// Whether the server has the statement.
    pub(crate) fn contains(&self, id: u64) -> bool {
        self.last_use.contains_key(&id)
    }

    /// Returns the number of statements that the server has.
    pub(crate) fn len(&self) -> usize {
        self.last_use.len()
    }

    pub(crate) fn insert(&mut self, id: u64) {
        self.clock += 1;
        self.last_use.insert(id, self.clock);
    }

    pub(crate) fn remove(&mut self, id: u64) {
        self.last_use.remove(&id);
    }

    pub(crate) fn clear(&mut self) {
        self.last_use.clear();
    }

    /// Starts a batch: from now on, statements last used before it may be evicted.
    pub(crate) fn start_batch(&mut self) {
        self.batch_started = self.clock;
    }

    /// Returns the least recently used statement, if there are `max` or more. Never returns one
    /// that the current batch has used: one of its portals or a later Bind may need it.
    pub(crate) fn eviction_candidate(&self, max: usize) -> Option<u64> {
        if self.last_use.len() < max {
            return None;
        }
        let (id, used) = self.last_use.iter().min_by_key(|(_, used)| **used)?;
        (*used <= self.batch_started).then_some(*id)
    }
}

#[test]
fn statements_of_current_batch_are_not_evicted() {
    let mut statements = ServerStatements::default();
    (1..=3).for_each(|id| statements.insert(id));
    assert_eq!(statements.eviction_candidate(3), None, "all three belong to this batch");
    statements.start_batch();
    assert!(statements.touch(1));
    assert_eq!(statements.eviction_candidate(4), None, "the limit is not reached");
    assert_eq!(statements.eviction_candidate(3), Some(2));
    statements.remove(2);
    assert_eq!(statements.eviction_candidate(2), Some(3));
    statements.remove(3);
    assert_eq!(statements.eviction_candidate(1), None);
    assert!(!statements.touch(2));
}
