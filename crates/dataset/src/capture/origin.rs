//! [`MergedOrigin`]: the common origin of several captures.

use howdah_traffic::Timestamp;

use crate::manifest::{CaptureManifest, CaptureOrigin};

/// Maximum number of captures that are merged.
pub(super) const CAPTURES_MAX: usize = 64;

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
    /// There are as many captures already as can be merged at once. The number is limited because
    /// each has open files and a few megabytes in memory.
    #[error(
        "more than {} captures cannot be merged at once: merge some of them first, then the results",
        CAPTURES_MAX
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

/// The common origin of several captures.
#[derive(Clone, Debug, Default)]
pub(super) struct MergedOrigin {
    origin: CaptureOrigin,
    captures: usize,
    /// Time of the earliest event.
    first: Option<Timestamp>,
}

impl MergedOrigin {
    /// Adds the origin of a capture.
    ///
    /// # Errors
    ///
    /// The captures have different encodings for a database. Nothing was added.
    pub(super) fn add(&mut self, manifest: &CaptureManifest) -> Result<(), CaptureMergeError> {
        let origin = &manifest.origin;
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
        self.add_server(manifest);
        self.captures += 1;
        self.first = self.first.into_iter().chain(manifest.first).min();
        Ok(())
    }

    /// Combines the captured servers: retains the server if all captures are of the same one, with
    /// the position of the capture that starts first.
    fn add_server(&mut self, manifest: &CaptureManifest) {
        let server = manifest.origin.server.clone();
        if self.captures == 0 {
            self.origin.server = server;
            return;
        }
        let earlier = self.origin.server.take();
        self.origin.server = earlier.zip(server).and_then(|(earlier, server)| {
            let is_same = earlier.system_identifier.is_some()
                && earlier.system_identifier == server.system_identifier;
            let is_first = manifest.first.is_some_and(|own| self.first.is_none_or(|it| own < it));
            is_same.then_some(if is_first { server } else { earlier })
        });
    }

    pub(super) fn origin(&self) -> &CaptureOrigin {
        &self.origin
    }
}
