//! Compiles `log_line_prefix` into a matcher for the front of a line.
//!
//! PostgreSQL writes user, database and application names unquoted, so a prefix can be ambiguous.
//! Fields with a fixed shape (times, numbers, session ids) are matched by shape. A name is the
//! shortest text after which the rest of the prefix matches, up to `LOG:` or another label. Known
//! names of the session take precedence, so that an application called `x LOG:  y` is read
//! correctly.
//!
//! Source: manual, `log_line_prefix`; `log_status_format` in `elog.c`.

mod deduction;
mod guess;
mod log_line_prefix;
mod shape;

use howdah_log_input::LineLabel;
use std::ops::Range;

use memchr::memmem;

pub(crate) use self::guess::{are_without_times, guess_prefix, is_misfit};
pub use self::log_line_prefix::{Confidence, LogLinePrefix, PrefixOrigin};
use crate::error::OptionsError;

/// A `log_line_prefix` as a list of items to match.
#[derive(Clone, Debug)]
pub(crate) struct CompiledPrefix {
    source: String,
    items: Vec<PrefixItem>,
    /// Evidence for the prefix, if it was guessed.
    confidence: Option<Confidence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum PrefixItem {
    Literal(Vec<u8>),
    Field {
        field: PrefixField,
        /// Minimum length in bytes; shorter values are padded with spaces.
        width: usize,
        /// Whether the value is left-aligned, with the padding after it.
        left: bool,
    },
    /// `%q`: the prefix of processes without a session ends here.
    Quit,
}

/// An escape of the prefix, such as `%u`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PrefixField {
    Application,
    User,
    Database,
    Remote,
    Host,
    LocalAddress,
    BackendType,
    Pid,
    LeaderPid,
    Seconds,
    Millis,
    Epoch,
    Tag,
    SqlState,
    SessionId,
    Line,
    Start,
    Vxid,
    Txid,
    QueryId,
}

/// All fields with their escapes. A session id comes before the session's start, which it contains.
const ESCAPES: [(u8, PrefixField); PrefixField::COUNT] = [
    (b'a', PrefixField::Application),
    (b'u', PrefixField::User),
    (b'd', PrefixField::Database),
    (b'r', PrefixField::Remote),
    (b'h', PrefixField::Host),
    (b'L', PrefixField::LocalAddress),
    (b'b', PrefixField::BackendType),
    (b'p', PrefixField::Pid),
    (b'P', PrefixField::LeaderPid),
    (b't', PrefixField::Seconds),
    (b'm', PrefixField::Millis),
    (b'n', PrefixField::Epoch),
    (b'i', PrefixField::Tag),
    (b'e', PrefixField::SqlState),
    (b'c', PrefixField::SessionId),
    (b'l', PrefixField::Line),
    (b's', PrefixField::Start),
    (b'v', PrefixField::Vxid),
    (b'x', PrefixField::Txid),
    (b'Q', PrefixField::QueryId),
];

/// The fields that show a line's time, most precise first. If a prefix has several, the first is
/// read.
const TIMES: [PrefixField; 3] = [PrefixField::Millis, PrefixField::Epoch, PrefixField::Seconds];

impl PrefixField {
    const COUNT: usize = Self::QueryId as usize + 1;

    fn from_escape(letter: u8) -> Option<Self> {
        ESCAPES.iter().find(|(escape, _)| *escape == letter).map(|(_, field)| *field)
    }

    /// Whether the value may be any text.
    fn is_free(self) -> bool {
        matches!(
            self,
            Self::Application | Self::User | Self::Database | Self::BackendType | Self::Tag
        )
    }
}

/// The known names of a session; empty if not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SessionNames<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) database: &'a [u8],
    pub(crate) application: &'a [u8],
}

impl<'a> SessionNames<'a> {
    fn get(&self, field: PrefixField) -> &'a [u8] {
        match field {
            PrefixField::User => self.user,
            PrefixField::Database => self.database,
            PrefixField::Application => self.application,
            _ => b"",
        }
    }
}

