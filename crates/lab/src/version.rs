//! Server versions, as reported by `postgres --version`.

use std::fmt;

/// A PostgreSQL server version.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Version {
    major: u32,
    text: String,
}

impl Version {
    /// Parses the line that `postgres --version` prints:
    /// `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`, `postgres (PostgreSQL) 19devel`.
    ///
    /// `None` if another program printed the line.
    pub fn parse(line: &str) -> Option<Self> {
        let (_, text) = line.trim().split_once("(PostgreSQL) ")?;
        let digits = text.split(|c: char| !c.is_ascii_digit()).next()?;
        Some(Self { major: digits.parse().ok()?, text: text.to_owned() })
    }

    /// Returns the major version: 17 for 17.2.
    pub fn major(&self) -> u32 {
        self.major
    }

    /// Returns the whole version, including the packager's addition: `15.14 (Debian …)`.
    pub fn text(&self) -> &str {
        &self.text
    }
}

/// Displays the number alone: `15.14`.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text.split(' ').next().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_packages_and_development_versions_are_parsed() {
        for (line, major, shown) in [
            ("postgres (PostgreSQL) 17.11\n", 17, "17.11"),
            ("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)\n", 15, "15.14"),
            ("postgres (PostgreSQL) 19devel", 19, "19devel"),
            ("postgres (PostgreSQL) 9.6.24", 9, "9.6.24"),
        ] {
            let version = Version::parse(line).unwrap();
            assert_eq!((version.major(), version.to_string().as_str()), (major, shown));
        }
    }

    #[test]
    fn other_programs_have_no_version() {
        for line in ["", "psql (16.1)", "postgres (PostgreSQL) ", "postgres (PostgreSQL) x.1"] {
            assert_eq!(Version::parse(line), None, "{line:?}");
        }
    }
}
