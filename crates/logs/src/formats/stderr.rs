//! Stderr logs: lines with `log_line_prefix`, grouped into records.
//!
//! A line ends at a newline without a tab after it; a newline followed by a tab is a newline inside
//! a text. A message is followed by separate lines for `DETAIL`, `CONTEXT`, `STATEMENT` and the
//! like, so a record is complete only when the next message begins. Other software, or the server's
//! own C library, may write anything between records.
//!
//! Source: `send_message_to_server_log` and `append_with_tabs` in `elog.c`.

mod fast_path;
mod framer;
mod prefix_fields;
mod recent_prefixes;
mod record_text;

use howdah_log_input::{InputState, LineLabel, LogSeverity};

pub(crate) use self::framer::StderrFramer;
use self::{prefix_fields::PrefixFields, recent_prefixes::RecentPrefixes, record_text::RecordText};
use super::input_item::{ForeignLines, InputItem};
use crate::{
    clock::LogClock,
    prefix::{CompiledPrefix, Match, PrefixField, SessionLookup, SessionNames, guess_prefix},
    record::{
        frame::{RecordFrame, SessionFields},
        spans::{FieldSpan, parse_pid, parse_u64},
    },
    scan::structural_index::StructuralIndex,
    summary::ProblemReason,
};

/// Reader of stderr logs.
#[derive(Debug)]
pub(crate) struct Stderr {
    prefix: CompiledPrefix,
    guessed: Option<GuessSample>,
    max_record_bytes: usize,
    /// Start of the next line to read.
    cursor: usize,
    /// Offset at which to continue the search for the end of that line.
    scanned: usize,
    /// The next line and its end, if it was already read because it starts the next record.
    next_line: Option<(Match, usize)>,
    group: Option<LineGroup>,
    /// Whether the rest of an overlong record is being skipped.
    is_skipping: bool,
    /// Whether lines end in carriage return and newline, because the server runs on Windows;
    /// decided by the file's first record.
    has_carriage_returns: Option<bool>,
    /// Incremented with each change of the prefix.
    version: u32,
}

/// The lines of one record, as spans.
#[derive(Clone, Copy, Debug)]
struct LineGroup {
    /// Offset of the line that holds the message.
    start: usize,
    end: usize,
    main: Match,
    severity: LogSeverity,
    text: RecordText,
    last_line: Option<u64>,
    foreign_lines: ForeignLines,
}

impl LineGroup {
    /// Starts a record that has one line so far.
    fn new(
        start: usize,
        end: usize,
        main: Match,
        severity: LogSeverity,
        line: Option<u64>,
    ) -> Self {
        let mut text = RecordText::EMPTY;
        text.start(FieldSpan::input(start + main.text, end), true);
        let foreign_lines = ForeignLines::default();
        Self { start, end, main, severity, text, last_line: line, foreign_lines }
    }
}

/// The first lines that matched a guessed prefix, kept for guessing again if a later line does not
/// match.
#[derive(Debug, Default)]
struct GuessSample {
    lines: Vec<Vec<u8>>,
    attempts: u32,
}

impl Stderr {
    pub(crate) fn new(prefix: CompiledPrefix, is_guessed: bool, max_record_bytes: usize) -> Self {
        Self {
            prefix,
            guessed: is_guessed.then(GuessSample::default),
            max_record_bytes,
            cursor: 0,
            scanned: 0,
            next_line: None,
            group: None,
            is_skipping: false,
            has_carriage_returns: None,
            version: 0,
        }
    }