/// A source of the names of sessions, as known from earlier records.
pub(crate) trait SessionLookup {
    fn names(&self, session_id: &[u8], pid: Option<u32>) -> SessionNames<'_>;
}

/// A match of a prefix and a label at the front of a line. Offsets count from the start of the
/// line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    spans: [(u16, u16); PrefixField::COUNT],
    /// Severity, or the kind of a continuation such as `DETAIL`.
    pub(crate) label: LineLabel,
    /// Offset of the text after the label.
    pub(crate) text: usize,
}

impl Match {
    const EMPTY: Self =
        Self { spans: [(0, 0); PrefixField::COUNT], label: LineLabel::NONE, text: 0 };

    /// Returns the span of a field; empty if the prefix has no such field.
    #[inline]
    pub(crate) fn span(&self, field: PrefixField) -> Range<usize> {
        let (start, end) = self.spans[field as usize];
        usize::from(start)..usize::from(end)
    }

    /// Sets the span of a field; returns false if its offsets do not fit into 16 bits.
    #[inline]
    fn set(&mut self, field: PrefixField, (start, end): (usize, usize)) -> bool {
        let (Ok(start), Ok(end)) = (u16::try_from(start), u16::try_from(end)) else { return false };
        self.spans[field as usize] = (start, end);
        true
    }

    /// Returns the fields that are not empty, with their spans; of several times only the most
    /// precise. `None` without a time, as when `%q` precedes it.
    pub(crate) fn fields(&self) -> Option<impl Iterator<Item = (PrefixField, Range<usize>)>> {
        let time = TIMES.iter().find(|time| !self.span(**time).is_empty())?;
        let fields = ESCAPES.iter().map(|(_, field)| (*field, self.span(*field)));
        Some(fields.filter(move |(field, span)| {
            !span.is_empty() && (!TIMES.contains(field) || time == field)
        }))
    }

    /// Returns the bytes of a field; empty if the prefix has no such field.
    #[inline]
    pub(crate) fn field<'a>(&self, line: &'a [u8], field: PrefixField) -> &'a [u8] {
        line.get(self.span(field)).unwrap_or_default()
    }
}

impl CompiledPrefix {
    /// Compiles a prefix in PostgreSQL's syntax.
    ///
    /// # Errors
    ///
    /// The prefix has no time, or ends inside an escape. Unknown escapes print nothing, as in
    /// PostgreSQL.
    pub(crate) fn compile(source: &str) -> Result<Self, OptionsError> {
        let cut = || OptionsError::PrefixCutShort { prefix: source.to_owned() };
        let mut items = Vec::new();
        let mut literal = Vec::new();
        let mut bytes = source.bytes().peekable();
        while let Some(byte) = bytes.next() {
            if byte != b'%' {
                literal.push(byte);
                continue;
            }
            if bytes.next_if_eq(&b'%').is_some() {
                literal.push(b'%');
                continue;
            }
            let left = bytes.next_if_eq(&b'-').is_some();
            let mut width = 0_usize;
            while let Some(digit) = bytes.next_if(u8::is_ascii_digit) {
                width = (width * 10 + usize::from(digit - b'0')).min(WINDOW_BYTES);
            }
            let item = match bytes.next().ok_or_else(cut)? {
                b'q' => PrefixItem::Quit,
                letter => match PrefixField::from_escape(letter) {
                    Some(field) => PrefixItem::Field { field, width, left },
                    None => continue,
                },
            };
            if !literal.is_empty() {
                items.push(PrefixItem::Literal(std::mem::take(&mut literal)));
            }
            items.push(item);
        }
        if !literal.is_empty() {
            items.push(PrefixItem::Literal(literal));
        }
        let prefix = Self { source: source.to_owned(), items, confidence: None };
        if !prefix.has_any(&TIMES) {
            return Err(OptionsError::PrefixWithoutTime { prefix: prefix.source });
        }
        Ok(prefix)
    }

