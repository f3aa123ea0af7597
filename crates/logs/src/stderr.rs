//! Stderr logs: lines with `log_line_prefix`, grouped into records.
//!
//! A line ends at a newline that no tab follows; a newline and a tab inside a text stand for a
//! newline. A message is followed by lines of its own for `DETAIL`, `CONTEXT`, `STATEMENT` and the
//! like, so a record is complete only when the next message begins. Anything may be written between
//! records by other software, or by the server's own C library.
//!
//! Source: `send_message_to_server_log` and `append_with_tabs` in `elog.c`.

mod framer;
mod quick;
mod seen;

use howdah_traffic::SqlState;

pub(crate) use self::framer::StderrFramer;
use self::seen::Seen;
use crate::{
    clock::{Clock, read_epoch},
    frame::{Frame, Owner},
    marks::Marks,
    pieces::{Span, function, number, process, session_id, signed},
    prefix::{Field, Match, Names, Prefix, guess},
    reader::{Closing, Intruders, Sessions, Step},
    record::{Label, Part, Severity},
    summary::Reason,
};

/// Reader of stderr logs.
#[derive(Debug)]
pub(crate) struct Stderr {
    prefix: Prefix,
    guessed: Option<Sample>,
    max_record_bytes: usize,
    /// Start of the next line to read.
    cursor: usize,
    /// Where the search for that line's end goes on.
    scanned: usize,
    /// The next line, if it was read already: it began the next record.
    ahead: Option<(Match, usize)>,
    group: Option<Group>,
    /// Inside a record that is too long.
    skipping: bool,
    /// Lines end in carriage return and newline, as the file's first record shows: written on Windows.
    with_returns: Option<bool>,
    /// Counts the prefixes that were gone by.
    version: u32,
}

/// The lines of one record.
#[derive(Clone, Copy, Debug)]
struct Group {
    /// The message's line begins here.
    start: usize,
    end: usize,
    main: Match,
    severity: Severity,
    parts: Parts,
    last_line: Option<u64>,
    intruders: Intruders,
}

/// Where the further fields of a record are, each with its line end.
type Parts = [Span; PARTS];

const PARTS: usize = Part::Statement as usize + 1;

impl Group {
    /// A record of one line so far.
    fn new(start: usize, end: usize, main: Match, severity: Severity, line: Option<u64>) -> Self {
        let (parts, intruders) = ([Span::ABSENT; PARTS], Intruders::default());
        Self { start, end, main, severity, parts, last_line: line, intruders }
    }
}

/// Lines that a guessed prefix was guessed from, kept in case that later lines show it too narrow.
#[derive(Debug, Default)]
struct Sample {
    lines: Vec<Vec<u8>>,
    attempts: u32,
}

impl Stderr {
    pub(crate) fn new(prefix: Prefix, is_guessed: bool, max_record_bytes: usize) -> Self {
        Self {
            prefix,
            guessed: is_guessed.then(Sample::default),
            max_record_bytes,
            cursor: 0,
            scanned: 0,
            ahead: None,
            group: None,
            skipping: false,
            with_returns: None,
            version: 0,
        }
    }

    pub(crate) fn prefix(&self) -> &Prefix {
        &self.prefix
    }

    pub(crate) fn is_guessed(&self) -> bool {
        self.guessed.is_some()
    }

    /// The same reader at the beginning of another file.
    pub(crate) fn restarted(&self) -> Self {
        Self::new(self.prefix.clone(), self.guessed.is_some(), self.max_record_bytes)
    }

