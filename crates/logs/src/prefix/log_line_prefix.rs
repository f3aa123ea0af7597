//! A log's line prefix for display: its text, its origin, and the evidence for a guess.

use std::fmt;

use serde::Serialize;

/// The line prefix of a log, with its origin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LogLinePrefix {
    /// The prefix in `log_line_prefix` syntax.
    pub text: String,
    /// Whether the prefix was given or guessed.
    pub origin: PrefixOrigin,
    /// Evidence for a guessed prefix.
    pub confidence: Option<Confidence>,
}

/// Formats a phrase: `log_line_prefix '%m [%p] ' (guessed: matches all 40 lines examined)`.
impl fmt::Display for LogLinePrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "log_line_prefix '{}' ", self.text)?;
        match (self.origin, &self.confidence) {
            (PrefixOrigin::Given, _) => f.write_str("(given)"),
            (PrefixOrigin::Guessed, None) => f.write_str("(guessed)"),
            (PrefixOrigin::Guessed, Some(Confidence { lines, lines_total, .. }))
                if lines == lines_total =>
            {
                write!(f, "(guessed: matches all {lines} lines examined)")
            }
            (PrefixOrigin::Guessed, Some(Confidence { lines, lines_total, .. })) => {
                write!(f, "(guessed: matches {lines} of {lines_total} lines examined)")
            }
        }
    }
}

impl LogLinePrefix {
    /// Returns a warning with advice, if another prefix matches equally well.
    pub fn ambiguity_warning(&self) -> Option<String> {
        let rival = self.confidence.as_ref()?.rival.as_ref()?;
        Some(format!(
            "the prefix could also be '{rival}', with other users, databases or sessions: \
             SHOW log_line_prefix prints the right one, --prefix passes it"
        ))
    }
}

/// Evidence for a guessed prefix.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Confidence {
    /// Number of lines of the sample that the prefix matches.
    pub lines: u64,
    /// Number of lines of the sample that match or at least seem to begin with a prefix.
    pub lines_total: u64,
    /// A prefix that matches as many lines but finds other users, databases or sessions in them.
    /// Only the user knows which one is right.
    pub rival: Option<String>,
}

/// The source of a line prefix: the user or the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefixOrigin {
    /// Given by the user.
    Given,
    /// Derived from the data.
    Guessed,
}

#[test]
fn guessed_prefix_is_displayed_with_its_evidence() {
    let prefix = |lines, rival: Option<&str>| LogLinePrefix {
        text: "%m ".to_owned(),
        origin: PrefixOrigin::Guessed,
        confidence: Some(Confidence { lines, lines_total: 9, rival: rival.map(str::to_owned) }),
    };
    let text = prefix(9, None).to_string();
    assert_eq!(text, "log_line_prefix '%m ' (guessed: matches all 9 lines examined)");
    assert!(prefix(8, None).to_string().ends_with("matches 8 of 9 lines examined)"));
    assert_eq!(prefix(9, None).ambiguity_warning(), None);
    assert!(
        prefix(9, Some("%t ")).ambiguity_warning().is_some_and(|warning| warning.contains("'%t '"))
    );
}
