//! Rules that do what prefixes, filters and tags of other servers do.

use super::{Conversion, ValueProblem};
use crate::settings::{RuleAction, RuleSettings};

/// Maximum number of patterns in the regular expression of one rule.
const PATTERNS_MAX: usize = 100;

/// Characters of globs with a meaning.
const GLOB_CHARACTERS: [char; 6] = ['*', '?', '[', ']', '{', '}'];

impl Conversion<'_> {
    /// Adds a tag to all metrics.
    pub(super) fn add_static_tag(&mut self, line: usize, path: &str, tag: &str, value: &str) {
        let (tag, value) = (tag.trim(), value.trim());
        if tag.is_empty() {
            return;
        }
        let earlier = self.settings.static_tags.insert(tag.to_owned(), value.to_owned());
        if earlier.is_some_and(|earlier| earlier != value) {
            let text = format!("a tag can have one value: the last one of {tag} is used");
            self.warn(line, path, text);
        }
    }

    /// Adds tags such as `region:eu` to all metrics.
    pub(super) fn add_static_tags(&mut self, line: usize, path: &str, tags: &[String]) {
        for text in tags {
            let (tag, value) = text.split_once(':').unwrap_or((text, ""));
            self.add_static_tag(line, path, tag, value);
        }
    }
}

/// Returns a copy of `rule` for each hundred patterns, for names that one of them matches as a
/// whole. The patterns are regular expressions.
pub(super) fn for_names(patterns: &[String], rule: &RuleSettings) -> Vec<RuleSettings> {
    let copy = |patterns: &[String]| RuleSettings {
        name_regex: Some(format!("^(?:{})$", patterns.join("|"))),
        ..rule.clone()
    };
    patterns.chunks(PATTERNS_MAX).map(copy).collect()
}

/// Returns a rule without conditions that drops metrics.
pub(super) fn dropping() -> RuleSettings {
    RuleSettings { action: Some(RuleAction::Drop), ..RuleSettings::default() }
}

/// Returns a rule without conditions that ends the evaluation.
pub(super) fn allowing() -> RuleSettings {
    RuleSettings { action: Some(RuleAction::Allow), ..RuleSettings::default() }
}

/// Returns a regular expression for a glob in which `*` matches any characters, and `?` one.
///
/// # Errors
///
/// The glob has sets or alternatives, which are rare.
pub(super) fn glob_regex(glob: &str) -> Result<String, ValueProblem> {
    if glob.contains(&GLOB_CHARACTERS[2..]) {
        return Err(format!("{glob:?} has characters other than * and ? with a meaning"));
    }
    Ok(regex_lite::escape(glob).replace(r"\*", ".*").replace(r"\?", "."))
}
