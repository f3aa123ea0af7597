//! [`MergedCaptures`]: several captures, read as one.

use howdah_traffic::Event;

use super::{Capture, merge::EventMerge};
use crate::{error::ReadError, manifest::CaptureOrigin};

/// Several captures, read as one.
#[derive(Clone, Debug, Default)]
pub struct MergedCaptures {
    captures: Vec<Capture>,
    origin: CaptureOrigin,
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

/// The reason why captures cannot be read as one.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CaptureMergeError {
    /// The captures have different encodings for a database.
    #[error(
        "{} the encoding {encoding} in this capture, but {earlier} in an earlier one",
        encoding_owner(database)
    )]
    Encodings {
        /// The database; empty for all databases without an explicit encoding.
        database: String,
        /// The encoding in the capture that was to be added.
        encoding: String,
        /// The encoding in the captures added before.
        earlier: String,
    },
    /// There are [`MergedCaptures::CAPTURES_MAX`] captures already. The number is limited because
    /// each has open files and a few megabytes in memory.
    #[error(
        "more than {} captures cannot be merged at once: merge some of them first, then the results",
        MergedCaptures::CAPTURES_MAX
    )]
    TooMany,
}

/// Returns the subject and verb of the error message about different encodings.
fn encoding_owner(database: &str) -> String {
    match database {
        "" => "the databases without an encoding of their own have".to_owned(),
        name => format!("database {name:?} has"),
    }
}

impl MergedCaptures {
    /// Maximum number of captures.
    pub const CAPTURES_MAX: usize = 64;

    /// Adds a capture.
    ///
    /// # Errors
    ///
    /// The capture cannot be combined with those added before, which are unchanged.
    pub fn add(&mut self, capture: Capture) -> Result<(), CaptureMergeError> {
        if self.captures.len() >= Self::CAPTURES_MAX {
            return Err(CaptureMergeError::TooMany);
        }
        let origin = &capture.manifest().origin;
        for (database, encoding) in &origin.encodings {
            let earlier = self.origin.encodings.get(database);
            if let Some(earlier) = earlier.filter(|earlier| *earlier != encoding) {
                return Err(CaptureMergeError::Encodings {
                    database: database.clone(),
                    encoding: encoding.clone(),
                    earlier: earlier.clone(),
                });
            }
        }
        self.origin.files.extend_from_slice(&origin.files);
        self.origin.encodings.extend(origin.encodings.clone());
        self.add_server(&capture);
        self.captures.push(capture);
        Ok(())
    }

    /// Combines the captured servers: retains the server if all captures are of the same one, with
    /// the position of the capture that starts first.
    fn add_server(&mut self, capture: &Capture) {
        let manifest = capture.manifest();
        let server = manifest.origin.server.clone();
        if self.captures.is_empty() {
            self.origin.server = server;
        } else {
            let first = self.captures.iter().filter_map(|it| it.manifest().first).min();
            let earlier = self.origin.server.take();
            self.origin.server = earlier.zip(server).and_then(|(earlier, server)| {
                let is_same = earlier.system_identifier.is_some()
                    && earlier.system_identifier == server.system_identifier;
                let is_first = manifest.first.is_some_and(|own| first.is_none_or(|it| own < it));
                is_same.then_some(if is_first { server } else { earlier })
            });
        }
    }

    /// Returns the input files and encodings of all captures, and the server if all captures are of
    /// the same one.
    pub fn origin(&self) -> &CaptureOrigin {
        &self.origin
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
