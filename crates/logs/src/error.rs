//! Inputs that cannot be imported at all.

use crate::{language::Language, options::Format};

/// The input is hopeless: reading on would give nothing. The person has to change the options, or
/// give another file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImportError {
    /// Neither csvlog nor jsonlog, and no common line prefix fits.
    #[error(
        "{file}:{line}: not in a known log format: {excerpt:?}; if it is a stderr log, give its \
         log_line_prefix (SHOW log_line_prefix)"
    )]
    UnknownFormat {
        /// Name of the file.
        file: String,
        /// Line of the excerpt.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// The prefix that was given matches no line.
    #[error(
        "{file}:{line}: log_line_prefix {prefix:?} matches no line, such as {excerpt:?}{}",
        guess.as_ref().map_or(String::new(), |guess| format!("; {guess:?} would"))
    )]
    WrongPrefix {
        /// The prefix that was given.
        prefix: String,
        /// Name of the file.
        file: String,
        /// Line of the excerpt.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
        /// A prefix that does match, if one was found.
        guess: Option<String>,
    },
    /// No prefix fits every record. Reading on by the best guess could leave out whole databases.
    #[error(
        "{file}: no log_line_prefix is known that fits all records. {guess:?} fits {fits} of {records}, \
         and not {}. Give the server's own by --prefix: SHOW log_line_prefix prints it. \
         --prefix {guess:?} counts these lines and leaves them out",
        lines(misfits)
    )]
    UncertainPrefix {
        /// Name of the file.
        file: String,
        /// The prefix that fits most.
        guess: String,
        /// Records at the beginning of the file that it fits.
        fits: u64,
        /// Records that were looked at.
        records: u64,
        /// The first few of the others: line, and its beginning.
        misfits: Vec<(u64, String)>,
    },
    /// The input is not in the format that was given.
    #[error("{file}:{line}: not a {} record: {excerpt:?}", format.as_str())]
    WrongFormat {
        /// The format that was given.
        format: Format,
        /// Name of the file.
        file: String,
        /// Line of the excerpt.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// A csvlog that another tool has written anew.
    #[error(
        "{file}:{line}: a csvlog with its time between quotes, which no server writes: {excerpt:?}; another tool \
         has written it anew: give the server's own file"
    )]
    RewrittenCsv {
        /// Name of the file.
        file: String,
        /// Line of the excerpt.
        line: u64,
        /// The first line with text, shortened.
        excerpt: String,
    },
    /// The server wrote its messages in another language than English.
    #[error(
        "{file}:{line}: the log is {} ({excerpt:?}); statements can only be told in a log \
         written with lc_messages = 'C'",
        language.map_or("translated".to_owned(), |language| format!("in {language}"))
    )]
    Translated {
        /// Name of the file.
        file: String,
        /// Line of the excerpt.
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
        /// It begins as a gzip, zstd, xz or bzip2 file does.
        compressed: bool,
    },
}

/// `line 7 ("…"), line 9 ("…")`.
fn lines(lines: &[(u64, String)]) -> String {
    let one = |(line, excerpt): &(u64, String)| format!("line {line} ({excerpt:?})");
    lines.iter().map(one).collect::<Vec<_>>().join(", ")
}
