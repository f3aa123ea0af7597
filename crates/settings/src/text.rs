//! [`SettingsText`]: the text of a configuration file, which knows its lines.

use std::{
    io::{self, Read},
    path::Path,
};

use toml::de::DeTable;

use crate::{Diagnostic, SettingsErrors};

/// The text of a configuration file.
#[derive(Clone, Debug)]
pub struct SettingsText<'a> {
    file: &'a Path,
    text: &'a str,
    /// Offsets of the newlines, ascending.
    newlines: Vec<usize>,
}

/// Maximum number of reported errors of a file.
pub(crate) const ERRORS_MAX: usize = 100;

impl<'a> SettingsText<'a> {
    /// Creates the text of `file`, which is only named in diagnostics.
    pub fn new(text: &'a str, file: &'a Path) -> Self {
        Self { file, text, newlines: text.match_indices('\n').map(|(at, _)| at).collect() }
    }

    /// Returns the path of the file.
    pub fn file(&self) -> &'a Path {
        self.file
    }

    /// Returns the number of the line that contains a byte offset, from 1.
    pub fn line(&self, at: usize) -> usize {
        1 + self.newlines.partition_point(|newline| *newline < at)
    }

    /// Creates a diagnostic about the line that contains a byte offset.
    pub fn diagnostic(&self, at: usize, key: &str, text: impl Into<String>) -> Diagnostic {
        Diagnostic::new(self.file, self.line(at), key, text)
    }

    /// Parses the text as TOML. The values of the result have their offsets.
    ///
    /// # Errors
    ///
    /// The first syntax error of each line, up to a maximum number.
    pub fn parse(&self) -> Result<DeTable<'a>, SettingsErrors> {
        let (table, errors) = DeTable::parse_recoverable(self.text);
        if errors.is_empty() {
            return Ok(table.into_inner());
        }
        let diagnostics = errors.iter().take(ERRORS_MAX).map(|error| {
            let at = error.span().map_or(0, |span| span.start);
            self.diagnostic(at, "", error.message())
        });
        let mut diagnostics: Vec<_> = diagnostics.collect();
        // Further errors of a line are mostly consequences of its first one.
        diagnostics.dedup_by_key(|diagnostic| diagnostic.line);
        Err(SettingsErrors(diagnostics))
    }
}

/// Reads a file of at most `bytes_max` bytes, a multiple of 1 MiB, as text.
///
/// # Errors
///
/// The file cannot be read, is longer, or is not UTF-8.
pub fn read_text(file: impl Read, bytes_max: u64) -> io::Result<String> {
    let mut bytes = Vec::new();
    file.take(bytes_max + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > bytes_max {
        return Err(io::Error::other(format!("the file is longer than {} MiB", bytes_max >> 20)));
    }
    String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        let line = 1 + error.as_bytes()[..at].iter().filter(|byte| **byte == b'\n').count();
        io::Error::other(format!("line {line} is not UTF-8"))
    })
}

#[test]
fn line_is_counted_from_one() {
    let text = SettingsText::new("a\nb\n", Path::new("h.toml"));
    let lines: Vec<_> = (0..6).map(|at| text.line(at)).collect();
    assert_eq!(lines, [1, 1, 2, 2, 3, 3]);
}

#[test]
fn syntax_error_is_reported_once_for_its_line() {
    let text = SettingsText::new("a = = 2\nb = 1\nb = 2\n", Path::new("h.toml"));
    let lines: Vec<_> = text.parse().unwrap_err().0.iter().map(|error| error.line).collect();
    assert_eq!(lines, [1, 3]);
}

#[test]
fn long_or_binary_file_is_refused() {
    let read = |bytes: &[u8]| read_text(bytes, 1 << 20).map_err(|error| error.to_string());
    assert_eq!(read(b"a\n"), Ok("a\n".to_owned()));
    assert_eq!(read(b"a\n\xff"), Err("line 2 is not UTF-8".to_owned()));
    let long = vec![b' '; (1 << 20) + 1];
    assert_eq!(read(&long), Err("the file is longer than 1 MiB".to_owned()));
}
