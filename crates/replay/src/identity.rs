//! The roles and databases of sessions on the target.

use std::{collections::HashMap, fmt, str::FromStr};

/// A mapping from captured roles and databases to those that sessions use on the target.
///
/// By default, names are unchanged, and a name that the capture lacks is replaced by that of the
/// target.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IdentityMap {
    /// Mapped roles, captured to target.
    pub users: HashMap<String, String>,
    /// Mapped databases, captured to target.
    pub databases: HashMap<String, String>,
    /// A single role for all sessions; takes precedence over `users`.
    pub as_user: Option<String>,
    /// A single database for all sessions; takes precedence over `databases`.
    pub as_database: Option<String>,
}

impl IdentityMap {
    /// Returns the role for a session captured as `user`; an empty name means the target's own
    /// role.
    pub fn user<'a>(&'a self, user: &'a str) -> &'a str {
        select(self.as_user.as_deref(), &self.users, user)
    }

    /// Whether the map determines the role for a session captured as `user`.
    pub(crate) fn names_user(&self, user: &str) -> bool {
        self.as_user.is_some() || self.users.contains_key(user)
    }

    /// Returns the roles that the map sets, each with the captured role that it replaces; `None` if
    /// it replaces all.
    pub(crate) fn named_users(&self) -> impl Iterator<Item = (Option<&str>, &str)> {
        let only = self.as_user.iter().map(|user| (None, user.as_str()));
        let renamed = self.users.iter().filter(|_| self.as_user.is_none());
        only.chain(renamed.map(|(from, to)| (Some(from.as_str()), to.as_str())))
    }

    /// Whether the map determines the database for a session captured in `database`.
    pub(crate) fn names_database(&self, database: &str) -> bool {
        self.as_database.is_some() || self.databases.contains_key(database)
    }

    /// Returns the databases that the map sets, each with the captured database that it replaces;
    /// `None` if it replaces all.
    pub(crate) fn named_databases(&self) -> impl Iterator<Item = (Option<&str>, &str)> {
        let only = self.as_database.iter().map(|database| (None, database.as_str()));
        let renamed = self.databases.iter().filter(|_| self.as_database.is_none());
        only.chain(renamed.map(|(from, to)| (Some(from.as_str()), to.as_str())))
    }

    /// Returns the database for a session captured in `database`; an empty name means the target's
    /// own database.
    pub fn database<'a>(&'a self, database: &'a str) -> &'a str {
        select(self.as_database.as_deref(), &self.databases, database)
    }
}

fn select<'a>(
    only: Option<&'a str>,
    renamed: &'a HashMap<String, String>,
    captured: &'a str,
) -> &'a str {
    only.or_else(|| renamed.get(captured).map(String::as_str)).unwrap_or(captured)
}

/// A captured name and its replacement, from `--map-user` or `--map-database` (`OLD=NEW`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Renaming {
    /// The captured name.
    pub from: String,
    /// The name on the target.
    pub to: String,
}

/// The error for a text that does not have the form `OLD=NEW`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not a mapping: use OLD=NEW with two non-empty names")]
pub struct ParseRenamingError {
    text: String,
}

impl FromStr for Renaming {
    type Err = ParseRenamingError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        match text.split_once('=') {
            Some((from, to)) if !from.is_empty() && !to.is_empty() => {
                Ok(Self { from: from.to_owned(), to: to.to_owned() })
            }
            _ => Err(ParseRenamingError { text: text.to_owned() }),
        }
    }
}

impl fmt::Display for Renaming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}={}", self.from, self.to)
    }
}

#[test]
fn names_are_unchanged_unless_mapped() {
    let Renaming { from, to } = "app=bench".parse().unwrap();
    let mut identities = IdentityMap { users: HashMap::from([(from, to)]), ..Default::default() };
    assert_eq!(identities.user("app"), "bench");
    assert_eq!(identities.user("alice"), "alice");
    identities.as_user = Some("only".to_owned());
    assert_eq!(identities.user("app"), "only");
    assert_eq!(identities.database("shop"), "shop");
    assert!("=x".parse::<Renaming>().is_err());
}