    /// Returns the prefix in PostgreSQL's syntax.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// Returns the evidence for the prefix, if it was guessed.
    pub(crate) fn confidence(&self) -> Option<&Confidence> {
        self.confidence.as_ref()
    }

    /// Whether the prefix matches all lines that it was guessed from; true if it was given.
    pub(crate) fn fits_all(&self) -> bool {
        self.confidence.as_ref().is_none_or(|it| it.lines == it.lines_total)
    }

    /// Whether the prefix contains a session or process id.
    pub(crate) fn identifies_sessions(&self) -> bool {
        self.has_any(&[PrefixField::SessionId, PrefixField::Pid])
    }

    /// Whether the prefix contains names, which may be misread.
    pub(crate) fn has_names(&self) -> bool {
        self.has_any(&[PrefixField::User, PrefixField::Database, PrefixField::Application])
    }

    fn has_any(&self, fields: &[PrefixField]) -> bool {
        self.items
            .iter()
            .any(|i| matches!(i, PrefixItem::Field { field, .. } if fields.contains(field)))
    }

    /// Matches the prefix and the label at the front of a line; `None` if the line does not match.
    pub(crate) fn matches(&self, line: &[u8], names: SessionNames<'_>) -> Option<Match> {
        let found = Match::EMPTY;
        let mut matcher = Matcher { items: &self.items, line, names, found, steps: STEPS_MAX };
        matcher.match_item(0, 0).then_some(matcher.found)
    }

    /// Like [`matches`](Self::matches) without names. The first choice for each item is usually
    /// right, so a pass without backtracking is tried first.
    pub(crate) fn matches_unnamed(&self, line: &[u8]) -> Option<Match> {
        self.match_first_choice(line).or_else(|| self.matches(line, SessionNames::default()))
    }

    /// Whether every line has exactly one time, and no field is padded, so that
    /// [`visit_fields`](Self::visit_fields) can read lines.
    pub(crate) fn is_unpadded(&self) -> bool {
        let is_time = |item: &&PrefixItem| matches!(item, PrefixItem::Field { field, .. } if TIMES.contains(field));
        let is_padded = |item: &PrefixItem| matches!(item, PrefixItem::Field { width: 1.., .. });
        let always = self.items.iter().take_while(|item| **item != PrefixItem::Quit);
        always.filter(is_time).count() == 1
            && self.items.iter().filter(is_time).count() == 1
            && !self.items.iter().any(is_padded)
    }

    /// Whether a line begins with its time in milliseconds, no field is padded, and the rest of the
    /// prefix seldom changes within a session.
    pub(crate) fn is_constant_per_session(&self) -> bool {
        let constant = |item: &PrefixItem| match item {
            PrefixItem::Literal(_) | PrefixItem::Quit => true,
            PrefixItem::Field { field, .. } => matches!(
                field,
                PrefixField::Application
                    | PrefixField::User
                    | PrefixField::Database
                    | PrefixField::Remote
                    | PrefixField::Host
                    | PrefixField::BackendType
                    | PrefixField::Pid
                    | PrefixField::SessionId
            ),
        };
        let [PrefixItem::Field { field: PrefixField::Millis, .. }, rest @ ..] =
            self.items.as_slice()
        else {
            return false;
        };
        self.is_unpadded() && rest.iter().all(constant)
    }

