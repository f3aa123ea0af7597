//! LISTEN where clients share servers.

use serde::{Deserialize, Serialize};

/// LISTEN in transaction and statement mode: `[pool.notifications]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct Notifications {
    /// Whether what clients listen to is followed, by a dedicated connection to each database. Else LISTEN
    /// ends with its transaction.
    pub enabled: bool,
    /// Bytes of notifications that are kept for a client that is in a transaction, or takes none. What comes
    /// beyond that is dropped, and the client told how many.
    pub client_bytes: u32,
}

impl Default for Notifications {
    fn default() -> Self {
        Self { enabled: true, client_bytes: 1 << 20 }
    }
}
