//! Serde module for a limit: `None` is written 0 and means no limit.

use std::num::NonZeroU64;

use serde::{Deserialize as _, Deserializer, Serializer, de::Error as _};

/// Reads a number; 0 is `None`.
///
/// # Errors
///
/// The value is not a non-negative integer, or is too large for `T`.
pub fn deserialize<'de, D, T>(from: D) -> Result<Option<T>, D::Error>
where
    D: Deserializer<'de>,
    T: TryFrom<NonZeroU64>,
{
    let number = u64::deserialize(from)?;
    let limit = NonZeroU64::new(number).map(T::try_from).transpose();
    limit.map_err(|_| D::Error::custom(format!("{number} is too large")))
}

/// Writes the number, or 0.
///
/// # Errors
///
/// Those of the serializer.
pub fn serialize<S, T>(limit: &Option<T>, to: S) -> Result<S::Ok, S::Error>
where
    S: Serializer,
    T: Copy + Into<NonZeroU64>,
{
    to.serialize_u64(limit.map_or(0, |limit| limit.into().get()))
}