    /// What others need to frame pieces of the same file, if all that shows only from its beginning has
    /// shown.
    pub(crate) fn framer(&self, clock: Clock) -> Option<StderrFramer> {
        let is_settled =
            self.guessed.as_ref().is_none_or(|sample| sample.lines.len() == SAMPLE_LINES_MAX);
        is_settled.then_some(StderrFramer {
            is_plain: self.prefix.is_plain(),
            marks: Marks::default(),
            cold: Frame::EMPTY,
            cold_owner: Owner::EMPTY,
            seen: self.prefix.repeats().then(Seen::default),
            prefix: self.prefix.clone(),
            with_returns: self.with_returns?,
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
        closing: Closing,
        sessions: &impl Sessions,
    ) -> Step {
        loop {
            let start = self.cursor;
            let Some(end) = self.line_end(input, closing) else {
                return self.unfinished(input, closing);
            };
            if self.skipping {
                self.skipping = false;
                return Step::Skip { len: end };
            }
            if end - start > self.max_record_bytes {
                // As if its end had not come yet.
                return match self.group {
                    Some(_) => Step::Record { len: start },
                    None => Step::Junk { len: end, reason: Reason::TooLong },
                };
            }
            let line = &input[start..end];
            let found = self.read_line(line, end, sessions);
            if let (Some(found), Some(_)) = (&found, &self.group)
                && matches!(found.label, Label::Main(_))
            {
                self.ahead = Some((*found, end));
                return Step::Record { len: start };
            }
            self.cursor = end;
            self.scanned = end;
            match found {
                None if line.trim_ascii().is_empty() => {
                    if self.group.is_none() {
                        return Step::Skip { len: end };
                    }
                }
                None => {
                    if let Some(step) = self.intrude(start, end, Reason::NotARecord) {
                        return step;
                    }
                }
                Some(found) => {
                    if let Some(step) = self.take_line(input, start, end, found) {
                        return step;
                    }
                }
            }
        }
    }

    /// Adds a line to the record, or begins one with it.
    fn take_line(&mut self, input: &[u8], start: usize, end: usize, found: Match) -> Option<Step> {
        let line = &input[start..end];
        let number = number(found.field(line, Field::Line));
        match found.label {
            Label::Main(severity) => {
                self.group = Some(Group::new(start, end, found, severity, number));
                None
            }
            Label::Field(part) => {
                let belongs = self.group.as_ref().is_some_and(|group| {
                    let main = &input[group.start..group.end];
                    [Field::Pid, Field::SessionId]
                        .iter()
                        .all(|field| group.main.field(main, *field) == found.field(line, *field))
                });
                match &mut self.group {
                    Some(group) if belongs => {
                        group.parts[part as usize] = Span::input(start + found.text, end);
                        group.last_line = number.or(group.last_line);
                        let is_endless = end - group.start > 2 * self.max_record_bytes;
                        is_endless.then_some(Step::Record { len: end })
                    }
                    _ => self.intrude(start, end, Reason::Orphan),
                }
            }
        }
    }

    /// A line that is no part of a record. Inside a record it waits until the record is complete, unless
    /// there is so much of it that the record cannot be meant to go on.
    fn intrude(&mut self, start: usize, end: usize, reason: Reason) -> Option<Step> {
        let Some(group) = &mut self.group else {
            return Some(Step::Junk { len: end, reason });
        };
        if group.intruders.count == 0 {
            group.intruders.first = start;
        }
        group.intruders.count += 1;
        (end - group.intruders.first > INTRUDERS_BYTES_MAX).then_some(Step::Record { len: end })
    }

    /// There is no complete line after the cursor.
    fn unfinished(&mut self, input: &[u8], closing: Closing) -> Step {
        let tail = input.len() - self.cursor;
        if self.skipping || tail > self.max_record_bytes {
            if self.group.is_some() {
                return Step::Record { len: self.cursor };
            }
            // A newline at the very end is kept: the byte after it decides whether the line ends.
            let len = input.len() - usize::from(input.ends_with(b"\n"));
            let was_skipping = std::mem::replace(&mut self.skipping, true);
            return match (len, was_skipping) {
                (0, _) => Step::More,
                (_, true) => Step::Skip { len },
                (_, false) => Step::Junk { len, reason: Reason::TooLong },
            };
        }
        match (closing, &self.group) {
            (Closing::Open, _) => Step::More,
            (Closing::Idle | Closing::End, Some(_)) if tail == 0 => {
                Step::Record { len: self.cursor }
            }
            (Closing::End, Some(_)) => {
                // The end of a message's own lines is missing: what there is of it may mislead.
                let rest = &input[self.cursor..];
                let belongs = self.prefix.matches(rest, Names::default());
                if belongs.is_some_and(|found| matches!(found.label, Label::Field(_))) {
                    self.group = None;
                    return Step::Junk { len: input.len(), reason: Reason::CutShort };
                }
                Step::Record { len: self.cursor }
            }
            (Closing::End, None) if tail > 0 => {
                Step::Junk { len: input.len(), reason: Reason::CutShort }
            }
            _ => Step::More,
        }
    }

    /// End of the line at the cursor: after a newline that no tab follows.
    fn line_end(&mut self, input: &[u8], closing: Closing) -> Option<usize> {
        if let Some((_, end)) = self.ahead {
            return Some(end);
        }
        while let Some(found) = memchr::memchr(b'\n', &input[self.scanned..]) {
            let end = self.scanned + found + 1;
            match input.get(end) {
                Some(b'\t') => self.scanned = end,
                Some(_) => return Some(end),
                None if closing == Closing::Open => {
                    self.scanned = end - 1;
                    return None;
                }
                None => return Some(end),
            }
        }
        self.scanned = input.len();
        None
    }

    /// Matches the prefix. Where names of the session show that the shortest reading was wrong, reads
    /// again with these names.
    fn read_line(&mut self, line: &[u8], end: usize, sessions: &impl Sessions) -> Option<Match> {
        let found = match self.ahead.take() {
            Some((found, ahead)) if ahead == end => Some(found),
            _ => self.prefix.matches_plainly(line),
        };
        let Some(found) = found else { return self.widen(line) };
        if let Some(sample) = &mut self.guessed
            && sample.lines.len() < SAMPLE_LINES_MAX
        {
            sample.lines.push(line[..line.len().min(SAMPLE_LINE_BYTES)].to_vec());
        }
        if !self.prefix.has_names() {
            return Some(found);
        }
        let id = found.field(line, Field::SessionId);
        let known = sessions.names(id, process(found.field(line, Field::Pid)));
        let is_doubtful = [
            (known.user, Field::User),
            (known.database, Field::Database),
            (known.application, Field::Application),
        ]
        .into_iter()
        .any(|(name, field)| {
            let read = found.field(line, field);
            !name.is_empty() && !read.is_empty() && read != name
        });
        if is_doubtful { self.prefix.matches(line, known).or(Some(found)) } else { Some(found) }
    }

    /// Looks for a prefix that fits a line which the guessed one does not, and all lines before.
    fn widen(&mut self, line: &[u8]) -> Option<Match> {
        let sample = self.guessed.as_mut()?;
        let has_label =
            memchr::memmem::find(&line[..line.len().min(SAMPLE_LINE_BYTES)], b":  ").is_some();
        if !has_label || sample.attempts >= WIDEN_ATTEMPTS_MAX {
            return None;
        }
        sample.attempts += 1;
        let lines = || sample.lines.iter().map(Vec::as_slice).chain([line]);
        let wider = guess(lines())?;
        let fits_all = lines().all(|line| wider.matches(line, Names::default()).is_some());
        if !fits_all {
            return None;
        }
        self.prefix = wider;
        self.version += 1;
        self.prefix.matches(line, Names::default())
    }

    pub(crate) fn intruders(&self) -> Intruders {
        self.group.as_ref().map_or(Intruders::default(), |group| group.intruders)
    }

    pub(crate) fn consumed(&mut self, len: usize) {
        self.group = None;
        self.cursor = self.cursor.saturating_sub(len);
        self.scanned = self.scanned.saturating_sub(len);
        if let Some((_, end)) = &mut self.ahead {
            *end -= len;
        }
    }

    /// The record that was found; its texts are in `input` or in `scratch`.
    pub(crate) fn frame(
        &mut self,
        input: &[u8],
        clock: &mut Clock,
        scratch: &mut Vec<u8>,
    ) -> Result<(Frame, Owner), Reason> {
        let Some(group) = &self.group else { return Err(Reason::NotARecord) };
        let with_returns = *self
            .with_returns
            .get_or_insert_with(|| input[group.start..group.end].ends_with(b"\r\n"));
        decode(group, input, with_returns, clock, scratch)
    }
}

/// Reads the fields of a record.
fn decode(
    group: &Group,
    input: &[u8],
    with_returns: bool,
    clock: &mut Clock,
    scratch: &mut Vec<u8>,
) -> Result<(Frame, Owner), Reason> {
    let (mut frame, owner) = prefix_fields(&group.main, group.start, &input[..group.end], clock)?;
    frame.severity = group.severity;
    frame.lines = frame.lines.map(|(first, _)| (first, group.last_line.unwrap_or(first)));
    let main = Span::input(group.start + group.main.text, group.end);
    let unfold = |text: Span, scratch: &mut Vec<u8>| unfold(input, text, with_returns, scratch);
    texts(&mut frame, main, &group.parts, input, scratch, unfold);
    Ok((frame, owner))
}

/// What the prefix tells of the line that begins at `start` and ends where `input` does.
fn prefix_fields(
    found: &Match,
    start: usize,
    input: &[u8],
    clock: &mut Clock,
) -> Result<(Frame, Owner), Reason> {
    let line = &input[start..];
    let field = |field: Field| found.field(line, field);
    let span = |field: Field| {
        let range = found.span(field);
        Span::input(start + range.start, start + range.end)
    };
    let name = |field: Field| known(span(field), input, &[]);
    let id = session_id(field(Field::SessionId));
    let began = field(Field::Start);
    let time = time(found, line, clock).ok_or(Reason::BadTime)?;
    let owner = Owner {
        session_id: span(Field::SessionId),
        session_start: match id {
            Some((start, _)) => Some(start),
            None if began.is_empty() => None,
            None => clock.read_start(began),
        },
        pid: process(field(Field::Pid)).or(id.map(|(_, pid)| pid)),
        remote: match field(Field::Remote) {
            b"" => name(Field::Host),
            _ => name(Field::Remote),
        },
        user: name(Field::User),
        database: name(Field::Database),
        application: name(Field::Application),
        backend_type: span(Field::BackendType),
        has_leader: !found.span(Field::LeaderPid).is_empty(),
    };
    let frame = Frame {
        time,
        vxid: span(Field::Vxid),
        query_id: signed(field(Field::QueryId)),
        tag: span(Field::Tag),
        lines: number(field(Field::Line)).map(|line| (line, line)),
        sqlstate: SqlState::new(field(Field::SqlState)),
        assumption: clock.take_assumption(),
        ..Frame::EMPTY
    };
    Ok((frame, owner))
}

/// Finds the message and what belongs to it. `unfold` gives a text without its last line end, and with one
/// tab dropped after each newline inside.
#[inline]
fn texts(
    frame: &mut Frame,
    main: Span,
    parts: &Parts,
    input: &[u8],
    scratch: &mut Vec<u8>,
    unfold: impl Fn(Span, &mut Vec<u8>) -> Span,
) {
    frame.message = unfold(main, scratch);
    let mut part = |part: Part| match parts[part as usize] {
        Span::ABSENT => Span::ABSENT,
        text => unfold(text, scratch),
    };
    frame.detail = part(Part::Detail);
    frame.context = part(Part::Context);
    frame.statement = part(Part::Statement);
    let location = part(Part::Location);
    if location == Span::ABSENT {
        return;
    }
    frame.function = location.shortened(function(location.text(input, scratch)).len());
    if let Some((code, rest)) = frame.message.text(input, scratch).split_at_checked(5)
        && let (Some(code), true) = (SqlState::new(code), rest.starts_with(b": "))
    {
        frame.sqlstate = Some(code);
        frame.message = frame.message.without_first(7);
    }
}

/// Most bytes of foreign lines that are held while the record around them may go on.
const INTRUDERS_BYTES_MAX: usize = 1 << 20;

/// Lines kept to test a wider prefix on, and the bytes of each that matter.
const SAMPLE_LINES_MAX: usize = 50;
const SAMPLE_LINE_BYTES: usize = 1024;

/// How often a wider prefix is looked for: each time costs some milliseconds.
const WIDEN_ATTEMPTS_MAX: u32 = 20;

/// A name, unless it is the server's word for one that is not known yet.
pub(crate) fn known(name: Span, input: &[u8], scratch: &[u8]) -> Span {
    if name.text(input, scratch) == b"[unknown]" { Span::ABSENT } else { name }
}

fn time(found: &Match, line: &[u8], clock: &mut Clock) -> Option<howdah_traffic::Timestamp> {
    for field in [Field::Millis, Field::Epoch, Field::Seconds] {
        let text = found.field(line, field);
        match field {
            _ if text.is_empty() => {}
            Field::Epoch => return read_epoch(text),
            _ => return clock.read(text),
        }
    }
    None
}

/// A text without its last line end, which has a carriage return in front if it is `with_returns`.
#[inline]
fn without_line_end(input: &[u8], text: Span, with_returns: bool) -> Span {
    let whole = text.text(input, &[]);
    let inside = whole.strip_suffix(b"\n").unwrap_or(whole);
    text.shortened(if with_returns { strip_return(inside).len() } else { inside.len() })
}

/// The same, and with one tab dropped after each newline inside.
fn unfold(input: &[u8], text: Span, with_returns: bool, scratch: &mut Vec<u8>) -> Span {
    let bare = |line| if with_returns { strip_return(line) } else { line };
    let text = without_line_end(input, text, with_returns);
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
    Span::scratch(from, scratch.len())
}

fn strip_return(line: &[u8]) -> &[u8] {
    line.strip_suffix(b"\r").unwrap_or(line)
}