    pub(crate) fn prefix(&self) -> &CompiledPrefix {
        &self.prefix
    }

    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed.is_some()
    }

    /// Returns a reader with the same settings, for the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.prefix.clone(), self.guessed.is_some(), self.max_record_bytes)
    }

    /// Returns a framer for chunks of the same file, once everything that depends on the file's
    /// beginning is known.
    pub(crate) fn framer(&self, clock: LogClock) -> Option<StderrFramer> {
        let is_ready =
            self.guessed.as_ref().is_none_or(|sample| sample.lines.len() == SAMPLE_LINES_MAX);
        is_ready.then_some(StderrFramer {
            is_unpadded: self.prefix.is_unpadded(),
            index: StructuralIndex::default(),
            prefix_fields: PrefixFields::EMPTY,
            recent: self.prefix.is_constant_per_session().then(RecentPrefixes::default),
            prefix: self.prefix.clone(),
            has_carriage_returns: self.has_carriage_returns?,
            max_record_bytes: self.max_record_bytes,
            version: self.version,
            clock,
        })
    }

    pub(crate) fn version(&self) -> u32 {
        self.version
    }

    pub(crate) fn step(
        &mut self,
        input: &[u8],
        state: InputState,
        sessions: &impl SessionLookup,
    ) -> InputItem {
        loop {
            let start = self.cursor;
            let Some(end) = self.find_line_end(input, state) else {
                return self.handle_incomplete_line(input, state);
            };
            if self.is_skipping {
                self.is_skipping = false;
                return InputItem::Skip { len: end };
            }
            if end - start > self.max_record_bytes {
                // Treat the line as if its end had not arrived yet.
                return match self.group {
                    Some(_) => InputItem::Record { len: start },
                    None => InputItem::Junk { len: end, reason: ProblemReason::TooLong },
                };
            }
            let line = &input[start..end];
            let found = self.read_line(line, end, sessions);
            // Only a line such as LOG or ERROR begins a record; DETAIL, STATEMENT and the like
            // continue one. So a record is complete when the next one begins.
            if let (Some(found), Some(_)) = (&found, &self.group)
                && matches!(found.label, LineLabel::Main(_))
            {
                self.next_line = Some((*found, end));
                return InputItem::Record { len: start };
            }
            self.cursor = end;
            self.scanned = end;
            match found {
                None if line.trim_ascii().is_empty() => {
                    if self.group.is_none() {
                        return InputItem::Skip { len: end };
                    }
                }
                None => {
                    if let Some(step) = self.add_foreign_line(start, end, ProblemReason::NotARecord)
                    {
                        return step;
                    }
                }
                Some(found) => {
                    if let Some(step) = self.add_line(input, start, end, found) {
                        return step;
                    }
                }
            }
        }
    }

    /// Adds a line to the record, or starts a record with the line.
    fn add_line(
        &mut self,
        input: &[u8],
        start: usize,
        end: usize,
        found: Match,
    ) -> Option<InputItem> {
        let line = &input[start..end];
        let number = parse_u64(found.field(line, PrefixField::Line));
        match found.label {
            LineLabel::Main(severity) => {
                self.group = Some(LineGroup::new(start, end, found, severity, number));
                None
            }
            LineLabel::Field(field) => {
                let belongs = self.group.as_ref().is_some_and(|group| {
                    let main = &input[group.start..group.end];
                    [PrefixField::Pid, PrefixField::SessionId]
                        .iter()
                        .all(|field| group.main.field(main, *field) == found.field(line, *field))
                });
                match &mut self.group {
                    Some(group) if belongs => {
                        let text = FieldSpan::input(start + found.text, end);
                        group.text.add_field(field, text, true);
                        group.last_line = number.or(group.last_line);
                        let is_too_long = end - group.start > 2 * self.max_record_bytes;
                        is_too_long.then_some(InputItem::Record { len: end })
                    }
                    _ => self.add_foreign_line(start, end, ProblemReason::Orphan),
                }
            }
        }
    }

    /// Handles a line that does not belong to a record. Inside a record the line waits until the
    /// record is complete, unless there are so many such lines that the record must have ended.
    fn add_foreign_line(
        &mut self,
        start: usize,
        end: usize,
        reason: ProblemReason,
    ) -> Option<InputItem> {
        let Some(group) = &mut self.group else {
            return Some(InputItem::Junk { len: end, reason });
        };
        if group.foreign_lines.count == 0 {
            group.foreign_lines.first = start;
        }
        group.foreign_lines.count += 1;
        (end - group.foreign_lines.first > FOREIGN_BYTES_MAX)
            .then_some(InputItem::Record { len: end })
    }

    /// Handles input that has no complete line after the cursor.
    fn handle_incomplete_line(&mut self, input: &[u8], state: InputState) -> InputItem {
        let tail = input.len() - self.cursor;
        if self.is_skipping || tail > self.max_record_bytes {
            if self.group.is_some() {
                return InputItem::Record { len: self.cursor };
            }
            // Do not consume a final newline: the byte after it decides whether the line ends.
            let len = input.len() - usize::from(input.ends_with(b"\n"));
            let was_skipping = std::mem::replace(&mut self.is_skipping, true);
            return match (len, was_skipping) {
                (0, _) => InputItem::More,
                (_, true) => InputItem::Skip { len },
                (_, false) => InputItem::Junk { len, reason: ProblemReason::TooLong },
            };
        }
        match (state, &self.group) {
            (InputState::Open, _) => InputItem::More,
            (InputState::Idle | InputState::End, Some(_)) if tail == 0 => {
                InputItem::Record { len: self.cursor }
            }
            (InputState::End, Some(_)) => {
                // The last line of the message is incomplete, and a part of it may be misleading.
                let rest = &input[self.cursor..];
                let belongs = self.prefix.matches(rest, SessionNames::default());
                if belongs.is_some_and(|found| matches!(found.label, LineLabel::Field(_))) {
                    self.group = None;
                    return InputItem::Junk { len: input.len(), reason: ProblemReason::CutShort };
                }
                InputItem::Record { len: self.cursor }
            }
            (InputState::End, None) if tail > 0 => {
                InputItem::Junk { len: input.len(), reason: ProblemReason::CutShort }
            }
            _ => InputItem::More,
        }
    }

    /// Returns the end of the line at the cursor, after the first newline that no tab follows.
    fn find_line_end(&mut self, input: &[u8], state: InputState) -> Option<usize> {
        if let Some((_, end)) = self.next_line {
            return Some(end);
        }
        while let Some(found) = memchr::memchr(b'\n', &input[self.scanned..]) {
            let end = self.scanned + found + 1;
            match input.get(end) {
                Some(&CONTINUATION) => self.scanned = end,
                Some(_) => return Some(end),
                None if state == InputState::Open => {
                    self.scanned = end - 1;
                    return None;
                }
                None => return Some(end),
            }
        }
        self.scanned = input.len();
        None
    }

    /// Matches the prefix of a line. If the session's known names show that the shortest match was
    /// wrong, matches again with these names.
    fn read_line(
        &mut self,
        line: &[u8],
        end: usize,
        sessions: &impl SessionLookup,
    ) -> Option<Match> {
        let found = match self.next_line.take() {
            Some((found, ahead)) if ahead == end => Some(found),
            _ => self.prefix.matches_unnamed(line),
        };
        let Some(found) = found else { return self.widen_prefix(line) };
        if let Some(sample) = &mut self.guessed
            && sample.lines.len() < SAMPLE_LINES_MAX
        {
            sample.lines.push(line[..line.len().min(SAMPLE_LINE_BYTES)].to_vec());
        }
        if !self.prefix.has_names() {
            return Some(found);
        }
        let id = found.field(line, PrefixField::SessionId);
        let known = sessions.names(id, parse_pid(found.field(line, PrefixField::Pid)));
        let is_contradicted = [
            (known.user, PrefixField::User),
            (known.database, PrefixField::Database),
            (known.application, PrefixField::Application),
        ]
        .into_iter()
        .any(|(name, field)| {
            let read = found.field(line, field);
            !name.is_empty() && !read.is_empty() && read != name
        });
        if is_contradicted { self.prefix.matches(line, known).or(Some(found)) } else { Some(found) }
    }

    /// Searches for a prefix that matches this line and all sample lines.
    fn widen_prefix(&mut self, line: &[u8]) -> Option<Match> {
        let sample = self.guessed.as_mut()?;
        let has_label =
            memchr::memmem::find(&line[..line.len().min(SAMPLE_LINE_BYTES)], b":  ").is_some();
        if !has_label || sample.attempts >= WIDEN_ATTEMPTS_MAX {
            return None;
        }
        sample.attempts += 1;
        let lines = || sample.lines.iter().map(Vec::as_slice).chain([line]);
        let wider = guess_prefix(lines())?;
        let fits_all = lines().all(|line| wider.matches(line, SessionNames::default()).is_some());
        if !fits_all {
            return None;
        }
        self.prefix = wider;
        self.version += 1;
        self.prefix.matches(line, SessionNames::default())
    }

    pub(crate) fn foreign_lines(&self) -> ForeignLines {
        self.group.as_ref().map_or(ForeignLines::default(), |group| group.foreign_lines)
    }

    pub(crate) fn consumed(&mut self, len: usize) {
        self.group = None;
        self.cursor = self.cursor.saturating_sub(len);
        self.scanned = self.scanned.saturating_sub(len);
        if let Some((_, end)) = &mut self.next_line {
            *end -= len;
        }
    }

    /// Decodes the record found by the last step; its texts are in `input` or in `scratch`.
    pub(crate) fn frame(
        &mut self,
        input: &[u8],
        clock: &mut LogClock,
        scratch: &mut Vec<u8>,
    ) -> Result<(RecordFrame, SessionFields), ProblemReason> {
        let Some(group) = &self.group else { return Err(ProblemReason::NotARecord) };
        let has_carriage_returns = *self
            .has_carriage_returns
            .get_or_insert_with(|| input[group.start..group.end].ends_with(b"\r\n"));
        let PrefixFields { mut frame, session } =
            PrefixFields::from_match(&group.main, group.start, &input[..group.end], clock)
                .ok_or(ProblemReason::BadTime)?;
        frame.severity = group.severity;
        frame.lines = frame.lines.map(|(first, _)| (first, group.last_line.unwrap_or(first)));
        group.text.decode(&mut frame, input, has_carriage_returns, scratch, |from| {
            memchr::memchr_iter(b'\n', &input[from..]).map(move |at| from + at)
        });
        Ok((frame, session))
    }
}

/// The byte after a newline inside a text; any other begins another line.
const CONTINUATION: u8 = b'\t';

/// Maximum size of foreign lines that are held while the record around them may continue.
const FOREIGN_BYTES_MAX: usize = 1 << 20;

/// Maximum number of sample lines for testing a wider prefix, and of bytes stored of each.
const SAMPLE_LINES_MAX: usize = 50;
const SAMPLE_LINE_BYTES: usize = 1024;

/// Maximum number of searches for a wider prefix: each takes some milliseconds.
const WIDEN_ATTEMPTS_MAX: u32 = 20;
