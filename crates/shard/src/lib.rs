//! Which shard a row belongs to.
//!
//! By hash, a row goes where PostgreSQL itself would put it in a table `PARTITION BY HASH` with as many
//! partitions as there are shards: shard `n` may hold the partition `MODULUS shards, REMAINDER n`, and a row
//! that is sent to a wrong one is an error there, not a loss. By list and by range, keys are compared as
//! numbers or as bytes (the order of the collation `C`).
//!
//! ```
//! use howdah_shard::{KeyType, ShardMap};
//!
//! let map = ShardMap::hash(5, vec![KeyType::Int])?;
//! assert_eq!(map.shard(&[Some(KeyType::Int.parse("1234")?)])?, 2);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! Knows nothing of connections, of servers, or of where in a statement a key stands.

mod hash;
mod key;
mod map;

pub use key::{Key, KeyError, KeyType};
pub use map::{MapError, NoShard, Range, ShardMap};