    /// Calls `read` with each field of a line, taking the first choice for each. `read` gets the
    /// offset, the rest of the line and, for fields of any text, the length; it returns the length.
    /// Returns the label after the prefix and the offset of the text, or `None` if the line does
    /// not match in this way, a field is padded, or `read` returns `None`.
    #[inline]
    pub(crate) fn visit_fields(
        &self,
        line: &[u8],
        mut read: impl FnMut(PrefixField, usize, &[u8], Option<usize>) -> Option<usize>,
    ) -> Option<(LineLabel, usize)> {
        let mut at = 0;
        for (index, item) in self.items.iter().enumerate() {
            let rest = line.get(at..)?;
            at += match item {
                PrefixItem::Literal(literal) => literal_len(rest, literal)?,
                PrefixItem::Quit => match LineLabel::parse(rest) {
                    Some((label, len)) => return Some((label, at + len)),
                    None => 0,
                },
                PrefixItem::Field { width: 1.., .. } => return None,
                PrefixItem::Field { field, .. } if field.is_free() => {
                    let Some(PrefixItem::Literal(next)) = self.items.get(index + 1) else {
                        return None;
                    };
                    read(*field, at, rest, Some(find_literal(rest, next)?))?
                }
                PrefixItem::Field { field, .. } => read(*field, at, rest, None)?,
            };
        }
        let (label, len) = LineLabel::parse(line.get(at..)?)?;
        Some((label, at + len))
    }

    fn match_first_choice(&self, line: &[u8]) -> Option<Match> {
        let mut found = Match::EMPTY;
        let (label, text) = self.visit_fields(line, |field, at, rest, len| {
            let len = len.or_else(|| first_length(field, rest))?;
            found.set(field, (at, at + len)).then_some(len)
        })?;
        Some(Match { label, text, ..found })
    }

    /// Returns the number of bytes after the start of a match's text within which another reading,
    /// with other names, could find a label; `None` if no other reading is possible.
    pub(crate) fn ambiguity_window(&self) -> Option<usize> {
        let open = |item: &&PrefixItem| matches!(item, PrefixItem::Field { field, .. } if field.is_free() || shape::is_open_ended(*field));
        let count = self.items.iter().filter(open).count();
        (count > 0).then_some((count + 1) * WINDOW_BYTES + self.source.len())
    }
}

/// Returns the most likely length in bytes of a field at the front of `rest` that is not free text.
pub(crate) fn first_length(field: PrefixField, rest: &[u8]) -> Option<usize> {
    shape::lengths(field, rest).into_iter().flatten().next()
}

/// Returns the span of a field from `at` to `end`, without its padding.
#[inline]
fn trim_padding(line: &[u8], at: usize, end: usize, left: bool) -> (usize, usize) {
    let padded = &line[at..end];
    if left {
        (at, at + padded.trim_ascii_end().len())
    } else {
        (end - padded.trim_ascii_start().len(), end)
    }
}

/// Returns the length of `literal`, if `text` begins with it.
#[inline]
fn literal_len(text: &[u8], literal: &[u8]) -> Option<usize> {
    match literal {
        [byte] => (text.first() == Some(byte)).then_some(1),
        _ => text.starts_with(literal).then_some(literal.len()),
    }
}

/// Returns the first offset of `literal` in the first [`WINDOW_BYTES`] bytes of `text`.
#[inline]
fn find_literal(text: &[u8], literal: &[u8]) -> Option<usize> {
    let window = &text[..text.len().min(WINDOW_BYTES)];
    match literal {
        [byte] => window.iter().position(|other| other == byte),
        _ => memmem::find(window, literal),
    }
}

/// Maximum length of a field in bytes. Names have at most 63 bytes, host names 255.
const WINDOW_BYTES: usize = 512;

/// Maximum number of matching steps for one line, which bounds the time of backtracking.
const STEPS_MAX: u32 = 4096;

struct Matcher<'a> {
    items: &'a [PrefixItem],
    line: &'a [u8],
    names: SessionNames<'a>,
    found: Match,
    steps: u32,
}

