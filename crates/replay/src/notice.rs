//! What a person should hear while a replay runs, once each.

use std::{
    fmt,
    sync::atomic::{AtomicBool, Ordering},
};

use crate::capacity::Capacity;

/// Something about a running replay that a person may want to change before it goes on for hours.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The reader has come to a point of the capture where more sessions were open at once than the
    /// target has connections for.
    Crowded {
        /// Sessions open at that point: one more than there is room for.
        sessions: usize,
        /// What the target has.
        capacity: Capacity,
    },
    /// The target refused a connection because it has none left.
    Full {
        /// In its own words.
        said: String,
        /// Connections of ours at that moment.
        open: usize,
        /// Whether the session's events fail when they are due; they wait for a place otherwise.
        paced: bool,
    },
}

impl Notice {
    /// What can be done about it.
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Crowded { .. } | Self::Full { .. } => {
                "raise max_connections on the target and restart it, or capture with less traffic"
            }
        }
    }
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Crowded { sessions, capacity } => {
                write!(
                    f,
                    "the captured sessions need {sessions} connections at once and more: {capacity}"
                )
            }
            Self::Full { said, open, paced } => {
                let then = match paced {
                    true => "events of sessions without a connection fail when they are due",
                    false => "sessions without a connection wait for one, some 20 s each",
                };
                write!(f, "the target refuses connections ({said}) while {open} are open: {then}")
            }
        }
    }
}

/// Hands notices to whoever talks to people; each kind at most once.
pub struct Notices {
    tell: Box<dyn Fn(&Notice) + Send + Sync>,
    crowded: AtomicBool,
    full: AtomicBool,
}

impl Notices {
    /// Notices go to `tell`, from any thread. It must not take long.
    pub fn new(tell: impl Fn(&Notice) + Send + Sync + 'static) -> Self {
        Self { tell: Box::new(tell), crowded: AtomicBool::new(false), full: AtomicBool::new(false) }
    }

    pub(crate) fn give(&self, notice: &Notice) {
        let given = match notice {
            Notice::Crowded { .. } => &self.crowded,
            Notice::Full { .. } => &self.full,
        };
        if !given.swap(true, Ordering::Relaxed) {
            (self.tell)(notice);
        }
    }
}

/// To the log.
impl Default for Notices {
    fn default() -> Self {
        Self::new(|notice| tracing::warn!("{notice}"))
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices").finish_non_exhaustive()
    }
}

#[test]
fn each_kind_is_told_once() {
    use std::sync::{Arc, Mutex};
    let told = Arc::new(Mutex::new(Vec::new()));
    let ear = told.clone();
    let notices = Notices::new(move |notice| ear.lock().unwrap().push(notice.to_string()));
    let capacity = Capacity { max: 10, reserved: 3, in_use: 2 };
    for sessions in [6, 7] {
        notices.give(&Notice::Crowded { sessions, capacity });
        notices.give(&Notice::Full { said: "sorry".to_owned(), open: 5, paced: false });
    }
    let told = told.lock().unwrap();
    assert_eq!(told.len(), 2);
    assert_eq!(
        told[0],
        "the captured sessions need 6 connections at once and more: the target has room for 5 \
         (max_connections is 10, 3 are reserved for superusers, 2 are in use)"
    );
}
