//! Problems with connection parameters that do not prevent a connection.

use std::path::PathBuf;

use crate::setting_origin::SettingOrigin;

/// A problem with the connection parameters that the user should know about.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// libpq accepts this keyword, but it has no effect in this program.
    #[error("connection keyword {keyword} ({origin}) is not supported and is ignored")]
    Ignored {
        /// Keyword that has no effect.
        keyword: &'static str,
        /// The source that set the value.
        origin: SettingOrigin,
    },
    /// The permissions of the password file let other users access it; it was not read.
    #[error(
        "password file {} was ignored: mode {mode:04o} lets others access it; it must be 0600",
        .path.display()
    )]
    PasswordFilePermissions {
        /// Path of the password file.
        path: PathBuf,
        /// Permission bits of the file.
        mode: u32,
    },
    /// The password file is not a regular file; it was not read.
    #[error("password file {} was ignored: it is not a plain file", .path.display())]
    PasswordFileNotPlain {
        /// Path of the password file.
        path: PathBuf,
    },
    /// The password file could not be read.
    #[error("password file {} was ignored: {reason}", .path.display())]
    PasswordFileUnreadable {
        /// Path of the password file.
        path: PathBuf,
        /// The reason why the file could not be read.
        reason: String,
    },
}
