//! Daemons that keep servers warm.
//!
//! [`watch()`] watches one server: it takes an image at intervals and another when the server shuts
//! down, and loads the newest one after the server restarted with an empty cache. [`follow()`]
//! watches a primary and its standbys, and keeps the standbys as warm as the primary, also after a
//! failover.
//!
//! Both block until a [`ShutdownSignal`] fires. Failures of a server, disk or folder are logged and
//! counted, and the daemon continues. Dumping and loading are implemented in [`crate::dump`] and
//! [`crate::load()`].

mod follow;
mod image_store;
mod load_log;
mod metrics;
mod shutdown;
mod watch;

pub use follow::{FollowSettings, follow};
pub use metrics::METRICS;
pub use shutdown::{ShutdownHandle, ShutdownSignal};
pub use watch::{WatchError, WatchSettings, watch};
