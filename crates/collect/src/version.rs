//! The version of a server, as statements choose by it.

use std::fmt;

/// A server's version as `server_version_num` has it: 170002 is 17.2, 90624 is 9.6.24.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version(pub u32);

impl Version {
    /// The first release of a major: `Version::major(17)` is 17.0, `Version::major(9)` is 9.0.
    pub const fn of_major(major: u32) -> Self {
        Self(major * 10_000)
    }

    /// The number in front: 17, or 9.
    pub const fn major(self) -> u32 {
        self.0 / 10_000
    }
}

/// As people write it: `17.2`, `9.6.24`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(number) = *self;
        match self.major() {
            10.. => write!(f, "{}.{}", number / 10_000, number % 10_000),
            _ => write!(f, "{}.{}.{}", number / 10_000, number / 100 % 100, number % 100),
        }
    }
}

#[test]
fn versions_read_as_people_write_them() {
    assert_eq!(Version(170_002).to_string(), "17.2");
    assert_eq!(Version(90_624).to_string(), "9.6.24");
    assert!(Version::of_major(17) <= Version(170_000));
}
