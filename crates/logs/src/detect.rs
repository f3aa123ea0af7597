//! Telling a log's format, and the prefix of a stderr log, from its beginning.

use crate::{
    clock::stamp_len,
    csv::{Csv, row_begins},
    error::ImportError,
    json::Json,
    language::Language,
    options::{Format, OptionsError},
    pieces::RECORD_BYTES_LIMIT,
    prefix::{Names, Prefix, guess, is_misfit},
    reader::{Closing, Reader},
    record::Label,
    stderr::Stderr,
    summary::{Place, shorten},
};

/// What a person said of the log, checked.
#[derive(Debug)]
pub(crate) struct Wanted {
    pub(crate) format: Option<Format>,
    pub(crate) prefix: Option<Prefix>,
    pub(crate) max_record_bytes: usize,
}

impl Wanted {
    pub(crate) fn new(
        format: Option<Format>,
        prefix: Option<&str>,
        max_record_bytes: usize,
    ) -> Result<Self, OptionsError> {
        let prefix = prefix.map(Prefix::compile).transpose()?;
        let max_record_bytes = max_record_bytes.min(RECORD_BYTES_LIMIT);
        Ok(Self { format, prefix, max_record_bytes })
    }

    /// Expects another prefix.
    pub(crate) fn expect_prefix(&mut self, prefix: &str) -> Result<(), OptionsError> {
        self.prefix = Some(Prefix::compile(prefix)?);
        Ok(())
    }

    /// The reader for an input that begins with `input`, or `None` while there is too little of it.
    ///
    /// # Errors
    ///
    /// There is enough of it, and it is in none of the formats that were allowed.
    pub(crate) fn reader(
        &self,
        input: &[u8],
        closing: Closing,
        place: Place<'_>,
    ) -> Result<Option<Reader>, ImportError> {
        let sample = Sample::of(input, closing);
        if let Some(reader) = self.recognise(&sample) {
            return Ok(Some(reader));
        }
        if closing == Closing::Idle || !sample.is_full && closing == Closing::Open {
            return Ok(None);
        }
        match sample.first_text() {
            None if sample.is_full || !input.is_empty() && !input.trim_ascii().is_empty() => {
                Err(binary_or_unknown(input, input, place))
            }
            None => Ok(None),
            Some((offset, line)) => {
                let newlines = memchr::memchr_iter(b'\n', &input[..offset]).count() as u64;
                let place = Place { line: place.line + newlines, ..place };
                Err(self.explain(&sample, input, line, place))
            }
        }
    }

    fn recognise(&self, sample: &Sample<'_>) -> Option<Reader> {
        let allows = |format| self.format.is_none_or(|wanted| wanted == format);
        let mut json = Json::new(self.max_record_bytes);
        for line in sample.lines() {
            let is_object = line.starts_with(b"{")
                && (json.is_record(line.trim_ascii_end()) || begins_as_record(line));
            if allows(Format::Json) && is_object {
                return Some(Reader::Json(json));
            }
            if allows(Format::Csv) && row_begins(line, true) == Some(true) {
                return Some(Reader::Csv(Csv::new(self.max_record_bytes)));
            }
            if allows(Format::Stderr)
                && let Some(prefix) = &self.prefix
                && prefix.matches(line, Names::default()).is_some()
            {
                return Some(Reader::Stderr(Stderr::new(
                    prefix.clone(),
                    false,
                    self.max_record_bytes,
                )));
            }
        }
        if !allows(Format::Stderr) || self.prefix.is_some() || !sample.is_ready {
            return None;
        }
        let prefix = guess(sample.lines()).filter(Prefix::fits_all)?;
        Some(Reader::Stderr(Stderr::new(prefix, true, self.max_record_bytes)))
    }

    /// Why no line of a sample could be read.
    fn explain(
        &self,
        sample: &Sample<'_>,
        input: &[u8],
        first: &[u8],
        place: Place<'_>,
    ) -> ImportError {
        let file = place.file.to_owned();
        let (line, excerpt) = (place.line, shorten(first));
        if let Some(line_text) = sample.lines().find(|line| is_translated(line)) {
            let (excerpt, language) = (shorten(line_text), Language::of_line(line_text));
            return ImportError::Translated { file, line, excerpt, language };
        }
        if sample.lines().any(is_rewritten_row) {
            return ImportError::RewrittenCsv { file, line, excerpt };
        }
        match (self.format, &self.prefix) {
            (Some(format @ (Format::Csv | Format::Json)), _) => {
                ImportError::WrongFormat { format, file, line, excerpt }
            }
            (_, Some(prefix)) => ImportError::WrongPrefix {
                prefix: prefix.source().to_owned(),
                file,
                line,
                excerpt,
                guess: guess(sample.lines()).map(|guess| guess.source().to_owned()),
            },
            (_, None) => match guess(sample.lines()) {
                Some(prefix) => uncertain(&prefix, sample, input, place),
                None => binary_or_unknown(input, first, place),
            },
        }
    }
}