impl Matcher<'_> {
    /// Matches the items from `index` on against the line from `at` on.
    fn match_item(&mut self, index: usize, at: usize) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        match self.items.get(index) {
            None => self.match_label(at),
            Some(PrefixItem::Quit) => self.match_label(at) || self.match_item(index + 1, at),
            Some(PrefixItem::Literal(literal)) => {
                self.line[at..].starts_with(literal)
                    && self.match_item(index + 1, at + literal.len())
            }
            Some(&PrefixItem::Field { field, width, left }) => {
                if field.is_free() {
                    self.match_free(index, at, field, width, left)
                } else {
                    self.match_shaped(index, at, field, width, left)
                }
            }
        }
    }

    fn match_label(&mut self, at: usize) -> bool {
        let Some((label, len)) = LineLabel::parse(&self.line[at..]) else { return false };
        self.found.label = label;
        self.found.text = at + len;
        true
    }

    /// Matches a field of fixed shape. If several lengths have the shape, all are tried; a field
    /// with an open end, such as a host name, may then be any text without spaces.
    fn match_shaped(
        &mut self,
        index: usize,
        at: usize,
        field: PrefixField,
        width: usize,
        left: bool,
    ) -> bool {
        let line = self.line;
        let spaces = if left { 0 } else { leading_spaces(&line[at..], width) };
        let mut tried = None;
        let lengths = shape::lengths(field, &line[at + spaces..]);
        for len in lengths.into_iter().flatten() {
            if tried == Some(len) {
                continue;
            }
            tried = Some(len);
            let start = at + spaces;
            let mut end = start + len;
            if end - at < width {
                let missing = width - (end - at);
                if leading_spaces(&line[end..], missing) < missing {
                    continue;
                }
                end += missing;
            }
            if self.accept_field(index, field, (start, start + len), end) {
                return true;
            }
        }
        shape::is_open_ended(field) && self.match_free(index, at, field, width, left)
    }

    /// Matches a field that may be any text: first the session's own name, then the shortest text.
    fn match_free(
        &mut self,
        index: usize,
        at: usize,
        field: PrefixField,
        width: usize,
        left: bool,
    ) -> bool {
        let line = self.line;
        let known = self.names.get(field);
        let padding = width.saturating_sub(known.len());
        let (before, after) = if left { (0, padding) } else { (padding, 0) };
        let is_padded = |at: usize, spaces: usize| {
            line.get(at..at + spaces).is_some_and(|some| some.iter().all(|byte| *byte == b' '))
        };
        let (start, end) = (at + before, at + before + known.len());
        if !known.is_empty()
            && is_padded(at, before)
            && line[start..].starts_with(known)
            && is_padded(end, after)
            && self.accept_field(index, field, (start, end), end + after)
        {
            return true;
        }
        let limit = line.len().min(at + WINDOW_BYTES);
        let first = at + width;
        if first > limit {
            return false;
        }
        if let Some(PrefixItem::Literal(literal)) = self.items.get(index + 1) {
            let window = line.len().min(limit + literal.len());
            return memmem::find_iter(&line[first..window], literal).any(|found| {
                self.match_free_until(index, at, field, first + found, (width, left))
            });
        }
        (first..=limit).any(|end| self.match_free_until(index, at, field, end, (width, left)))
    }

    fn match_free_until(
        &mut self,
        index: usize,
        at: usize,
        field: PrefixField,
        end: usize,
        (width, left): (usize, bool),
    ) -> bool {
        let span =
            if end - at == width { trim_padding(self.line, at, end, left) } else { (at, end) };
        if !field.is_free() && self.line[span.0..span.1].contains(&b' ') {
            return false;
        }
        self.accept_field(index, field, span, end)
    }

    /// Sets the span of the field if the rest of the line matches from `end` on; returns whether it
    /// was set.
    fn accept_field(
        &mut self,
        index: usize,
        field: PrefixField,
        span: (usize, usize),
        end: usize,
    ) -> bool {
        if !self.match_item(index + 1, end) {
            return false;
        }
        self.found.set(field, span)
    }
}

fn leading_spaces(bytes: &[u8], at_most: usize) -> usize {
    bytes.iter().take(at_most).take_while(|byte| **byte == b' ').count()
}

#[cfg(test)]
mod tests;
