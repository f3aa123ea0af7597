//! From keys to shards.

use std::collections::BTreeMap;

use crate::{
    hash,
    key::{Key, KeyType},
};

/// Most shards there may be.
const SHARDS_MAX: u32 = 65_536;

/// Which keys are where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShardMap {
    shards: u32,
    columns: Vec<KeyType>,
    rule: Rule,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Rule {
    Hash,
    Sha1,
    List {
        places: BTreeMap<Option<Key>, u32>,
        otherwise: Option<u32>,
    },
    /// By their lower ends, which nothing is below; not overlapping.
    Ranges(Vec<Range>),
}

/// The keys from one to another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Range {
    /// The first; none is the least there can be (`MINVALUE`).
    pub from: Option<Key>,
    /// The first that is not in it any more; none: there is none (`MAXVALUE`).
    pub to: Option<Key>,
    /// Where they are.
    pub shard: u32,
}

/// Why a map cannot be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MapError {
    /// There have to be some, and not too many.
    #[error("{0} shards: from 1 to {SHARDS_MAX} are possible")]
    Shards(u32),
    /// Nothing to go by.
    #[error("a sharding key has at least one column")]
    NoColumns,
    /// A place that is not there.
    #[error("shard {shard} is not there: shards are numbered from 0 to {last}")]
    NoSuchShard {
        /// The place.
        shard: u32,
        /// The last there is.
        last: u32,
    },
    /// A key in the list or at an end of a range is of another type.
    #[error("{key:?} is no {of}")]
    Type {
        /// The key.
        key: Key,
        /// What keys are.
        of: KeyType,
    },
    /// A range that holds nothing.
    #[error("the range from {from:?} to {to:?} is empty")]
    EmptyRange {
        /// Its first key.
        from: Option<Key>,
        /// The first behind it.
        to: Option<Key>,
    },
    /// A key would be in two places.
    #[error("the ranges that begin at {first:?} and at {second:?} overlap")]
    Overlap {
        /// One of them.
        first: Option<Key>,
        /// The other.
        second: Option<Key>,
    },
}

/// Why a row has no shard.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoShard {
    /// The key has more or fewer columns.
    #[error("the sharding key has {wanted} columns, and {given} values are given")]
    Columns {
        /// Of the map.
        wanted: usize,
        /// Of the row.
        given: usize,
    },
    /// A value is of another type.
    #[error("{key:?} is no {of}")]
    Type {
        /// The value.
        key: Key,
        /// What it should be.
        of: KeyType,
    },
    /// No list and no range has it.
    #[error("no shard is for the key {0:?}")]
    Nowhere(Option<Key>),
}

impl ShardMap {
    /// By PostgreSQL's hash partitioning over one or several columns.
    ///
    /// # Errors
    ///
    /// No shards, too many, or no columns.
    pub fn hash(shards: u32, columns: Vec<KeyType>) -> Result<Self, MapError> {
        Self { shards, columns, rule: Rule::Hash }.checked()
    }

    /// By the last four bytes of the SHA-1 of an integer's decimal digits, as PgCat's function `sha1`: for
    /// rows that were spread by it. NULL is nowhere.
    ///
    /// # Errors
    ///
    /// No shards, or too many.
    pub fn sha1(shards: u32) -> Result<Self, MapError> {
        Self { shards, columns: vec![KeyType::Int], rule: Rule::Sha1 }.checked()
    }

    /// Key by key; `None` as a key is NULL, and `otherwise` takes what is not listed.
    ///
    /// # Errors
    ///
    /// A shard is not there, or a key is of another type.
    pub fn list(
        shards: u32,
        column: KeyType,
        places: BTreeMap<Option<Key>, u32>,
        otherwise: Option<u32>,
    ) -> Result<Self, MapError> {
        let rule = Rule::List { places, otherwise };
        Self { shards, columns: vec![column], rule }.checked()
    }

    /// By ranges, in any order. What is in none of them, and NULL, is nowhere.
    ///
    /// # Errors
    ///
    /// A shard is not there, an end is of another type, a range is empty, or two overlap.
    pub fn ranges(shards: u32, column: KeyType, mut ranges: Vec<Range>) -> Result<Self, MapError> {
        // The least comes first.
        ranges.sort_by(|a, b| a.from.cmp(&b.from));
        Self { shards, columns: vec![column], rule: Rule::Ranges(ranges) }.checked()
    }

    /// How many shards there are.
    #[must_use]
    pub fn shards(&self) -> u32 {
        self.shards
    }

    /// The types of the key's columns.
    #[must_use]
    pub fn columns(&self) -> &[KeyType] {
        &self.columns
    }

    /// Where a row is whose key has these values; `None` is NULL.
    ///
    /// # Errors
    ///
    /// The values are not those of a key, or no shard is for them.
    pub fn shard(&self, values: &[Option<Key>]) -> Result<u32, NoShard> {
        let (wanted, given) = (self.columns.len(), values.len());
        if wanted != given {
            return Err(NoShard::Columns { wanted, given });
        }
        for (of, key) in self.columns.iter().zip(values) {
            if let Some(key) = key.as_ref().filter(|key| !of.has(key)) {
                return Err(NoShard::Type { key: key.clone(), of: *of });
            }
        }
        match &self.rule {
            Rule::Hash => Ok((hash_of(values) % u64::from(self.shards)) as u32),
            Rule::Sha1 => match &values[0] {
                Some(Key::Int(value)) => Ok(hash::sha1_of(*value) % self.shards),
                other => Err(NoShard::Nowhere(other.clone())),
            },
            Rule::List { places, otherwise } => {
                let place = places.get(&values[0]).copied().or(*otherwise);
                place.ok_or_else(|| NoShard::Nowhere(values[0].clone()))
            }
            Rule::Ranges(ranges) => {
                let found = values[0].as_ref().and_then(|key| range_of(ranges, key));
                found.ok_or_else(|| NoShard::Nowhere(values[0].clone()))
            }
        }
    }

