//! [`Diagnostic`]: an error or warning about a configuration file, with file, line, key and advice.

use std::{
    fmt,
    path::{Path, PathBuf},
};

/// An error or warning about a position in a configuration file.
///
/// Displayed as `file:line: key: text (hint)`, without the parts that are missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Diagnostic {
    /// The file that the diagnostic is about.
    pub file: PathBuf,
    /// The line, from 1; 0 if the diagnostic is not about a line.
    pub line: usize,
    /// Path of the key; empty if the diagnostic is not about a key.
    pub key: String,
    /// The message, without file, line and key. It never contains a secret.
    pub text: String,
    /// Advice for the user.
    pub hint: Option<String>,
}

/// Maximum number of valid keys listed in the hint for an unknown one, if they are explained
/// elsewhere.
const KNOWN_KEYS_MAX: usize = 12;

impl Diagnostic {
    /// Creates a diagnostic without a hint.
    pub fn new(file: &Path, line: usize, key: &str, text: impl Into<String>) -> Self {
        let (file, key, text) = (file.to_owned(), key.to_owned(), text.into());
        Self { file, line, key, text, hint: None }
    }

    /// Adds advice for the user.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Adds a hint for an unknown name: the nearest of the known ones, or else all of them.
    #[must_use]
    pub fn or_nearest<'k>(mut self, name: &str, known: impl Iterator<Item = &'k str>) -> Self {
        let mut known: Vec<_> = known.collect();
        known.sort_unstable();
        self.hint = match nearest(name, known.iter().copied()) {
            Some(key) => Some(format!("did you mean `{key}`?")),
            None if known.is_empty() => None,
            None => Some(format!("known: {}", known.join(", "))),
        };
        self
    }

    /// Replaces serde's message for an unknown key with the usual one. `all_keys` says where all
    /// keys are explained; it is the hint if there are too many to list.
    pub(crate) fn reworded(self, all_keys: Option<&str>) -> Self {
        let Some(rest) = self.text.strip_prefix("unknown field `") else { return self };
        let mut quoted = rest.split('`').map(str::to_owned);
        let name = quoted.next().unwrap_or_default();
        // The rest is `, expected one of `, a name, `, `, a name, …
        let known: Vec<_> = quoted.skip(1).step_by(2).collect();
        let known = known.iter().map(String::as_str);
        let unknown = Self { text: "unknown key".to_owned(), ..self };
        match all_keys.filter(|_| known.len() > KNOWN_KEYS_MAX) {
            Some(hint) if nearest(&name, known.clone()).is_none() => unknown.with_hint(hint),
            _ => unknown.or_nearest(&name, known),
        }
    }
}

impl fmt::Display for Diagnostic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:", self.file.display())?;
        if self.line > 0 {
            write!(f, "{}:", self.line)?;
        }
        if !self.key.is_empty() {
            write!(f, " {}:", self.key)?;
        }
        write!(f, " {}", self.text)?;
        self.hint.iter().try_for_each(|hint| write!(f, " ({hint})"))
    }
}

/// The errors of a configuration file and of the files that it names. Never empty.
///
/// Displayed as one line per error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct SettingsErrors(pub Vec<Diagnostic>);

impl fmt::Display for SettingsErrors {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, diagnostic) in self.0.iter().enumerate() {
            write!(f, "{}{diagnostic}", if at == 0 { "" } else { "\n" })?;
        }
        Ok(())
    }
}

/// Names longer than this are not compared: the comparison needs memory for each character.
const COMPARED_BYTES_MAX: usize = 64;

/// Returns the known name with the smallest edit distance from `name`, ignoring case; `None` if no
/// known name is similar. A name that is known is its own nearest.
pub fn nearest<'k>(name: &str, known: impl Iterator<Item = &'k str>) -> Option<&'k str> {
    if name.len() > COMPARED_BYTES_MAX {
        return None;
    }
    let lower = name.to_lowercase();
    let distance = |key: &str| strsim::damerau_levenshtein(&lower, &key.to_lowercase());
    let nearest = known.map(|key| (distance(key), key != name, key)).min();
    let is_near = |distance: usize, key: &str| distance <= 3 && distance * 2 < key.len().max(3);
    nearest.filter(|(distance, _, key)| is_near(*distance, key)).map(|(_, _, key)| key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nearest_name_is_similar() {
        let known = ["port", "flushInterval", "hosts"];
        let found = |name: &str| nearest(name, known.into_iter());
        assert_eq!(found("port"), Some("port"));
        assert_eq!(found("prot"), Some("port"));
        assert_eq!(found("flushinterval"), Some("flushInterval"));
        assert_eq!(found("banana"), None);
        assert_eq!(found(&"p".repeat(1 << 20)), None);
    }

    #[test]
    fn diagnostic_shows_only_the_parts_it_has() {
        let file = Path::new("h.toml");
        let all = Diagnostic::new(file, 3, "prot", "unknown key");
        let known = || ["port", "host"].into_iter();
        let hinted = all.or_nearest("prot", known());
        assert_eq!(hinted.to_string(), "h.toml:3: prot: unknown key (did you mean `port`?)");
        let listed = Diagnostic::new(file, 0, "", "unknown key").or_nearest("banana", known());
        assert_eq!(listed.to_string(), "h.toml: unknown key (known: host, port)");
    }
}
