//! Keyword values collected from every place that may give them, with where each came from.

use std::{collections::BTreeMap, fmt};

use crate::{keyword, resolve_error::ResolveError};

/// Where the value of a keyword came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Origin {
    /// An argument: the connection string, or `-h`, `-p`, `-U`, `-d`.
    Typed,
    /// A section of the connection service file.
    Service,
    /// The environment variable of that name.
    Variable(&'static str),
    /// Nobody gave it.
    Default,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Typed => f.write_str("from the arguments"),
            Self::Service => f.write_str("from the service file"),
            Self::Variable(name) => write!(f, "from {name}"),
            Self::Default => f.write_str("the default"),
        }
    }
}

/// The values, by keyword. One of them may be a password, so there is no `Debug`.
#[derive(Default)]
pub(crate) struct Settings(BTreeMap<&'static str, Setting>);

struct Setting {
    value: String,
    origin: Origin,
}

impl Settings {
    /// Stores a value; one that is there already is replaced.
    ///
    /// # Errors
    ///
    /// libpq has no such keyword.
    pub(crate) fn set(
        &mut self,
        name: &str,
        value: impl Into<String>,
        origin: Origin,
    ) -> Result<(), ResolveError> {
        let keyword = keyword::find(name).ok_or_else(|| ResolveError::unknown_keyword(name))?;
        self.0.insert(keyword.name, Setting { value: value.into(), origin });
        Ok(())
    }

    /// Takes over all values of `other`; they win over those that are there.
    pub(crate) fn overlay(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Takes over the values of `other` whose keywords are not there, even as an empty value.
    pub(crate) fn underlay(&mut self, other: Self) {
        for (name, setting) in other.0 {
            self.0.entry(name).or_insert(setting);
        }
    }

    /// The value of a keyword; an empty one counts as none, as libpq has it.
    pub(crate) fn value(&self, name: &'static str) -> Option<&str> {
        debug_assert!(keyword::find(name).is_some(), "{name} is no keyword");
        self.0.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Where the value of a keyword came from.
    pub(crate) fn origin(&self, name: &'static str) -> Origin {
        self.0.get(name).map_or(Origin::Default, |setting| setting.origin)
    }

    /// The value of a keyword, read by `read`; `default` if there is none.
    ///
    /// # Errors
    ///
    /// `read` finds no meaning in it. Not for keywords whose values are secret: the error shows it.
    pub(crate) fn parsed<T>(
        &self,
        name: &'static str,
        default: T,
        expected: &'static str,
        read: impl FnOnce(&str) -> Option<T>,
    ) -> Result<T, ResolveError> {
        match self.value(name) {
            None => Ok(default),
            Some(value) => read(value).ok_or_else(|| self.invalid(name, value, expected)),
        }
    }

    /// The error for a `value` of `name` that means nothing.
    pub(crate) fn invalid(
        &self,
        name: &'static str,
        value: &str,
        expected: &'static str,
    ) -> ResolveError {
        let origin = self.origin(name);
        ResolveError::InvalidValue { keyword: name, value: value.to_owned(), origin, expected }
    }

    /// The keywords that were given, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}
