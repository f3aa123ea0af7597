//! SHOW CONFIG: the settings by PgBouncer's names. A key without effect has its default.

use howdah_pool_config::{
    Config,
    pgbouncer::{self, KEYS, PgbouncerKey},
};

use super::{
    CellValue,
    ColumnType::{self, Text},
};
use crate::console::log_level::verbosity;

pub(super) const COLUMNS: &[(&str, ColumnType)] =
    &[("key", Text), ("value", Text), ("default", Text), ("changeable", Text)];

pub(super) fn rows(config: &Config) -> Vec<Vec<CellValue>> {
    let default = pgbouncer::defaults();
    let row = |key: &PgbouncerKey| {
        // The log level is a setting of the process, not of the configuration.
        let is_changeable = if key.name == VERBOSE { verbosity().1 } else { !key.needs_restart() };
        let changeable = if is_changeable { "yes" } else { "no" };
        let default = key.show(&default);
        vec![key.name.into(), value(config, key.name).into(), default.into(), changeable.into()]
    };
    // A key of Windows, which PgBouncer does not show elsewhere.
    KEYS.iter().filter(|key| key.name != "service_name").map(row).collect()
}

/// The key of the log level.
const VERBOSE: &str = "verbose";

/// Returns the value of a key in PgBouncer's notation; `None` if it is unset or unknown.
pub(crate) fn value(config: &Config, name: &str) -> Option<String> {
    if name == VERBOSE {
        return Some(verbosity().0.to_string());
    }
    KEYS.iter().find(|key| key.name == name)?.show(config)
}
