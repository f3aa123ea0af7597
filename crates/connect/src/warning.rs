//! Problems with connection parameters that do not prevent a connection.

use std::path::PathBuf;

use crate::setting_origin::SettingOrigin;

/// A problem with the connection parameters that the user should know of.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Warning {
    /// libpq supports this keyword, but this program does not.
    #[error("connection keyword {keyword} ({origin}) is ignored")]
    Ignored {
        /// The keyword.
        keyword: &'static str,
        /// The origin of the value.
        origin: SettingOrigin,
    },
    /// The password file is accessible to others than its owner; it was not read.
    #[error(
        "password file {} was ignored: mode {mode:04o} lets others read it, it must be 0600",
        .path.display()
    )]
    PasswordFilePermissions {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// The password file is not a regular file; it was not read.
    #[error("password file {} was ignored: it is not a plain file", .path.display())]
    PasswordFileNotPlain {
        /// The file.
        path: PathBuf,
    },
    /// The password file could not be read.
    #[error("password file {} was ignored: {reason}", .path.display())]
    PasswordFileUnreadable {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
}
