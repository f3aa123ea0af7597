//! [`SettingOrigin`]: which source set a connection parameter.

use std::fmt;

/// The source of a keyword's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SettingOrigin {
    /// A command-line argument: the connection string, or `-h`, `-p`, `-U`, `-d`.
    Argument,
    /// A section of the connection service file.
    Service,
    /// The environment variable with this name.
    Variable(&'static str),
    /// No source set a value, so the default applies.
    Default,
}

impl fmt::Display for SettingOrigin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Argument => f.write_str("from the arguments"),
            Self::Service => f.write_str("from the service file"),
            Self::Variable(name) => write!(f, "from {name}"),
            Self::Default => f.write_str("the default"),
        }
    }
}
