//! Detects a log's format, and the prefix of a stderr log, from its beginning.

use super::{
    csv::{Csv, is_row_start},
    json::Json,
    reader::LogReader,
    stderr::Stderr,
};
use crate::{
    error::{ImportError, OptionsError},
    language::Language,
    prefix::{CompiledPrefix, SessionNames, are_without_times, guess_prefix, is_misfit},
    record::spans::RECORD_BYTES_LIMIT,
    server_log_format::ServerLogFormat,
    summary::LogPosition,
};
use howdah_log_input::{InputState, LineLabel, csv_obstacle, shorten, stamp_len};

/// A detector of a log's format and prefix, as far as the options do not determine them.
#[derive(Debug)]
pub(crate) struct FormatDetector {
    pub(crate) format: Option<ServerLogFormat>,
    pub(crate) prefix: Option<CompiledPrefix>,
    pub(crate) max_record_bytes: usize,
}

impl FormatDetector {
    pub(crate) fn new(
        format: Option<ServerLogFormat>,
        prefix: Option<&str>,
        max_record_bytes: usize,
    ) -> Result<Self, OptionsError> {
        let prefix = prefix.map(CompiledPrefix::compile).transpose()?;
        let max_record_bytes = max_record_bytes.min(RECORD_BYTES_LIMIT);
        Ok(Self { format, prefix, max_record_bytes })
    }

    /// Replaces the prefix that stderr logs must have.
    pub(crate) fn expect_prefix(&mut self, prefix: &str) -> Result<(), OptionsError> {
        self.prefix = Some(CompiledPrefix::compile(prefix)?);
        Ok(())
    }

    /// Returns the reader for an input that begins with `input`, or `None` while `input` is too
    /// short or blank.
    ///
    /// # Errors
    ///
    /// The input is long enough or has ended, but is in none of the allowed formats, or its prefix
    /// is uncertain.
    pub(crate) fn reader(
        &self,
        input: &[u8],
        state: InputState,
        position: LogPosition<'_>,
    ) -> Result<Option<LogReader>, ImportError> {
        let sample = InputSample::new(input, state);
        if let Some(reader) = self.detect(&sample) {
            return Ok(Some(reader));
        }
        if state == InputState::Idle || !sample.is_full && state == InputState::Open {
            return Ok(None);
        }
        match sample.first_text() {
            None if sample.is_full || !input.is_empty() && !input.trim_ascii().is_empty() => {
                Err(binary_or_unknown(input, input, position))
            }
            None => Ok(None),
            Some((offset, line)) => {
                let newlines = memchr::memchr_iter(b'\n', &input[..offset]).count() as u64;
                let position = LogPosition { line: position.line + newlines, ..position };
                Err(self.detection_error(&sample, input, line, position))
            }
        }
    }

    fn detect(&self, sample: &InputSample<'_>) -> Option<LogReader> {
        let allows = |format| self.format.is_none_or(|expected| expected == format);
        let mut json = Json::new(self.max_record_bytes);
        for line in sample.lines() {
            let is_object = line.starts_with(b"{")
                && (json.is_record(line.trim_ascii_end()) || is_json_record_start(line));
            if allows(ServerLogFormat::Json) && is_object {
                return Some(LogReader::Json(json));
            }
            if allows(ServerLogFormat::Csv) && is_row_start(line, true) == Some(true) {
                return Some(LogReader::Csv(Csv::new(self.max_record_bytes)));
            }
            if allows(ServerLogFormat::Stderr)
                && let Some(prefix) = &self.prefix
                && prefix.matches(line, SessionNames::default()).is_some()
            {
                return Some(LogReader::Stderr(Stderr::new(
                    prefix.clone(),
                    false,
                    self.max_record_bytes,
                )));
            }
        }
        if !allows(ServerLogFormat::Stderr) || self.prefix.is_some() || !sample.is_ready {
            return None;
        }
        let prefix = guess_prefix(sample.lines()).filter(CompiledPrefix::fits_all)?;
        Some(LogReader::Stderr(Stderr::new(prefix, true, self.max_record_bytes)))
    }

    /// Returns the error for a sample in which no format was detected.
    fn detection_error(
        &self,
        sample: &InputSample<'_>,
        input: &[u8],
        first: &[u8],
        position: LogPosition<'_>,
    ) -> ImportError {
        let file = position.file.to_owned();
        let (line, excerpt) = (position.line, shorten(first));
        if let Some(line_text) = sample.lines().find(|line| is_translated(line)) {
            let (excerpt, language) = (shorten(line_text), Language::detect_in_line(line_text));
            return ImportError::Translated { file, line, excerpt, language };
        }
        if let Some(obstacle) = csv_obstacle(sample.bytes) {
            return ImportError::RewrittenCsv { file, line, excerpt, obstacle };
        }
        match (self.format, &self.prefix) {
            (Some(format @ (ServerLogFormat::Csv | ServerLogFormat::Json)), _) => {
                ImportError::WrongFormat { format, file, line, excerpt }
            }
            (_, Some(prefix)) => ImportError::WrongPrefix {
                prefix: prefix.source().to_owned(),
                file,
                line,
                excerpt,
                guess: guess_prefix(sample.lines()).map(|guess| guess.source().to_owned()),
            },
            (_, None) => match guess_prefix(sample.lines()) {
                Some(prefix) => uncertain_prefix(&prefix, sample, input, position),
                None => match binary_or_unknown(input, first, position) {
                    ImportError::UnknownFormat { .. } if are_without_times(sample.lines()) => {
                        ImportError::WithoutTimes { file, line, excerpt }
                    }
                    other => other,
                },
            },
        }
    }
}

