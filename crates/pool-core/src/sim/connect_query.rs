//! Connect queries: each simulated server tracks whether its pool's connect query is in effect.
//!
//! A client may undo the effect for its own session. Whenever another client's statement runs, the
//! query must be in effect again.

/// The value of `search_path` that a repeatable connect query sets.
pub(super) const TENANT: &str = "tenant";

/// The object that a connect query without a repetition creates.
pub(super) const TENANT_TABLE: &str = "temp table tenant";

/// The connect queries of simulated pools: one that can be repeated, and one that cannot.
pub(super) const CONNECT_QUERIES: [&str; 2] =
    ["set search_path = tenant", "create temp table tenant"];

/// Whether a session's connect query is in effect.
#[derive(Debug, Default)]
pub(super) struct ConnectQueryEffect {
    requires_path: bool,
    requires_table: bool,
    has_path: bool,
    has_table: bool,
    /// The client that has undone the effect, if known.
    undone_by: Option<u32>,
}

impl ConnectQueryEffect {
    /// Requires the effect of `sql`, a connect query, from now on.
    pub(super) fn require(&mut self, sql: &str) {
        self.requires_path = sql == CONNECT_QUERIES[0];
        self.requires_table = sql == CONNECT_QUERIES[1];
    }

    /// Handles a change of `search_path`. Returns whether it restores the connect query's effect.
    pub(super) fn set_path(&mut self, value: &str, by: Option<u32>) -> bool {
        let had_path = std::mem::replace(&mut self.has_path, value == TENANT);
        if had_path && !self.has_path {
            self.undone_by = by;
        }
        self.has_path && self.undone_by.is_some()
    }

    pub(super) fn create_table(&mut self) {
        self.has_table = true;
    }

    pub(super) fn undo_settings(&mut self, by: Option<u32>) {
        self.undone_by = by;
        self.has_path = false;
    }

    pub(super) fn undo_table(&mut self, by: Option<u32>) {
        self.undone_by = by;
        self.has_table = false;
    }

    /// Whether the effect is missing for a client that has not undone it.
    pub(super) fn is_missing_for(&self, client: u32) -> bool {
        let is_missing =
            self.requires_path && !self.has_path || self.requires_table && !self.has_table;
        is_missing && self.undone_by != Some(client)
    }
}
