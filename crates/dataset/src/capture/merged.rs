//! [`MergedCaptures`]: several captures, read as one.

use howdah_traffic::Event;

use super::{
    Capture,
    merge::EventMerge,
    origin::{CAPTURES_MAX, CaptureMergeError, MergedOrigin},
};
use crate::{error::ReadError, manifest::CaptureOrigin};

/// Several captures, read as one.
#[derive(Clone, Debug, Default)]
pub struct MergedCaptures {
    captures: Vec<Capture>,
    origin: MergedOrigin,
}

/// The treatment of sessions that have the same name in different captures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SameNameSessions {
    /// They are different sessions. The number of the capture, from 1, is added to every name, as
    /// in `2/65e1.4d2`.
    Separate,
    /// They are one session, because the captures are parts of one capture.
    Joined,
}

impl MergedCaptures {
    /// Maximum number of captures.
    pub const CAPTURES_MAX: usize = CAPTURES_MAX;

    /// Adds a capture.
    ///
    /// # Errors
    ///
    /// The capture cannot be combined with those added before, which are unchanged.
    pub fn add(&mut self, capture: Capture) -> Result<(), CaptureMergeError> {
        if self.captures.len() >= Self::CAPTURES_MAX {
            return Err(CaptureMergeError::TooMany);
        }
        self.origin.add(capture.manifest())?;
        self.captures.push(capture);
        Ok(())
    }

    /// Returns the input files and encodings of all captures, and the server if all captures are of
    /// the same one.
    pub fn origin(&self) -> &CaptureOrigin {
        self.origin.origin()
    }

    /// Returns the number of events, according to the manifests.
    pub fn event_count(&self) -> u64 {
        self.captures.iter().map(|capture| capture.manifest().events).sum()
    }

    /// Returns all events ordered by time. Events with the same time are in the order of their
    /// captures, and within a capture in the order in which the writer received them.
    ///
    /// Files are opened when their first event is due, as in [`Capture::events`].
    pub fn events(&self, same_name: SameNameSessions) -> MergedEvents {
        let mut merge = EventMerge::new(None);
        for (number, capture) in (1..).zip(&self.captures) {
            merge.add(number, capture.files());
        }
        MergedEvents { merge, same_name }
    }
}

/// The events of several captures, ordered by time. The stream ends after an error.
pub struct MergedEvents {
    merge: EventMerge,
    same_name: SameNameSessions,
}

impl Iterator for MergedEvents {
    type Item = Result<Event, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        Some(self.merge.next()?.map(|(capture, stored)| {
            let mut event = *stored.event;
            if self.same_name == SameNameSessions::Separate {
                event.session = format!("{capture}/{}", event.session).into();
            }
            event
        }))
    }
}

impl std::fmt::Debug for MergedEvents {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MergedEvents").field("same_name", &self.same_name).finish_non_exhaustive()
    }
}