/// Creates the error for a prefix that does not match all records of a sample. `position` is the
/// position of the sample's first text.
fn uncertain_prefix(
    prefix: &CompiledPrefix,
    sample: &InputSample<'_>,
    input: &[u8],
    position: LogPosition<'_>,
) -> ImportError {
    let blank = sample.first_text().map_or(0, |(offset, _)| offset);
    let first = position.line - memchr::memchr_iter(b'\n', &input[..blank]).count() as u64;
    let lines = (first..).zip(sample.bytes.split_inclusive(|byte| *byte == b'\n'));
    let misfits = lines
        .filter(|(_, line)| !line.starts_with(b"\t") && is_misfit(prefix, line))
        .map(|(number, line)| (number, shorten(line)))
        .take(MISFITS_MAX)
        .collect();
    let confidence = prefix.confidence();
    ImportError::UncertainPrefix {
        file: position.file.to_owned(),
        guess: prefix.source().to_owned(),
        fits: confidence.map_or(0, |confidence| confidence.lines),
        records: confidence.map_or(0, |confidence| confidence.lines_total),
        misfits,
    }
}

/// Maximum number of lines that an [`ImportError::UncertainPrefix`] quotes.
const MISFITS_MAX: usize = 3;

/// Whether a line is incomplete and begins like a jsonlog record.
fn is_json_record_start(line: &[u8]) -> bool {
    !line.ends_with(b"\n") && line.starts_with(b"{\"timestamp\":\"")
}

fn binary_or_unknown(input: &[u8], first: &[u8], position: LogPosition<'_>) -> ImportError {
    let file = position.file.to_owned();
    let compressed = MAGICS.iter().any(|magic| input.starts_with(magic));
    if compressed || input[..input.len().min(SAMPLE_BYTES)].contains(&0) {
        return ImportError::Binary { file, compressed };
    }
    ImportError::UnknownFormat { file, line: position.line, excerpt: shorten(first) }
}

/// First bytes of gzip, zstd, xz and bzip2 files.
const MAGICS: &[&[u8]] = &[b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh"];

/// Whether a line has a time and a label that is not English.
fn is_translated(line: &[u8]) -> bool {
    let head = &line[..line.len().min(LABEL_WINDOW_BYTES)];
    let has_time = (0..head.len().min(64))
        .any(|at| stamp_len(&head[at..], true).or(stamp_len(&head[at..], false)).is_some());
    if !has_time {
        return false;
    }
    memchr::memmem::find_iter(head, b":  ").any(|colon| {
        let start = head[..colon]
            .iter()
            .rposition(|byte| byte.is_ascii_whitespace() || b"|:]>;,".contains(byte))
            .map_or(0, |at| at + 1);
        let word = &head[start..colon];
        let is_capital = |byte: &u8| byte.is_ascii_uppercase() || *byte >= 0x80;
        word.len() >= 3 && word.iter().all(is_capital) && LineLabel::parse(&head[start..]).is_none()
    })
}

/// Number of bytes at the front of a line that are searched for a label.
const LABEL_WINDOW_BYTES: usize = 512;

/// The beginning of an input, up to the end of a line where possible.
struct InputSample<'a> {
    bytes: &'a [u8],
    /// Whether the sample has its maximum size, so that it will not grow.
    is_full: bool,
    /// Whether to guess a prefix: the sample will not grow, or it has text and the input has paused
    /// or ended.
    is_ready: bool,
}

/// Maximum size of a sample.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_LINES: usize = 1000;

impl<'a> InputSample<'a> {
    fn new(input: &'a [u8], state: InputState) -> Self {
        let window = &input[..input.len().min(SAMPLE_BYTES)];
        let mut end = 0;
        let mut lines = 0;
        for newline in memchr::memchr_iter(b'\n', window).take(SAMPLE_LINES) {
            (end, lines) = (newline + 1, lines + 1);
        }
        let is_full = lines == SAMPLE_LINES || input.len() >= SAMPLE_BYTES;
        if end == 0 && is_full || state == InputState::End && !is_full {
            end = window.len();
        }
        let is_ready = is_full || state != InputState::Open && end > 0;
        Self { bytes: &window[..end], is_full, is_ready }
    }

    fn lines(&self) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"\t"))
    }

    /// Returns the offset and text of the first line that is not blank.
    fn first_text(&self) -> Option<(usize, &'a [u8])> {
        let mut offset = 0;
        for line in self.bytes.split_inclusive(|byte| *byte == b'\n') {
            if !line.trim_ascii().is_empty() {
                return Some((offset, line));
            }
            offset += line.len();
        }
        None
    }
}

#[test]
fn translated_labels_are_recognized() {
    for line in ["2026-11-20 12:43:20.896 CET [1] FEHLER:  x", "2026-11-20 12:43:20 MSK|ОШИБКА:  x"]
    {
        assert!(is_translated(line.as_bytes()), "{line}");
    }
    for line in ["2026-11-20 12:43:20.896 CET [1] ERROR:  x", "FEHLER:  x", "nothing"] {
        assert!(!is_translated(line.as_bytes()), "{line}");
    }
}