    fn checked(self) -> Result<Self, MapError> {
        if !(1..=SHARDS_MAX).contains(&self.shards) {
            return Err(MapError::Shards(self.shards));
        }
        let of = *self.columns.first().ok_or(MapError::NoColumns)?;
        let there = |shard: u32| match shard < self.shards {
            true => Ok(()),
            false => Err(MapError::NoSuchShard { shard, last: self.shards - 1 }),
        };
        let typed = |key: &Option<Key>| match key {
            Some(key) if !of.has(key) => Err(MapError::Type { key: key.clone(), of }),
            _ => Ok(()),
        };
        match &self.rule {
            Rule::Hash | Rule::Sha1 => {}
            Rule::List { places, otherwise } => {
                otherwise.map_or(Ok(()), there)?;
                for (key, shard) in places {
                    typed(key)?;
                    there(*shard)?;
                }
            }
            Rule::Ranges(ranges) => {
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
                    // None of `to` is the greatest, and none of `from` the least.
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

/// NULL adds nothing: a row of NULLs has the hash 0.
fn hash_of(values: &[Option<Key>]) -> u64 {
    values.iter().flatten().fold(0, |row, key| {
        let column = match key {
            Key::Int(value) => hash::of_int(*value),
            Key::Bytes(bytes) => hash::of_bytes(bytes),
        };
        hash::combine(row, column)
    })
}

fn range_of(ranges: &[Range], key: &Key) -> Option<u32> {
    let behind = ranges.partition_point(|range| range.from.as_ref().is_none_or(|from| from <= key));
    let range = ranges[..behind].last()?;
    range.to.as_ref().is_none_or(|to| key < to).then_some(range.shard)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn int(value: i64) -> Option<Key> {
        Some(Key::Int(value))
    }

    /// Which of five shards keys are in, as a pooler that shards by the same hash has had them for years.
    #[test]
    fn keys_are_where_they_have_always_been() {
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

    /// As such a pooler has had those that it shards by their SHA-1.
    #[test]
    fn keys_that_were_spread_by_sha1_are_found() {
        let map = ShardMap::sha1(12).expect("twelve shards");
        let shards = [4, 7, 8, 3, 6, 0, 0, 10, 3, 11, 1, 7, 4, 4, 11, 2, 5, 0, 8, 3];
        for (key, shard) in (0..).zip(shards) {
            assert_eq!(map.shard(&[int(key)]), Ok(shard), "{key}");
        }
        assert_eq!(map.shard(&[None]), Err(NoShard::Nowhere(None)));
    }

    #[test]
    fn lists_and_ranges_end_where_they_say() {
        let places = [(int(1), 0), (int(7), 1), (None, 1)].into_iter().collect();
        let list = ShardMap::list(2, KeyType::Int, places, None).expect("a list");
        assert_eq!(list.shard(&[int(7)]), Ok(1));
        assert_eq!(list.shard(&[None]), Ok(1));
        assert_eq!(list.shard(&[int(8)]), Err(NoShard::Nowhere(int(8))));
        let ranges = vec![
            Range { from: int(100), to: int(200), shard: 1 },
            Range { from: None, to: int(100), shard: 0 },
            Range { from: int(300), to: None, shard: 1 },
        ];
        let map = ShardMap::ranges(2, KeyType::Int, ranges).expect("ranges");
        let at = |key| map.shard(&[key]).ok();
        let keys = [i64::MIN, 99, 100, 199, 200, 299, 300, i64::MAX].map(int);
        let places = [Some(0), Some(0), Some(1), Some(1), None, None, Some(1), Some(1)];
        assert_eq!(keys.map(at), places);
        assert_eq!(at(None), None);
    }

    #[test]
    fn what_cannot_be_a_map_is_refused() {
        let range = |from, to, shard| Range { from, to, shard };
        let ranges =
            |ranges| ShardMap::ranges(2, KeyType::Int, ranges).expect_err("no map").to_string();
        assert!(ranges(vec![range(int(1), int(1), 0)]).contains("is empty"));
        assert!(ranges(vec![range(int(5), None, 0), range(int(9), None, 1)]).contains("overlap"));
        assert!(ranges(vec![range(None, int(5), 0), range(None, int(9), 1)]).contains("overlap"));
        assert!(ranges(vec![range(None, None, 2)]).contains("from 0 to 1"));
        let text = Some(Key::Bytes(b"a".to_vec()));
        assert!(ranges(vec![range(text, None, 0)]).contains("is no bigint"));
        assert_eq!(ShardMap::hash(0, vec![KeyType::Int]), Err(MapError::Shards(0)));
        assert_eq!(ShardMap::hash(2, Vec::new()), Err(MapError::NoColumns));
    }

    #[test]
    fn values_that_are_no_key_are_told() {
        let map = ShardMap::hash(2, vec![KeyType::Int, KeyType::Uuid]).expect("two shards");
        let text = Key::Bytes(b"a".to_vec());
        assert_eq!(map.shard(&[int(1)]), Err(NoShard::Columns { wanted: 2, given: 1 }));
        let error = NoShard::Type { key: text.clone(), of: KeyType::Uuid };
        assert_eq!(map.shard(&[int(1), Some(text)]), Err(error));
    }
}
