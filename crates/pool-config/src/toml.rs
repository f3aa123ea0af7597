//! The `[pool]` section of `howdah.toml`: serde modules for values, and the document.

mod document;

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Deserializer, Serializer};

use super::durations;

pub(super) use document::PoolDocument;

/// Serde module for a limit; 0 means no limit.
pub(super) mod limit {
    use super::{Deserialize as _, Deserializer, NonZeroU32, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<NonZeroU32>, D::Error>
    where
        D: Deserializer<'de>,
    {
        u32::deserialize(from).map(NonZeroU32::new)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<NonZeroU32>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u32(it.map_or(0, NonZeroU32::get))
    }
}

/// Serde module for a role preference, written as its keyword.
pub(super) mod role_preference {
    use howdah_route::RolePreference;
    use serde::de::Error;

    use super::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<RolePreference, D::Error> {
        let keyword = String::deserialize(from)?;
        let valid = "any, primary, replica, prefer-replica or auto";
        RolePreference::parse(&keyword).ok_or_else(|| D::Error::custom(format!("must be {valid}")))
    }

    pub(crate) fn serialize<S: Serializer>(it: &RolePreference, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(it.as_str())
    }
}

/// Serde module for a limit in bytes; 0 means no limit.
pub(super) mod limit_bytes {
    use std::num::NonZeroU64;

    use super::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<NonZeroU64>, D::Error>
    where
        D: Deserializer<'de>,
    {
        u64::deserialize(from).map(NonZeroU64::new)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<NonZeroU64>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        to.serialize_u64(it.map_or(0, NonZeroU64::get))
    }
}

/// Serde module for a duration that may be missing.
pub(super) mod optional_duration {
    use super::{Deserializer, Duration, Serializer, durations::duration};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
    where
        D: Deserializer<'de>,
    {
        duration::deserialize(from).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match it {
            Some(it) => duration::serialize(it, to),
            None => to.serialize_none(),
        }
    }
}

/// Serde module for a timeout that may be missing; 0 means no timeout.
pub(super) mod optional_timeout {
    use super::{Deserializer, Duration, Serializer, durations::timeout};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Option<Duration>>, D::Error>
    where
        D: Deserializer<'de>,
    {
        timeout::deserialize(from).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Option<Duration>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match it {
            Some(it) => timeout::serialize(it, to),
            None => to.serialize_none(),
        }
    }
}

/// Serde module for the check query; `false` means none, and `true` an empty query.
pub(super) mod check_query {
    use super::{Deserialize, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<String>, D::Error>
    where
        D: Deserializer<'de>,
    {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a query, or false for none")]
        enum CheckQueryValue {
            Flag(bool),
            Query(String),
        }
        match CheckQueryValue::deserialize(from)? {
            CheckQueryValue::Flag(false) => Ok(None),
            CheckQueryValue::Flag(true) => Ok(Some(String::new())),
            CheckQueryValue::Query(query) => Ok(Some(query)),
        }
    }

    pub(crate) fn serialize<S: Serializer>(it: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
        match it {
            Some(query) => to.serialize_str(query),
            None => to.serialize_bool(false),
        }
    }
}
