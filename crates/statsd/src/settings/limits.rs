//! `[[statsd.limits.prefix]]`: limits on the keys of one application.

use serde::{Deserialize, Serialize};

/// A limit on the number of keys whose names have the same prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct PrefixLimit {
    /// The beginning of the names, such as `checkout.`. Of several matching prefixes, the longest
    /// one applies.
    pub prefix: String,
    /// Maximum number of distinct keys after rules, over all metric types.
    pub keys: usize,
    /// The treatment of further keys.
    #[serde(default)]
    pub excess: ExcessAction,
}

/// The treatment of keys beyond the limit of their prefix.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ExcessAction {
    /// Their samples are aggregated under the key `PREFIX.overflow`.
    #[default]
    Overflow,
    /// Their samples are counted and discarded.
    Drop,
}
