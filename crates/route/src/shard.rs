//! The map from sharding keys to shards.
//!
//! By hash, a row is on the shard with the number of the partition in which PostgreSQL would store
//! it, in a table `PARTITION BY HASH` with as many partitions as there are shards. If shard `n` has
//! only the partition `MODULUS shards, REMAINDER n`, a row sent to a wrong shard is an error rather
//! than lost. By list and by range, keys are compared as numbers or as bytes (the order of the
//! collation `C`).
//!
//! ```
//! use howdah_route::shard::{KeyType, ShardMap};
//!
//! let map = ShardMap::hash(5, vec![KeyType::Int])?;
//! assert_eq!(map.shard(&[Some(KeyType::Int.parse("1234")?)])?, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This module knows nothing of connections, servers, or the position of keys in statements.

mod hash;
mod key;
mod map;

pub use key::{KeyType, ShardKey, ShardKeyError};
pub use map::{MapError, NoShard, Range, ShardMap};
