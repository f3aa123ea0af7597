//! `[pool.adaptive]`: how clients are pinned to servers in adaptive mode.

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Serialize};

/// Settings of adaptive mode: `[pool.adaptive]`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, rename_all = "kebab-case", deny_unknown_fields)]
pub struct AdaptiveConfig {
    /// Functions that leave no state in their session although they are volatile: `name` in any
    /// schema, `schema.name` or `schema.*`; `do` stands for anonymous code blocks.
    pub stateless_functions: Vec<String>,
    /// Maximum number of pinned clients of one pool; `None` means no limit.
    #[serde(with = "howdah_settings::limit")]
    pub pinned_max: Option<NonZeroU32>,
    /// Maximum idle time of a pinned client outside a transaction.
    #[serde(with = "howdah_settings::timeout")]
    pub pinned_idle: Option<Duration>,
    /// Maximum time for which a client is pinned; it is disconnected outside a transaction.
    #[serde(with = "howdah_settings::timeout")]
    pub pinned_time: Option<Duration>,
}
