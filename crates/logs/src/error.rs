//! Errors: inputs that cannot be imported at all, and unusable options.

use howdah_log_input::CsvObstacle;

use crate::{language::Language, server_log_format::ServerLogFormat};

/// The reason why an input cannot be imported. The user must change the options or pass another
/// file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// The input is not recognized as a log; in particular, no common line prefix matches.
    #[error(
        "{file}:{line}: not in a known log format: {excerpt:?}; if it is a stderr log, give its \
         log_line_prefix (SHOW log_line_prefix)"
    )]
    UnknownFormat {
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// The given prefix matches no line at the beginning of the file.
    #[error(
        "{file}:{line}: log_line_prefix {prefix:?} does not match {excerpt:?} or any other line{}",
        guess.as_ref().map_or(String::new(), |guess| format!("; {guess:?} would"))
    )]
    WrongPrefix {
        /// The given prefix.
        prefix: String,
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
        /// A prefix that matches lines at the beginning of the file, if one was found.
        guess: Option<String>,
    },
    /// No guessed prefix matches every line that seems to begin with one. Continuing with the best
    /// guess could skip whole databases.
    #[error(
        "{file}: no known log_line_prefix matches all records. {guess:?} matches {fits} of {records}, \
         but not {}. Pass the server's own with --prefix (SHOW log_line_prefix prints it), \
         or --prefix {guess:?} to count these lines and skip them",
        quote_lines(misfits)
    )]
    UncertainPrefix {
        /// Name of the file.
        file: String,
        /// The prefix that matches most lines.
        guess: String,
        /// Number of examined lines that `guess` matches.
        fits: u64,
        /// Number of examined lines that seem to begin with a prefix.
        records: u64,
        /// Line number and beginning of the first few lines that do not match.
        misfits: Vec<(u64, String)>,
    },
    /// The input is not in the given format.
    #[error("{file}:{line}: not a {} record: {excerpt:?}", format.as_str())]
    WrongFormat {
        /// The given format.
        format: ServerLogFormat,
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// Another tool has rewritten the csvlog, and not all of its columns are certain.
    #[error("{file}:{line}: a csvlog that another tool has rewritten: {excerpt:?}; {obstacle}")]
    RewrittenCsv {
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
        /// The reason why the rows cannot be read.
        obstacle: CsvObstacle,
    },
    /// Neither the lines nor an envelope have times.
    #[error(
        "{file}:{line}: a log without times: {excerpt:?}; export it with the time of each entry, or \
         set a log_line_prefix with %m"
    )]
    WithoutTimes {
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// The server wrote its messages in a language other than English.
    #[error(
        "{file}:{line}: the log is {} ({excerpt:?}); statements are recognized only in a log \
         written with lc_messages = 'C'",
        language.map_or("translated".to_owned(), |language| format!("in {language}"))
    )]
    Translated {
        /// Name of the file.
        file: String,
        /// Line number of the excerpt, from 1.
        line: u64,
        /// A translated line, shortened.
        excerpt: String,
        /// The language, if it is known.
        language: Option<Language>,
    },
    /// The input is not text.
    #[error("{file}: not text{}", if *compressed { "; it looks compressed: decompress it first" } else { "" })]
    Binary {
        /// Name of the file.
        file: String,
        /// Whether the file starts with the magic number of a compressed format, such as gzip or
        /// zstd.
        compressed: bool,
    },
}

/// An unusable option: a mistake of the caller, independent of the input.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OptionsError {
    /// The prefix has no time, so events could not be scheduled for replay. It may lack the time
    /// only if an envelope, such as syslog, adds one.
    #[error("log_line_prefix {prefix:?} has no time: it needs %m, %t or %n")]
    PrefixWithoutTime {
        /// The prefix as given.
        prefix: String,
    },
    /// The prefix ends inside an escape, as in `%m %`.
    #[error("log_line_prefix {prefix:?} ends inside an escape")]
    PrefixCutShort {
        /// The prefix as given.
        prefix: String,
    },
    /// The time zone is not an IANA name, an offset or a known abbreviation.
    #[error(
        "unknown time zone {timezone:?}: give a name such as Europe/Vienna or an offset such as +05:30"
    )]
    UnknownTimezone {
        /// The zone as given.
        timezone: String,
    },
}

/// Formats misfit lines for an error: `line 7 ("…"), line 9 ("…")`.
fn quote_lines(lines: &[(u64, String)]) -> String {
    let one = |(line, excerpt): &(u64, String)| format!("line {line} ({excerpt:?})");
    lines.iter().map(one).collect::<Vec<_>>().join(", ")
}
