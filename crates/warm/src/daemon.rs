//! Daemons that keep servers warm.
//!
//! [`watch()`] watches one server: it takes an image at intervals and another when the server shuts
//! down, and loads the newest one after the server has restarted with an empty cache. [`follow()`]
//! watches a primary and its standbys, and keeps the standbys as warm as the primary, also after a
//! failover.
//!
//! [`watch()`] and [`follow()`] block until a [`ShutdownSignal`] fires. Failures are logged and
//! counted, and the daemon continues; only the causes of a [`WatchError`] end it. Dumping and
//! loading are implemented in [`crate::dump`] and [`crate::load()`].

mod error_chain;
mod follow;
mod image_store;
mod load_log;
mod metrics;
mod readiness;
mod server_access;
mod shutdown;
mod watch;

pub use follow::{
    DiscoverySettings, DiscoveryTemplate, FollowSettings, HoldOutSettings, TemplateError, follow,
};
pub use metrics::METRICS;
pub use readiness::{
    BoardRole, DatabaseReadiness, MEASURE_INTERVAL, ReadinessBoard, ReadinessQueryError,
    ServerReadiness, WarmFloors, WarmState,
};
pub use shutdown::{ShutdownHandle, ShutdownSignal};
pub use watch::{WatchError, WatchSettings, watch};
