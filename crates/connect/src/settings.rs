//! Keyword values collected from all sources, with the origin of each.

use std::collections::BTreeMap;

use crate::{keyword, resolve_error::ResolveError, setting_origin::SettingOrigin};

/// The values of connection keywords, each with its origin. Does not implement `Debug`, because a
/// value may be a password.
#[derive(Default)]
pub(crate) struct KeywordValues(BTreeMap<&'static str, KeywordValue>);

struct KeywordValue {
    value: String,
    origin: SettingOrigin,
}

impl KeywordValues {
    /// Stores a value, replacing an existing one.
    ///
    /// # Errors
    ///
    /// The keyword does not exist in libpq.
    pub(crate) fn set(
        &mut self,
        name: &str,
        value: impl Into<String>,
        origin: SettingOrigin,
    ) -> Result<(), ResolveError> {
        let keyword = keyword::find(name).ok_or_else(|| ResolveError::unknown_keyword(name))?;
        self.0.insert(keyword.name, KeywordValue { value: value.into(), origin });
        Ok(())
    }

    /// Merges all values of `other`, which take precedence.
    pub(crate) fn overlay(&mut self, other: Self) {
        self.0.extend(other.0);
    }

    /// Merges the values of `other` for keywords that are not set, not even to an empty value.
    pub(crate) fn underlay(&mut self, other: Self) {
        for (name, setting) in other.0 {
            self.0.entry(name).or_insert(setting);
        }
    }

    /// Returns the value of a keyword; as in libpq, an empty value counts as none.
    pub(crate) fn value(&self, name: &'static str) -> Option<&str> {
        debug_assert!(keyword::find(name).is_some(), "{name} is not a keyword");
        self.0.get(name).map(|setting| setting.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns the origin of a keyword's value.
    pub(crate) fn origin(&self, name: &'static str) -> SettingOrigin {
        self.0.get(name).map_or(SettingOrigin::Default, |setting| setting.origin)
    }

    /// Returns the value of a keyword, parsed by `read`; `default` if it is not set.
    ///
    /// # Errors
    ///
    /// `read` rejects the value. Not to be used for keywords with secret values: the error shows
    /// the value.
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

    /// Returns the error for an invalid `value` of `name`.
    pub(crate) fn invalid(
        &self,
        name: &'static str,
        value: &str,
        expected: &'static str,
    ) -> ResolveError {
        let origin = self.origin(name);
        ResolveError::InvalidValue { keyword: name, value: value.to_owned(), origin, expected }
    }

    /// Returns the keywords that are set, in alphabetical order.
    pub(crate) fn names(&self) -> impl Iterator<Item = &'static str> {
        self.0.keys().copied()
    }
}
