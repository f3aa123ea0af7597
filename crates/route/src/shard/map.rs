//! [`ShardMap`]: determines the shard of each key.

use std::collections::BTreeMap;

use crate::shard::{
    hash,
    key::{KeyType, ShardKey},
};

/// Maximum number of shards.
const SHARDS_MAX: u32 = 65_536;

/// The distribution of keys over shards: by hash, by list, or by ranges.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: u32,
    columns: Vec<KeyType>,
    rule: ShardRule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum ShardRule {
    Hash,
    Sha1,
    List {
        entries: BTreeMap<Option<ShardKey>, u32>,
        otherwise: Option<u32>,
    },
    /// Ranges that do not overlap, sorted by lower bound; `None` is the lowest bound.
    Ranges(Vec<Range>),
}

/// A half-open range of keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The inclusive lower bound; `None` is `MINVALUE`.
    pub from: Option<ShardKey>,
    /// The exclusive upper bound; `None` is `MAXVALUE`.
    pub to: Option<ShardKey>,
    /// The shard that has the keys of the range.
    pub shard: u32,
}

/// The reason why a map is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// The number of shards is out of range.
    #[error("the number of shards is {0}; it must be from 1 to {SHARDS_MAX}")]
    Shards(u32),
    /// The key has no columns.
    #[error("a sharding key must have at least one column")]
    NoColumns,
    /// A shard number is out of range.
    #[error("shard {shard} does not exist: shards are numbered from 0 to {last}")]
    NoSuchShard {
        /// The invalid shard number.
        shard: u32,
        /// The highest valid shard number.
        last: u32,
    },
    /// A key of a list or a bound of a range has the wrong type.
    #[error("the sharding key {key} is not of type {of}")]
    Type {
        /// The key or bound with the wrong type.
        key: ShardKey,
        /// The type of the sharding key's column.
        of: KeyType,
    },
    /// A range contains no keys.
    #[error(
        "the range from {} to {} is empty: its end must be above its start",
        key_or(.from.as_ref(), "MINVALUE"),
        key_or(.to.as_ref(), "MAXVALUE")
    )]
    EmptyRange {
        /// The lower bound, inclusive.
        from: Option<ShardKey>,
        /// The upper bound, exclusive.
        to: Option<ShardKey>,
    },
    /// Two ranges overlap, so a key would be on two shards.
    #[error(
        "the ranges that begin at {} and at {} overlap",
        key_or(.first.as_ref(), "MINVALUE"),
        key_or(.second.as_ref(), "MINVALUE")
    )]
    Overlap {
        /// The lower bound of one range.
        first: Option<ShardKey>,
        /// The lower bound of the other.
        second: Option<ShardKey>,
    },
}

/// The reason why no shard can be determined for a key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoShard {
    /// The number of values differs from the number of key columns.
    #[error("wrong number of values for the sharding key: {actual} instead of {expected}")]
    Columns {
        /// Number of columns of the map's key.
        expected: usize,
        /// Number of values that were given.
        actual: usize,
    },
    /// A value has the wrong type.
    #[error("the sharding key {key} is not of type {of}")]
    Type {
        /// The value with the wrong type.
        key: ShardKey,
        /// The type of the sharding key's column.
        of: KeyType,
    },
    /// No shard is configured for the key, for example because no list entry or range contains it.
    #[error("no shard is configured for the key {}", key_or(.0.as_ref(), "NULL"))]
    KeyNotMapped(Option<ShardKey>),
}

/// Returns the key as text for an error, or `none` without a key.
fn key_or(key: Option<&ShardKey>, none: &str) -> String {
    key.map_or_else(|| none.to_owned(), ToString::to_string)
}

impl ShardMap {
    /// Creates a map by PostgreSQL's hash partitioning over one or several columns.
    ///
    /// # Errors
    ///
    /// The number of shards is not from 1 to 65,536, or there are no columns.
    pub fn hash(shards: u32, columns: Vec<KeyType>) -> Result<Self, MapError> {
        Self { shards, columns, rule: ShardRule::Hash }.checked()
    }

    /// Creates a map by the last four bytes of the SHA-1 of an integer's decimal digits, like
    /// PgCat's function `sha1`, for rows that PgCat distributed. NULL has no shard.
    ///
    /// # Errors
    ///
    /// The number of shards is not from 1 to 65,536.
    pub fn sha1(shards: u32) -> Result<Self, MapError> {
        Self { shards, columns: vec![KeyType::Int], rule: ShardRule::Sha1 }.checked()
    }

    /// Creates a map from individual keys; the key `None` is NULL, and `otherwise` is the shard of
    /// keys that are not listed.
    ///
    /// # Errors
    ///
    /// The number of shards or a shard number is out of range, or a key has the wrong type.
    pub fn list(
        shards: u32,
        column: KeyType,
        entries: BTreeMap<Option<ShardKey>, u32>,
        otherwise: Option<u32>,
    ) -> Result<Self, MapError> {
        let rule = ShardRule::List { entries, otherwise };
        Self { shards, columns: vec![column], rule }.checked()
    }

