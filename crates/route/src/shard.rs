//! The map from sharding keys to shards.
//!
//! A map by hash assigns each row the number of the partition in which PostgreSQL would store it,
//! in a table `PARTITION BY HASH` with as many partitions as there are shards. If the table on
//! shard `n` has only the partition `MODULUS shards, REMAINDER n`, PostgreSQL rejects a row that is
//! sent to a wrong shard. Maps by list and by range compare keys as numbers or as bytes (the order
//! of the collation `C`).
//!
//! ```
//! use howdah_route::shard::{KeyType, ShardMap};
//!
//! let map = ShardMap::hash(5, vec![KeyType::Int])?;
//! assert_eq!(map.shard(&[Some(KeyType::Int.parse("1234")?)])?, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! This module does not deal with connections, servers, or the position of keys in statements.

mod hash;
mod key;
mod map;

pub use key::{KeyType, ShardKey, ShardKeyError};
pub use map::{MapError, NoShard, Range, ShardMap};
