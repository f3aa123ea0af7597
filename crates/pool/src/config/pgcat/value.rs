//! Values of a `pgcat.toml`, as what they have to be.

use ::toml::de::DeValue;

pub(super) fn text(value: &DeValue<'_>) -> Result<String, String> {
    value.as_str().map(str::to_owned).ok_or_else(|| "must be a text".to_owned())
}

pub(super) fn flag(value: &DeValue<'_>) -> Result<bool, String> {
    value.as_bool().ok_or_else(|| "must be true or false".to_owned())
}

/// A number from 0.
pub(super) fn number<T: TryFrom<u64>>(value: &DeValue<'_>) -> Result<T, String> {
    let found = value.as_integer().and_then(|it| u64::from_str_radix(it.as_str(), it.radix()).ok());
    let found = found.ok_or_else(|| "must be a number, and not a negative one".to_owned())?;
    T::try_from(found).map_err(|_| "is too large".to_owned())
}

/// One of several words, whatever case it is in.
pub(super) fn word<T: Copy>(value: &DeValue<'_>, words: &[(&str, T)]) -> Result<T, String> {
    let said = text(value)?;
    let found = words.iter().find(|(word, _)| said.eq_ignore_ascii_case(word));
    found.map(|(_, meaning)| *meaning).ok_or_else(|| {
        let known: Vec<_> = words.iter().map(|(word, _)| *word).collect();
        format!("{said:?} is none of {}", known.join(", "))
    })
}
