//! Server versions, which select the statements to use.

use std::fmt;

/// A server version in the format of `server_version_num`: 170002 is 17.2, 90624 is 9.6.24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServerVersion(pub u32);

impl ServerVersion {
    /// Returns the first release of a major version: `from_major(17)` is 17.0, `from_major(9)` is
    /// 9.0.
    pub const fn from_major(major: u32) -> Self {
        Self(major * 10_000)
    }

    /// Returns the first number of the version: 17 for 17.2, 9 for 9.6.24.
    pub const fn major(self) -> u32 {
        self.0 / 10_000
    }
}

/// Formats the version as released: `17.2`, `9.6.24`.
impl fmt::Display for ServerVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        match self.major() {
            10.. => write!(f, "{}.{}", number / 10_000, number % 10_000),
            _ => write!(f, "{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        }
    }
}

#[test]
fn versions_are_displayed_as_released() {
    assert_eq!(ServerVersion(170_002).to_string(), "17.2");
    assert_eq!(ServerVersion(90_624).to_string(), "9.6.24");
    assert!(ServerVersion::from_major(17) <= ServerVersion(170_000));
}