    /// Creates a map from ranges, in any order. Keys outside all ranges, and NULL, have no shard.
    ///
    /// # Errors
    ///
    /// The number of shards or a shard number is out of range, a bound has the wrong type, a range
    /// is empty, or two overlap.
    pub fn ranges(shards: u32, column: KeyType, mut ranges: Vec<Range>) -> Result<Self, MapError> {
        // `None`, the lowest bound, sorts first.
        ranges.sort_by(|a, b| a.from.cmp(&b.from));
        Self { shards, columns: vec![column], rule: ShardRule::Ranges(ranges) }.checked()
    }

    /// Returns the number of shards.
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// Returns the types of the key's columns.
    pub fn columns(&self) -> &[KeyType] {
        &self.columns
    }

    /// Returns the shard of a row with these key values; `None` is NULL.
    ///
    /// # Errors
    ///
    /// The values do not match the key's columns, or no shard is configured for them.
    pub fn shard(&self, values: &[Option<ShardKey>]) -> Result<u32, NoShard> {
        let (expected, actual) = (self.columns.len(), values.len());
        if expected != actual {
            return Err(NoShard::Columns { expected, actual });
        }
        for (of, key) in self.columns.iter().zip(values) {
            if let Some(key) = key.as_ref().filter(|key| !of.has(key)) {
                return Err(NoShard::Type { key: key.clone(), of: *of });
            }
        }
        match &self.rule {
            ShardRule::Hash => Ok((hash_columns(values) % u64::from(self.shards)) as u32),
            ShardRule::Sha1 => match &values[0] {
                Some(ShardKey::Int(value)) => Ok(hash::sha1_shard(*value) % self.shards),
                other => Err(NoShard::KeyNotMapped(other.clone())),
            },
            ShardRule::List { entries, otherwise } => {
                let shard = entries.get(&values[0]).copied().or(*otherwise);
                shard.ok_or_else(|| NoShard::KeyNotMapped(values[0].clone()))
            }
            ShardRule::Ranges(ranges) => {
                let found = values[0].as_ref().and_then(|key| find_range(ranges, key));
                found.ok_or_else(|| NoShard::KeyNotMapped(values[0].clone()))
            }
        }
    }

    fn checked(self) -> Result<Self, MapError> {
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(MapError::Shards(self.shards));
        }
        let of = *self.columns.first().ok_or(MapError::NoColumns)?;
        let there = |shard: u32| {
            if shard < self.shards {
                Ok(())
            } else {
                Err(MapError::NoSuchShard { shard, last: self.shards - 1 })
            }
        };
        let typed = |key: &Option<ShardKey>| match key {
            Some(key) if !of.has(key) => Err(MapError::Type { key: key.clone(), of }),
            _ => Ok(()),
        };
        match &self.rule {
            ShardRule::Hash | ShardRule::Sha1 => {}
            ShardRule::List { entries, otherwise } => {
                otherwise.map_or(Ok(()), there)?;
                for (key, shard) in entries {
                    typed(key)?;
                    there(*shard)?;
                }
            }
            ShardRule::Ranges(ranges) => {
                for Range { from, to, shard } in ranges {
                    typed(from)?;
                    typed(to)?;
                    there(*shard)?;
                    if to.is_some() && from >= to {
                        let (from, to) = (from.clone(), to.clone());
                        return Err(MapError::EmptyRange { from, to });
                    }
                }
                for two in ranges.windows(2) {
                    let [first, second] = two else { continue };
                    // `None` is above all keys as an upper bound, and below all keys as a lower
                    // bound.
                    if first.to.is_none() || second.from < first.to {
                        let (first, second) = (first.from.clone(), second.from.clone());
                        return Err(MapError::Overlap { first, second });
                    }
                }
            }
        }
        Ok(self)
    }
}

/// Returns the hash of a row's key. NULLs are skipped, so a key of NULLs has the hash 0.
fn hash_columns(values: &[Option<ShardKey>]) -> u64 {
    values.iter().flatten().fold(0, |row, key| {
        let column = match key {
            ShardKey::Int(value) => hash::hash_int(*value),
            ShardKey::Bytes(bytes) => hash::hash_bytes(bytes),
        };
        hash::combine(row, column)
    })
}

