//! Converts values of a `pgcat.toml` to Rust types.

use toml::de::DeValue;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "must be a string".to_owned())
}

pub(super) fn flag(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "must be true or false".to_owned())
}

/// Converts a non-negative integer.
pub(super) fn number<T: TryFrom<u64>>(value: &DeValue<'_>) -> Result<T, String> {
    let found = value.as_integer().and_then(|it| u64::from_str_radix(it.as_str(), it.radix()).ok());
    let found = found.ok_or_else(|| "must be a non-negative number".to_owned())?;
    T::try_from(found).map_err(|_| "is too large".to_owned())
}

/// Converts a keyword, ignoring case, to the value that `keywords` assigns to it.
pub(super) fn keyword<T: Copy>(value: &DeValue<'_>, keywords: &[(&str, T)]) -> Result<T, String> {
    let text = text(value)?;
    let found = keywords.iter().find(|(keyword, _)| text.eq_ignore_ascii_case(keyword));
    found.map(|(_, value)| *value).ok_or_else(|| {
        let valid: Vec<_> = keywords.iter().map(|(keyword, _)| *keyword).collect();
        format!("{text:?} is not one of {}", valid.join(", "))
    })
}