/// The error about a prefix that does not fit all records of a sample. `place` is that of its first text.
fn uncertain(prefix: &Prefix, sample: &Sample<'_>, input: &[u8], place: Place<'_>) -> ImportError {
    let blank = sample.first_text().map_or(0, |(offset, _)| offset);
    let first = place.line - memchr::memchr_iter(b'\n', &input[..blank]).count() as u64;
    let lines = (first..).zip(sample.bytes.split_inclusive(|byte| *byte == b'\n'));
    let misfits = lines
        .filter(|(_, line)| !line.starts_with(b"\t") && is_misfit(prefix, line))
        .map(|(number, line)| (number, shorten(line)))
        .take(MISFITS_MAX)
        .collect();
    let confidence = prefix.confidence();
    ImportError::UncertainPrefix {
        file: place.file.to_owned(),
        guess: prefix.source().to_owned(),
        fits: confidence.map_or(0, |confidence| confidence.lines),
        records: confidence.map_or(0, |confidence| confidence.lines_of),
        misfits,
    }
}

/// Lines that an error quotes.
const MISFITS_MAX: usize = 3;

/// Whether a line that goes on beyond the sample begins as a jsonlog record does.
fn begins_as_record(line: &[u8]) -> bool {
    !line.ends_with(b"\n") && line.starts_with(b"{\"timestamp\":\"")
}

/// Whether a line begins as a csvlog does, but with its time between quotes.
fn is_rewritten_row(line: &[u8]) -> bool {
    let Some(rest) = line.strip_prefix(b"\"") else { return false };
    stamp_len(rest, true).is_some_and(|len| rest[len..].starts_with(b"\","))
}

fn binary_or_unknown(input: &[u8], first: &[u8], place: Place<'_>) -> ImportError {
    let file = place.file.to_owned();
    let compressed = MAGICS.iter().any(|magic| input.starts_with(magic));
    if compressed || input[..input.len().min(SAMPLE_BYTES)].contains(&0) {
        return ImportError::Binary { file, compressed };
    }
    ImportError::UnknownFormat { file, line: place.line, excerpt: shorten(first) }
}

/// How gzip, zstd, xz and bzip2 files begin.
const MAGICS: &[&[u8]] = &[b"\x1f\x8b", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ", b"BZh"];

/// Whether a line has a time and a label, but the label is none that an untranslated server writes.
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
        word.len() >= 3 && word.iter().all(is_capital) && Label::parse(&head[start..]).is_none()
    })
}

/// Farthest that a label is looked for.
const LABEL_WINDOW_BYTES: usize = 512;

/// The beginning of an input: whole lines of it, continuations left out.
struct Sample<'a> {
    bytes: &'a [u8],
    /// There is as much as is ever looked at, or all there is.
    is_full: bool,
    /// There is enough to guess from.
    is_ready: bool,
}

/// Most that a guess is made from.
pub(crate) const SAMPLE_BYTES: usize = 64 << 10;
const SAMPLE_LINES: usize = 1000;

impl<'a> Sample<'a> {
    fn of(input: &'a [u8], closing: Closing) -> Self {
        let window = &input[..input.len().min(SAMPLE_BYTES)];
        let mut end = 0;
        let mut lines = 0;
        for newline in memchr::memchr_iter(b'\n', window).take(SAMPLE_LINES) {
            (end, lines) = (newline + 1, lines + 1);
        }
        let is_full = lines == SAMPLE_LINES || input.len() >= SAMPLE_BYTES;
        if end == 0 && is_full || closing == Closing::End && !is_full {
            end = window.len();
        }
        let is_ready = is_full || closing != Closing::Open && end > 0;
        Self { bytes: &window[..end], is_full, is_ready }
    }

    fn lines(&self) -> impl Iterator<Item = &'a [u8]> + Clone {
        self.bytes.split_inclusive(|byte| *byte == b'\n').filter(|line| !line.starts_with(b"\t"))
    }

    /// Offset and text of the first line that is not blank.
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
fn labels_of_other_languages() {
    for line in ["2026-11-20 12:43:20.896 CET [1] FEHLER:  x", "2026-11-20 12:43:20 MSK|ОШИБКА:  x"]
    {
        assert!(is_translated(line.as_bytes()), "{line}");
    }
    for line in ["2026-11-20 12:43:20.896 CET [1] ERROR:  x", "FEHLER:  x", "nothing"] {
        assert!(!is_translated(line.as_bytes()), "{line}");
    }
}
