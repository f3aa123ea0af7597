//! SHOW CONFIG: the settings that have an effect in howdah, by PgBouncer's names.

use howdah_pool_config::{
    Config,
    pgbouncer::{KEYS, PgbouncerKey},
};

use super::{
    CellValue,
    ColumnType::{self, Text},
};
use crate::console::log_level::verbosity;

pub(super) const COLUMNS: &[(&str, ColumnType)] =
    &[("key", Text), ("value", Text), ("default", Text), ("changeable", Text)];

pub(super) fn rows(config: &Config) -> Vec<Vec<CellValue>> {
    let default = Config::default();
    let changeable = |changes| if changes { "yes" } else { "no" };
    let row = |key: &PgbouncerKey| {
        let (value, default) = (key.show(config)?, key.show(&default)?);
        let changeable = changeable(!key.needs_restart());
        Some(vec![key.name.into(), value.into(), default.into(), changeable.into()])
    };
    // The log level is a setting of the process, not of the configuration.
    let (verbosity, changes) = verbosity();
    let verbose = vec!["verbose".into(), verbosity.into(), "0".into(), changeable(changes).into()];
    KEYS.iter().filter_map(row).chain([verbose]).collect()
}
