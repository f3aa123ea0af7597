//! Prepared statements as one client names them, and as one server holds them.

use std::sync::Arc;

use hashbrown::HashMap;

use crate::{parse_settings::ParseSettings, statements::Statement};

/// The statements of one client.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClientStatements {
    pub(crate) named: HashMap<Box<[u8]>, Arc<Statement>>,
    /// What its last Parse without a name had behind that name; empty for none. Kept, because a Bind
    /// to it may come when the client is on another server.
    pub(crate) unnamed: Vec<u8>,
    /// The unnamed statement is known to be [plain](crate::statements::is_plain).
    pub(crate) unnamed_is_plain: bool,
    /// The settings under which it was parsed; `None` if it does not depend on them, or nobody knows.
    pub(crate) unnamed_settings: Option<Arc<ParseSettings>>,
    /// Whether its text depends on such settings, if that was looked for.
    pub(crate) unnamed_is_sensitive: Option<bool>,
}

impl ClientStatements {
    /// Keeps the text of the unnamed statement.
    pub(crate) fn set_unnamed(
        &mut self,
        text: &[u8],
        is_plain: bool,
        settings: Option<&Arc<ParseSettings>>,
    ) {
        let id = |settings: Option<&Arc<ParseSettings>>| settings.map(|it| it.id);
        if id(settings) != id(self.unnamed_settings.as_ref()) {
            self.unnamed_settings = settings.cloned();
        }
        self.unnamed_is_sensitive = None;
        self.unnamed_is_plain = is_plain;
        self.unnamed.clear();
        self.unnamed.shrink_to(UNNAMED_BYTES_KEPT);
        self.unnamed.extend_from_slice(text);
    }

    /// Forgets the unnamed statement.
    pub(crate) fn drop_unnamed(&mut self) {
        self.unnamed.clear();
    }
}

/// Memory for an unnamed statement that stays with an idle client.
const UNNAMED_BYTES_KEPT: usize = 1024;

/// The statements that a server holds for its clients, by id, with the time of their last use.
#[derive(Debug, Default)]
pub(crate) struct ServerStatements {
    used: HashMap<u64, u64>,
    clock: u64,
    /// Uses up to here are of batches that have ended.
    batch_began: u64,
    /// Whether its unnamed statement is one of the client that it is linked to.
    pub(crate) unnamed_is_ours: bool,
}

impl ServerStatements {
    /// Whether the server holds it; if so, this is a use of it.
    #[inline]
    pub(crate) fn touch(&mut self, id: u64) -> bool {
        let Some(used) = self.used.get_mut(&id) else { return false };
        self.clock += 1;
        *used = self.clock;
        true
    }

    /// Whether the server holds it.
    pub(crate) fn has(&self, id: u64) -> bool {
        self.used.contains_key(&id)
    }

    /// How many the server holds.
    pub(crate) fn len(&self) -> usize {
        self.used.len()
    }

    /// Counts it among those the server holds.
    pub(crate) fn insert(&mut self, id: u64) {
        self.clock += 1;
        self.used.insert(id, self.clock);
    }

    /// Counts it out again.
    pub(crate) fn remove(&mut self, id: u64) {
        self.used.remove(&id);
    }

    /// Forgets all of them.
    pub(crate) fn clear(&mut self) {
        self.used.clear();
    }

    /// From here on what was used before may be given up.
    pub(crate) fn batch_begins(&mut self) {
        self.batch_began = self.clock;
    }

    /// The one not used for longest, if there are `max` or more. What the batch that is under way has
    /// used is never that: a portal of it, or a Bind still to come, may need it.
    pub(crate) fn oldest(&self, max: usize) -> Option<u64> {
        if self.used.len() < max {
            return None;
        }
        let (id, used) = self.used.iter().min_by_key(|(_, used)| **used)?;
        (*used <= self.batch_began).then_some(*id)
    }
}

#[test]
fn what_the_batch_uses_is_not_given_up() {
    let mut statements = ServerStatements::default();
    (1..=3).for_each(|id| statements.insert(id));
    assert_eq!(statements.oldest(3), None, "all three are of this batch");
    statements.batch_begins();
    assert!(statements.touch(1));
    assert_eq!(statements.oldest(4), None, "there is room");
    assert_eq!(statements.oldest(3), Some(2));
    statements.remove(2);
    assert_eq!(statements.oldest(2), Some(3));
    statements.remove(3);
    assert_eq!(statements.oldest(1), None);
    assert!(!statements.touch(2));
}
