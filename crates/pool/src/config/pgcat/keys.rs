//! [`PgcatKey`]: a key of a `pgcat.toml`, and how it is converted.

use ::toml::de::DeValue;

use super::PgcatKeyResult;

/// A key of a `pgcat.toml`.
#[derive(Debug)]
pub(super) struct PgcatKey<T> {
    pub(super) name: &'static str,
    /// The key of `[pool]` it is converted to; empty if it is dropped.
    pub(super) ours: &'static str,
    /// How the keys differ, or why the key is dropped.
    pub(super) difference: &'static str,
    pub(super) read: fn(&mut T, &DeValue<'_>) -> PgcatKeyResult,
}

/// A key that is converted to another.
pub(super) const fn sets<T>(
    name: &'static str,
    ours: &'static str,
    difference: &'static str,
    read: fn(&mut T, &DeValue<'_>) -> PgcatKeyResult,
) -> PgcatKey<T> {
    PgcatKey { name, ours, difference, read }
}

/// A key that is dropped, which is reported with this reason.
macro_rules! dropped {
    ($name:literal, $why:expr) => {
        PgcatKey { name: $name, ours: "", difference: $why, read: |_, _| Ok(Some($why.to_owned())) }
    };
}

/// The same for a switch; not reported if the switch is off.
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
