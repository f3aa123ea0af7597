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
mod recent_prefixes;

use howdah_log_input::{InputState, LineLabel, LogSeverity, MessageField};
use howdah_traffic::SqlState;

pub(crate) use self::framer::StderrFramer;
use self::recent_prefixes::RecentPrefixes;
use super::input_item::{ForeignLines, InputItem};
use crate::{
    clock::{LogClock, read_epoch},
    prefix::{CompiledPrefix, Match, PrefixField, SessionLookup, SessionNames, guess_prefix},
    record::{
        frame::{RecordFrame, SessionFields},
        spans::{
            FieldSpan, function_name, known_name, parse_i64, parse_pid, parse_session_id, parse_u64,
        },
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
    fields: ExtraFields,
    last_line: Option<u64>,
    foreign_lines: ForeignLines,
}

/// The spans of a record's further fields, each with its line end.
type ExtraFields = [FieldSpan; FIELDS];

const FIELDS: usize = MessageField::Statement as usize + 1;

impl LineGroup {
    /// Starts a record that has one line so far.
    fn new(
        start: usize,
        end: usize,
        main: Match,
        severity: LogSeverity,
        line: Option<u64>,
    ) -> Self {
        let (fields, foreign_lines) = ([FieldSpan::ABSENT; FIELDS], ForeignLines::default());
        Self { start, end, main, severity, fields, last_line: line, foreign_lines }
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
            prefix_frame: RecordFrame::EMPTY,
            prefix_session: SessionFields::EMPTY,
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
                        group.fields[field as usize] = FieldSpan::input(start + found.text, end);
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
                Some(b'\t') => self.scanned = end,
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
        decode(group, input, has_carriage_returns, clock, scratch)
    }
}

/// Decodes the fields of the record.
fn decode(
    group: &LineGroup,
    input: &[u8],
    has_carriage_returns: bool,
    clock: &mut LogClock,
    scratch: &mut Vec<u8>,
) -> Result<(RecordFrame, SessionFields), ProblemReason> {
    let (mut frame, session) = prefix_fields(&group.main, group.start, &input[..group.end], clock)?;
    frame.severity = group.severity;
    frame.lines = frame.lines.map(|(first, _)| (first, group.last_line.unwrap_or(first)));
    let main = FieldSpan::input(group.start + group.main.text, group.end);
    let unfold =
        |text: FieldSpan, scratch: &mut Vec<u8>| unfold(input, text, has_carriage_returns, scratch);
    unfold_fields(&mut frame, main, &group.fields, input, scratch, unfold);
    Ok((frame, session))
}

/// Decodes the prefix of the line from `start` to the end of `input`.
fn prefix_fields(
    found: &Match,
    start: usize,
    input: &[u8],
    clock: &mut LogClock,
) -> Result<(RecordFrame, SessionFields), ProblemReason> {
    let line = &input[start..];
    let field = |field: PrefixField| found.field(line, field);
    let span = |field: PrefixField| {
        let range = found.span(field);
        FieldSpan::input(start + range.start, start + range.end)
    };
    let name = |field: PrefixField| known_name(span(field), input, &[]);
    let id = parse_session_id(field(PrefixField::SessionId));
    let began = field(PrefixField::Start);
    let time = time(found, line, clock).ok_or(ProblemReason::BadTime)?;
    let session = SessionFields {
        session_id: span(PrefixField::SessionId),
        session_start: match id {
            Some((start, _)) => Some(start),
            None if began.is_empty() => None,
            None => clock.read_start(began),
        },
        pid: parse_pid(field(PrefixField::Pid)).or(id.map(|(_, pid)| pid)),
        remote: match field(PrefixField::Remote) {
            b"" => name(PrefixField::Host),
            _ => name(PrefixField::Remote),
        },
        user: name(PrefixField::User),
        database: name(PrefixField::Database),
        application: name(PrefixField::Application),
        backend_type: span(PrefixField::BackendType),
        has_leader: !found.span(PrefixField::LeaderPid).is_empty(),
    };
    let frame = RecordFrame {
        time,
        vxid: span(PrefixField::Vxid),
        query_id: parse_i64(field(PrefixField::QueryId)),
        tag: span(PrefixField::Tag),
        lines: parse_u64(field(PrefixField::Line)).map(|line| (line, line)),
        sqlstate: SqlState::new(field(PrefixField::SqlState)),
        assumption: clock.take_assumption(),
        ..RecordFrame::EMPTY
    };
    Ok((frame, session))
}

/// Sets the message and its further fields. `unfold` removes the line end after a text, and one tab
/// after each newline in the text.
#[inline]
fn unfold_fields(
    frame: &mut RecordFrame,
    main: FieldSpan,
    fields: &ExtraFields,
    input: &[u8],
    scratch: &mut Vec<u8>,
    unfold: impl Fn(FieldSpan, &mut Vec<u8>) -> FieldSpan,
) {
    frame.message = unfold(main, scratch);
    let mut unfolded = |field: MessageField| match fields[field as usize] {
        FieldSpan::ABSENT => FieldSpan::ABSENT,
        text => unfold(text, scratch),
    };
    frame.detail = unfolded(MessageField::Detail);
    frame.context = unfolded(MessageField::Context);
    frame.statement = unfolded(MessageField::Statement);
    let location = unfolded(MessageField::Location);
    if location == FieldSpan::ABSENT {
        return;
    }
    frame.function = location.truncated(function_name(location.text(input, scratch)).len());
    if let Some((code, rest)) = frame.message.text(input, scratch).split_at_checked(5)
        && let (Some(code), true) = (SqlState::new(code), rest.starts_with(b": "))
    {
        frame.sqlstate = Some(code);
        frame.message = frame.message.skip_first(7);
    }
}

/// Maximum size of foreign lines that are held while the record around them may continue.
const FOREIGN_BYTES_MAX: usize = 1 << 20;

/// Maximum number of sample lines for testing a wider prefix, and of bytes stored of each.
const SAMPLE_LINES_MAX: usize = 50;
const SAMPLE_LINE_BYTES: usize = 1024;

/// Maximum number of searches for a wider prefix: each takes some milliseconds.
const WIDEN_ATTEMPTS_MAX: u32 = 20;

fn time(found: &Match, line: &[u8], clock: &mut LogClock) -> Option<howdah_traffic::Timestamp> {
    for field in [PrefixField::Millis, PrefixField::Epoch, PrefixField::Seconds] {
        let text = found.field(line, field);
        match field {
            _ if text.is_empty() => {}
            PrefixField::Epoch => return read_epoch(text),
            _ => return clock.read(text),
        }
    }
    None
}

/// Removes a newline from the end of a text and then, with `has_carriage_returns`, a carriage
/// return.
#[inline]
fn trim_line_end(input: &[u8], text: FieldSpan, has_carriage_returns: bool) -> FieldSpan {
    let whole = text.text(input, &[]);
    let inside = whole.strip_suffix(b"\n").unwrap_or(whole);
    text.truncated(if has_carriage_returns { strip_return(inside).len() } else { inside.len() })
}

/// Trims a text like [`trim_line_end`], and removes one tab after each newline in the text.
fn unfold(
    input: &[u8],
    text: FieldSpan,
    has_carriage_returns: bool,
    scratch: &mut Vec<u8>,
) -> FieldSpan {
    let bare = |line| if has_carriage_returns { strip_return(line) } else { line };
    let text = trim_line_end(input, text, has_carriage_returns);
    let inside = text.text(input, &[]);
    if memchr::memchr(b'\n', inside).is_none() {
        return text;
    }
    let from = scratch.len();
    let mut rest = inside;
    while let Some(newline) = memchr::memchr(b'\n', rest) {
        scratch.extend_from_slice(bare(&rest[..newline]));
        scratch.push(b'\n');
        rest = &rest[newline + 1..];
        rest = rest.strip_prefix(b"\t").unwrap_or(rest);
    }
    scratch.extend_from_slice(rest);
    FieldSpan::scratch(from, scratch.len())
}

fn strip_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
