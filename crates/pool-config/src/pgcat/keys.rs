//! [`PgcatKey`]: a key of a `pgcat.toml`, and how it is converted.

use toml::de::DeValue;

use super::PgcatKeyResult;

/// A row in the table of keys of a PgCat section, whose settings are read into a `T`.
#[derive(Debug)]
pub(super) struct PgcatKey<T> {
    pub(super) name: &'static str,
    /// The `[pool]` key that this key is converted to; empty if this key is dropped.
    pub(super) ours: &'static str,
    /// The difference between the two keys, empty if there is none; or the reason why the key is
    /// dropped.
    pub(super) difference: &'static str,
    pub(super) read: fn(&mut T, &DeValue<'_>) -> PgcatKeyResult,
}

/// Returns the row of a key that is converted to another.
pub(super) const fn sets<T>(
    name: &'static str,
    ours: &'static str,
    difference: &'static str,
    read: fn(&mut T, &DeValue<'_>) -> PgcatKeyResult,
) -> PgcatKey<T> {
    PgcatKey { name, ours, difference, read }
}

/// Describes a key that is dropped, with the reason to report.
macro_rules! dropped {
    ($name:literal, $why:expr) => {
        PgcatKey { name: $name, ours: "", difference: $why, read: |_, _| Ok(Some($why.to_owned())) }
    };
}

/// Describes a switch that is dropped; the reason is reported only if the switch is on.
macro_rules! dropped_if_on {
    ($name:literal, $why:expr) => {
        PgcatKey {
            name: $name,
            ours: "",
            difference: $why,
            read: |_, value| {
                let is_on = value.as_bool() != Some(false);
                Ok(is_on.then(|| $why.to_owned()))
            },
        }
    };
}

pub(super) use {dropped, dropped_if_on};
