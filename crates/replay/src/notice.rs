//! Notices about a running replay, each kind reported once.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::capacity::Capacity;

/// A problem with a running replay that the user may want to fix before it runs for hours.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// At this point of the capture, more sessions were open at once than the target has
    /// connections for.
    TooManySessions {
        /// Number of sessions open at that point: one more than there is room for.
        sessions: usize,
        /// The target's connection slots.
        capacity: Capacity,
    },
    /// The target refused a connection with SQLSTATE 53300 (too_many_connections), mostly because
    /// all its connection slots are in use.
    NoConnectionsLeft {
        /// The target's error message.
        message: String,
        /// Number of connections that the replay had open.
        open: usize,
        /// Whether the session's events fail when they are due; otherwise they wait for a
        /// connection.
        is_paced: bool,
    },
}

impl Notice {
    /// Returns advice for the user.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::TooManySessions { .. } | Self::NoConnectionsLeft { .. } => {
                "raise max_connections on the target and restart it, or capture with less traffic"
            }
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooManySessions { sessions, capacity } => {
                write!(
                    f,
                    "the captured sessions need {sessions} or more connections at once: {capacity}"
                )
            }
            Self::NoConnectionsLeft { message: said, open, is_paced: paced } => {
                let then = if *paced {
                    "events of sessions without a connection fail when they are due"
                } else {
                    "sessions without a connection wait for one, about 20 s each"
                };
                write!(f, "the target refuses connections ({said}) while {open} are open: {then}")
            }
        }
    }
}

/// Passes notices to a callback, each kind at most once.
pub struct NoticeSink {
    report_to: Box<dyn Fn(&Notice) + Send + Sync>,
    crowded: AtomicBool,
    full: AtomicBool,
}

impl NoticeSink {
    /// Creates a sink that calls `tell`, possibly from several threads. The callback must return
    /// quickly.
    pub fn new(tell: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Self {
            report_to: Box::new(tell),
            crowded: AtomicBool::new(false),
            full: AtomicBool::new(false),
        }
    }

    pub(crate) fn report(&self, notice: &Notice) {
        let was_reported = match notice {
            Notice::TooManySessions { .. } => &self.crowded,
            Notice::NoConnectionsLeft { .. } => &self.full,
        };
        if !was_reported.swap(true, Ordering::Relaxed) {
            (self.report_to)(notice);
        }
    }
}

/// Logs notices as warnings, which is the default.
impl Default for NoticeSink {
    fn default() -> Self {
        Self::new(|notice| tracing::warn!("{notice}"))
    }
}

impl fmt::Debug for NoticeSink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

#[test]
fn each_kind_is_reported_once() {
    use std::sync::Arc;

    use parking_lot::Mutex;

    let reported = Arc::new(Mutex::new(Vec::new()));
    let sink = reported.clone();
    let notices = NoticeSink::new(move |notice| sink.lock().push(notice.to_string()));
    let capacity = Capacity { max: 10, reserved: 3, in_use: 2 };
    for sessions in [6, 7] {
        notices.report(&Notice::TooManySessions { sessions, capacity });
        notices.report(&Notice::NoConnectionsLeft {
            message: "sorry".to_owned(),
            open: 5,
            is_paced: false,
        });
    }
    let reported = reported.lock();
    assert_eq!(reported.len(), 2);
    assert_eq!(
        reported[0],
        "the captured sessions need 6 or more connections at once: the target has room for 5 \
         (max_connections is 10, 3 are reserved for superusers, 2 are in use)"
    );
}
