//! Database and user names in the fields of rules and maps.

use regex_lite::{Regex, RegexBuilder};

use super::tokenizer::HbaToken;

/// A regular expression for names. Two patterns are equal if their texts are.
#[derive(Clone, Debug)]
pub(super) struct NamePattern(pub(super) Regex);

impl PartialEq for NamePattern {
    fn eq(&self, other: &Self) -> bool {
        self.0.as_str() == other.0.as_str()
    }
}

impl NamePattern {
    /// Compiles a token that starts with a slash as a regular expression; `None` for other tokens.
    pub(super) fn from_token(token: &HbaToken) -> Option<Result<Self, String>> {
        let text = token.text.strip_prefix('/')?;
        let built = RegexBuilder::new(text).size_limit(PATTERN_BYTES_MAX).build();
        let built =
            built.map_err(|error| format!("{text:?} is not a valid regular expression: {error}"));
        Some(built.map(Self))
    }
}

/// Size limit of a compiled expression, in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

/// A database name in a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DatabaseName {
    All,
    SameUser,
    /// Physical replication, which has no database.
    Replication,
    Name(String),
    Pattern(NamePattern),
}

impl DatabaseName {
    pub(super) fn parse(token: &HbaToken) -> Result<Self, String> {
        if let Some(pattern) = NamePattern::from_token(token) {
            return pattern.map(Self::Pattern);
        }
        Ok(match token.text.as_str() {
            "all" if !token.is_quoted => Self::All,
            "sameuser" if !token.is_quoted => Self::SameUser,
            "replication" if !token.is_quoted => Self::Replication,
            role @ ("samerole" | "samegroup") if !token.is_quoted => {
                return Err(format!(
                    "{role} is not supported: only the server knows role memberships; list the \
                     databases"
                ));
            }
            name => Self::Name(name.to_owned()),
        })
    }

    pub(super) fn matches(&self, database: &str, user: &str, is_physical: bool) -> bool {
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

/// A user name in a rule or a map.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum UserName {
    All,
    Name(String),
    Pattern(NamePattern),
}

impl UserName {
    pub(super) fn parse(token: &HbaToken) -> Result<Self, String> {
        if let Some(pattern) = NamePattern::from_token(token) {
            return pattern.map(Self::Pattern);
        }
        if token.text.starts_with('+') && !token.is_quoted {
            return Err(format!(
                "{} is not supported: only the server knows role memberships; list the users, or a \
                 file of them with @",
                token.text
            ));
        }
        Ok(if token.is_keyword("all") { Self::All } else { Self::Name(token.text.clone()) })
    }

    pub(super) fn matches(&self, user: &str) -> bool {
        match self {
            Self::All => true,
            Self::Name(name) => name == user,
            Self::Pattern(pattern) => pattern.0.is_match(user),
        }
    }
}
