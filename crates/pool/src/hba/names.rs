//! Names of databases and users as rules give them.

use regex_lite::{Regex, RegexBuilder};

use super::words::Word;

/// A regular expression, equal to another of the same text.
#[derive(Clone, Debug)]
pub(super) struct Pattern(pub(super) Regex);

impl PartialEq for Pattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl Pattern {
    /// Of a word that begins with a slash; `None` for any other.
    pub(super) fn of(word: &Word) -> Option<Result<Self, String>> {
        let text = word.text.strip_prefix('/')?;
        let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
        let built = built.map_err(|error| format!("{text:?} is no regular expression: {error}"));
        Some(built.map(Self))
    }
}

/// Largest compiled expression.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A database of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DatabaseName {
    All,
    SameUser,
    /// Physical replication, which is of no database.
    Replication,
    Name(String),
    Pattern(Pattern),
}

impl DatabaseName {
    pub(super) fn parse(word: &Word) -> Result<Self, String> {
        if let Some(pattern) = Pattern::of(word) {
            return pattern.map(Self::Pattern);
        }
        Ok(match word.text.as_str() {
            "all" if !word.quoted => Self::All,
            "sameuser" if !word.quoted => Self::SameUser,
            "replication" if !word.quoted => Self::Replication,
            role @ ("samerole" | "samegroup") if !word.quoted => {
                return Err(format!(
                    "{role} is not there: who is in which role, only the server knows; name the \
                     databases"
                ));
            }
            name => Self::Name(name.to_owned()),
        })
    }

    pub(super) fn is(&self, database: &str, user: &str, is_physical: bool) -> bool {
        if is_physical {
            return *self == Self::Replication;
        }
        match self {
            Self::All => true,
            Self::SameUser => database == user,
            Self::Replication => false,
            Self::Name(name) => name == database,
            Self::Pattern(pattern) => pattern.0.is_match(database),
        }
    }
}

/// A user of a rule or a map.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserName {
    All,
    Name(String),
    Pattern(Pattern),
}

impl UserName {
    pub(super) fn parse(word: &Word) -> Result<Self, String> {
        if let Some(pattern) = Pattern::of(word) {
            return pattern.map(Self::Pattern);
        }
        if word.text.starts_with('+') && !word.quoted {
            return Err(format!(
                "{} is not there: who is in which role, only the server knows; name the users, or a \
                 file of them with @",
                word.text
            ));
        }
        Ok(if word.is("all") { Self::All } else { Self::Name(word.text.clone()) })
    }

    pub(super) fn is(&self, user: &str) -> bool {
        match self {
            Self::All => true,
            Self::Name(name) => name == user,
            Self::Pattern(pattern) => pattern.0.is_match(user),
        }
    }
}
