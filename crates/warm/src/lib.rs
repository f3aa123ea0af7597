//! Saves a server's buffer cache, and loads it into the same or another server.
//!
//! A [`CacheImage`] records which pages of which relations were in the cache and how hot each was.
//! It is taken by [`dump`], from the server's memory or by SQL; it can be converted from and to the
//! file of contrib's autoprewarm, see [`autoprewarm`]. [`load()`] brings its pages into the cache
//! of a server, hottest first.

pub mod advise;
pub mod autoprewarm;
#[cfg(feature = "benchmark")]
pub mod benchmark;
pub mod daemon;
pub mod diff;
pub mod dump;
pub mod heat;
pub mod image;
pub mod load;
pub mod metrics;
pub mod os_cache;
pub mod ready;

pub use image::CacheImage;
pub use load::{load, table::table};
