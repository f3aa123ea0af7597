//! Keeps servers warm over time.
//!
//! [`watch()`] stays with one server: it takes an image at intervals, one more when the server shuts down,
//! and loads the newest when the server comes back with an empty cache. [`follow()`] stays with a primary
//! and its standbys, and keeps the standbys as warm as the primary, whichever of them that is at the
//! moment.
//!
//! Both block until they are told to [`Stop`]. What goes wrong with a server, a disk or a folder is
//! logged and counted, and they go on. How pages are dumped and loaded is the warm crate's business.

mod follow;
mod loaded;
mod metrics;
mod stop;
mod store;
mod watch;

pub use follow::{FollowSettings, follow};
pub use metrics::METRICS;
pub use stop::{Stop, Stopper};
pub use watch::{WatchError, WatchSettings, watch};
