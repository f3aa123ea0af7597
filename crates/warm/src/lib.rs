//! What is in a server's buffer cache: saved, moved to another server, loaded again.
//!
//! A [`CacheImage`] says which pages of which relations were in the cache and how hot each was. It is
//! taken by [`dump`], from the server's memory seen from outside, or by SQL; and it converts from and to
//! the file of contrib's autoprewarm, see [`autoprewarm`]. [`load()`] brings its pages into the cache of a
//! server, hottest first.

pub mod advise;
pub mod autoprewarm;
pub mod diff;
pub mod dump;
pub mod image;
pub mod load;
pub mod metrics;
pub mod os_cache;
pub mod ready;

pub use image::CacheImage;
pub use load::{load, table::table};
