//! The `[pool]` section of `howdah.toml`: how values are written, and the document around them.

mod document;

use std::{num::NonZeroU32, time::Duration};

use serde::{Deserialize, Deserializer, Serializer};

use super::durations;

pub(super) use document::Document;

/// A limit whose absence is written 0.
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

/// Which servers clients get that do not say.
pub(super) mod role_wish {
    use howdah_route::RolePreference;
    use serde::de::Error;

    use super::{Deserialize as _, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(
        from: D,
    ) -> Result<RolePreference, D::Error> {
        let word = String::deserialize(from)?;
        let wanted = "any, primary, replica, prefer-replica or auto";
        RolePreference::parse(&word).ok_or_else(|| D::Error::custom(format!("must be {wanted}")))
    }

    pub(crate) fn serialize<S: Serializer>(it: &RolePreference, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(it.as_str())
    }
}

/// A limit in bytes whose absence is written 0.
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

/// A duration that may be given.
pub(super) mod given_duration {
    use super::{Deserializer, Duration, Serializer, durations::whole};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Duration>, D::Error>
    where
        D: Deserializer<'de>,
    {
        whole::deserialize(from).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Duration>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match it {
            Some(it) => whole::serialize(it, to),
            None => to.serialize_none(),
        }
    }
}

/// A timeout that may be given, and then be for ever.
pub(super) mod given_timeout {
    use super::{Deserializer, Duration, Serializer, durations::optional};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<Option<Duration>>, D::Error>
    where
        D: Deserializer<'de>,
    {
        optional::deserialize(from).map(Some)
    }

    pub(crate) fn serialize<S: Serializer>(
        it: &Option<Option<Duration>>,
        to: S,
    ) -> Result<S::Ok, S::Error> {
        match it {
            Some(it) => optional::serialize(it, to),
            None => to.serialize_none(),
        }
    }
}

/// A query, or `false` for none.
pub(super) mod check_query {
    use super::{Deserialize, Deserializer, Serializer};

    pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<String>, D::Error>
    where
        D: Deserializer<'de>,
    {
        #[derive(Deserialize)]
        #[serde(untagged, expecting = "a query, or false for none")]
        enum Written {
            Is(bool),
            Query(String),
        }
        match Written::deserialize(from)? {
            Written::Is(false) => Ok(None),
            Written::Is(true) => Ok(Some(String::new())),
            Written::Query(query) => Ok(Some(query)),
        }
    }

    pub(crate) fn serialize<S: Serializer>(it: &Option<String>, to: S) -> Result<S::Ok, S::Error> {
        match it {
            Some(query) => to.serialize_str(query),
            None => to.serialize_bool(false),
        }
    }
}