fn find_range(ranges: &[Range], key: &ShardKey) -> Option<u32> {
    let behind = ranges.partition_point(|range| range.from.as_ref().is_none_or(|from| from <= key));
    let range = ranges[..behind].last()?;
    range.to.as_ref().is_none_or(|to| key < to).then_some(range.shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: i64) -> Option<ShardKey> {
        Some(ShardKey::Int(value))
    }

    /// Expected shards are those of rows that another pooler with the same hash has stored, with
    /// five shards.
    #[test]
    fn hash_keys_map_to_historical_shards() {
        let map = ShardMap::hash(5, vec![KeyType::Int]).expect("five shards");
        let shards: [&[i64]; 5] = [
            &[1, 4, 5, 14, 19, 39, 40, 46, 47, 53],
            &[2, 3, 11, 17, 21, 23, 30, 49, 51, 54],
            &[6, 7, 15, 16, 18, 20, 25, 28, 34, 35],
            &[8, 12, 13, 22, 29, 31, 33, 36, 41, 43],
            &[9, 10, 24, 26, 27, 32, 37, 38, 42, 45],
        ];
        for (shard, keys) in (0..).zip(shards) {
            for key in keys {
                assert_eq!(map.shard(&[int(*key)]), Ok(shard), "{key}");
            }
        }
        assert_eq!(map.shard(&[None]), Ok(0), "NULL");
    }

    /// Expected shards are those of rows that PgCat has stored with `sha1`.
    #[test]
    fn sha1_keys_map_to_pgcat_shards() {
        let map = ShardMap::sha1(12).expect("twelve shards");
        let shards = [4, 7, 8, 3, 6, 0, 0, 10, 3, 11, 1, 7, 4, 4, 11, 2, 5, 0, 8, 3];
        for (key, shard) in (0..).zip(shards) {
            assert_eq!(map.shard(&[int(key)]), Ok(shard), "{key}");
        }
        assert_eq!(map.shard(&[None]), Err(NoShard::KeyNotMapped(None)));
    }

    #[test]
    fn list_and_range_bounds_are_exact() {
        let entries = [(int(1), 0), (int(7), 1), (None, 1)].into_iter().collect();
        let list = ShardMap::list(2, KeyType::Int, entries, None).expect("a list");
        assert_eq!(list.shard(&[int(7)]), Ok(1));
        assert_eq!(list.shard(&[None]), Ok(1));
        assert_eq!(list.shard(&[int(8)]), Err(NoShard::KeyNotMapped(int(8))));
        let ranges = vec![
            Range { from: int(100), to: int(200), shard: 1 },
            Range { from: None, to: int(100), shard: 0 },
            Range { from: int(300), to: None, shard: 1 },
        ];
        let map = ShardMap::ranges(2, KeyType::Int, ranges).expect("ranges");
        let at = |key| map.shard(&[key]).ok();
        let keys = [i64::MIN, 99, 100, 199, 200, 299, 300, i64::MAX].map(int);
        let entries = [Some(0), Some(0), Some(1), Some(1), None, None, Some(1), Some(1)];
        assert_eq!(keys.map(at), entries);
        assert_eq!(at(None), None);
    }

    #[test]
    fn invalid_maps_are_refused() {
        let range = |from, to, shard| Range { from, to, shard };
        let ranges =
            |ranges| ShardMap::ranges(2, KeyType::Int, ranges).expect_err("no map").to_string();
        assert!(ranges(vec![range(int(1), int(1), 0)]).contains("is empty"));
        assert!(ranges(vec![range(int(5), None, 0), range(int(9), None, 1)]).contains("overlap"));
        assert!(ranges(vec![range(None, int(5), 0), range(None, int(9), 1)]).contains("overlap"));
        assert!(ranges(vec![range(None, None, 2)]).contains("from 0 to 1"));
        let text = Some(ShardKey::Bytes(b"a".to_vec()));
        assert!(ranges(vec![range(text, None, 0)]).contains("is not of type bigint"));
        assert_eq!(
            ranges(vec![range(int(7), int(5), 0)]),
            "the range from 7 to 5 is empty: its end must be above its start"
        );
        assert_eq!(
            ranges(vec![range(None, int(5), 0), range(int(-1), None, 1)]),
            "the ranges that begin at MINVALUE and at -1 overlap"
        );
        assert_eq!(ShardMap::hash(0, vec![KeyType::Int]), Err(MapError::Shards(0)));
        assert_eq!(ShardMap::hash(2, Vec::new()), Err(MapError::NoColumns));
    }

    #[test]
    fn invalid_key_values_are_errors() {
        let map = ShardMap::hash(2, vec![KeyType::Int, KeyType::Uuid]).expect("two shards");
        let text = ShardKey::Bytes(b"a".to_vec());
        assert_eq!(map.shard(&[int(1)]), Err(NoShard::Columns { expected: 2, actual: 1 }));
        let error = NoShard::Type { key: text.clone(), of: KeyType::Uuid };
        assert_eq!(error.to_string(), "the sharding key 'a' is not of type uuid");
        let shown = |key| NoShard::KeyNotMapped(key).to_string();
        assert_eq!(shown(int(8)), "no shard is configured for the key 8");
        assert_eq!(shown(None), "no shard is configured for the key NULL");
        assert_eq!(map.shard(&[int(1), Some(text)]), Err(error));
    }
}
