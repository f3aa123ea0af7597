//! `[pool.notifications]`: LISTEN over shared server connections.

use serde::{Deserialize, Serialize};

/// Settings of LISTEN in transaction and statement mode: `[pool.notifications]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct NotificationConfig {
    /// Whether a dedicated connection per database receives notifications for listening clients.
    /// Otherwise a LISTEN ends with its transaction.
    pub enabled: bool,
    /// Maximum bytes of notifications buffered for a client that is in a transaction or does not
    /// read. Further notifications are dropped, and a warning reports their number to the client.
    pub client_bytes: u32,
}

impl Default for NotificationConfig {
    fn default() -> Self {
        Self { enabled: true, client_bytes: 1 << 20 }
    }
}
