//! [`Row`]: a key of a `pgcat.toml`, and what becomes of it.

use ::toml::de::DeValue;

use super::Outcome;

/// A key.
#[derive(Debug)]
pub(super) struct Row<T> {
    pub(super) name: &'static str,
    /// The key of `[pool]` that it becomes; empty for none.
    pub(super) ours: &'static str,
    /// What is different, or why nothing becomes of it.
    pub(super) note: &'static str,
    pub(super) read: fn(&mut T, &DeValue<'_>) -> Outcome,
}

/// A key that becomes another.
pub(super) const fn sets<T>(
    name: &'static str,
    ours: &'static str,
    note: &'static str,
    read: fn(&mut T, &DeValue<'_>) -> Outcome,
) -> Row<T> {
    Row { name, ours, note, read }
}

/// Keys of which nothing becomes, which is said with the reason of the row.
macro_rules! nothing {
    ($name:literal, $why:expr) => {
        Row { name: $name, ours: "", note: $why, read: |_, _| Ok(Some($why.to_owned())) }
    };
}

/// The same of a switch; nothing is said where it is off.
macro_rules! nothing_if_on {
    ($name:literal, $why:expr) => {
        Row {
            name: $name,
            ours: "",
            note: $why,
            read: |_, value| {
                let is_on = value.as_bool() != Some(false);
                Ok(is_on.then(|| $why.to_owned()))
            },
        }
    };
}

pub(super) use {nothing, nothing_if_on};
