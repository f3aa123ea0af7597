//! The session parameters that a server reports, stored in one small allocation.

use std::fmt;

use crate::SessionError;

/// Maximum number of bytes stored. A server reports about fifteen parameters, usually a few hundred
/// bytes in all.
const BYTES_MAX: usize = 1 << 20;

/// The parameters as `name NUL value NUL`, in the order first reported.
#[derive(Default)]
pub(crate) struct ReportedParameters(Vec<u8>);

impl ReportedParameters {
    /// Stores a value, replacing the previous one.
    pub(crate) fn set(&mut self, name: &[u8], value: &[u8]) -> Result<(), SessionError> {
        if let Some((start, end)) = self.value_range(name) {
            if self.0[start..end] == *value {
                return Ok(());
            }
            self.0.splice(start..end, value.iter().copied());
        } else {
            for text in [name, value] {
                self.0.extend_from_slice(text);
                self.0.push(0);
            }
            self.0.shrink_to_fit();
        }
        if self.0.len() > BYTES_MAX {
            return Err(SessionError::ParametersTooLong { bytes_max: BYTES_MAX });
        }
        Ok(())
    }

    pub(crate) fn value(&self, name: &[u8]) -> Option<&[u8]> {
        self.value_range(name).map(|(start, end)| &self.0[start..end])
    }

    fn value_range(&self, name: &[u8]) -> Option<(usize, usize)> {
        let mut start = 0;
        let mut texts = self.0.split(|byte| *byte == 0);
        while let (Some(found), Some(value)) = (texts.next(), texts.next()) {
            let value_start = start + found.len() + 1;
            if found == name {
                return Some((value_start, value_start + value.len()));
            }
            start = value_start + value.len() + 1;
        }
        None
    }
}

impl fmt::Debug for ReportedParameters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(&self.0).replace('\0', ";"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn later_value_replaces_earlier_one() {
        let mut settings = ReportedParameters::default();
        for (name, value) in [("TimeZone", "UTC"), ("application_name", ""), ("DateStyle", "ISO")] {
            settings.set(name.as_bytes(), value.as_bytes()).unwrap();
        }
        settings.set(b"TimeZone", b"Europe/Berlin").unwrap();
        settings.set(b"application_name", b"psql").unwrap();
        assert_eq!(settings.value(b"TimeZone"), Some(&b"Europe/Berlin"[..]));
        assert_eq!(settings.value(b"application_name"), Some(&b"psql"[..]));
        assert_eq!(settings.value(b"DateStyle"), Some(&b"ISO"[..]));
        assert_eq!(settings.value(b"psql"), None, "values are not names");
        assert_eq!(settings.value(b""), None);
    }

    #[test]
    fn oversized_parameters_are_refused() {
        let mut settings = ReportedParameters::default();
        let value = vec![b'x'; BYTES_MAX / 2];
        settings.set(b"a", &value).unwrap();
        assert!(matches!(settings.set(b"b", &value), Err(SessionError::ParametersTooLong { .. })));
    }
}
