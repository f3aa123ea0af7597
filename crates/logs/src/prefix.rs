//! `log_line_prefix`, compiled into a matcher for the front of a line.
//!
//! PostgreSQL writes user, database and application names as they are, so a prefix is not always
//! unambiguous. Fields of fixed shape (times, numbers, session ids) are matched by shape; a name ends
//! where the shortest reading lets the rest of the prefix match up to `LOG:` or its like. Names that a
//! session is known by go first, so that an application called `x LOG:  y` is still read right.
//!
//! Source: manual, `log_line_prefix`; `log_status_format` in `elog.c`.

mod deduce;
mod guess;
mod shape;

use std::ops::Range;

use memchr::memmem;

pub(crate) use self::guess::{guess, is_misfit};
use crate::{options::OptionsError, record::Label, summary::Confidence};

/// A compiled prefix.
#[derive(Clone, Debug)]
pub(crate) struct Prefix {
    source: String,
    items: Vec<Item>,
    /// How sure a guess of it is.
    confidence: Option<Confidence>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Item {
    Literal(Vec<u8>),
    Field {
        field: Field,
        /// Least number of bytes; shorter values are filled up with spaces.
        width: usize,
        /// The spaces come after the value.
        left: bool,
    },
    /// `%q`: processes without a session stop here.
    Quit,
}

/// What an escape stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Field {
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

impl Field {
    const COUNT: usize = Self::QueryId as usize + 1;

    fn from_escape(letter: u8) -> Option<Self> {
        Some(match letter {
            b'a' => Self::Application,
            b'u' => Self::User,
            b'd' => Self::Database,
            b'r' => Self::Remote,
            b'h' => Self::Host,
            b'L' => Self::LocalAddress,
            b'b' => Self::BackendType,
            b'p' => Self::Pid,
            b'P' => Self::LeaderPid,
            b't' => Self::Seconds,
            b'm' => Self::Millis,
            b'n' => Self::Epoch,
            b'i' => Self::Tag,
            b'e' => Self::SqlState,
            b'c' => Self::SessionId,
            b'l' => Self::Line,
            b's' => Self::Start,
            b'v' => Self::Vxid,
            b'x' => Self::Txid,
            b'Q' => Self::QueryId,
            _ => return None,
        })
    }

    /// Whether the value may be any text.
    fn is_free(self) -> bool {
        matches!(
            self,
            Self::Application | Self::User | Self::Database | Self::BackendType | Self::Tag
        )
    }
}

/// The names a session is known by; empty where not known.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Names<'a> {
    pub(crate) user: &'a [u8],
    pub(crate) database: &'a [u8],
    pub(crate) application: &'a [u8],
}

impl<'a> Names<'a> {
    fn of(&self, field: Field) -> &'a [u8] {
        match field {
            Field::User => self.user,
            Field::Database => self.database,
            Field::Application => self.application,
            _ => b"",
        }
    }
}

/// Where the fields of a line are. Offsets are from the start of the line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Match {
    spans: [(u16, u16); Field::COUNT],
    /// What the line is.
    pub(crate) label: Label,
    /// Where the text after the label begins.
    pub(crate) text: usize,
}

impl Match {
    const EMPTY: Self = Self { spans: [(0, 0); Field::COUNT], label: Label::NONE, text: 0 };

    /// Where a field is; empty if the prefix has no such field.
    #[inline]
    pub(crate) fn span(&self, field: Field) -> Range<usize> {
        let (start, end) = self.spans[field as usize];
        usize::from(start)..usize::from(end)
    }

    /// Takes a field to be at `span`; false if it is farther than any prefix reaches.
    #[inline]
    fn set(&mut self, field: Field, (start, end): (usize, usize)) -> bool {
        let (Ok(start), Ok(end)) = (u16::try_from(start), u16::try_from(end)) else { return false };
        self.spans[field as usize] = (start, end);
        true
    }

    /// The bytes of a field; empty if the prefix has no such field.
    #[inline]
    pub(crate) fn field<'a>(&self, line: &'a [u8], field: Field) -> &'a [u8] {
        line.get(self.span(field)).unwrap_or_default()
    }
}

impl Prefix {
    /// Compiles a prefix given in PostgreSQL's syntax.
    ///
    /// # Errors
    ///
    /// It has no time, or ends inside an escape. Unknown escapes print nothing, in PostgreSQL too.
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
                b'q' => Item::Quit,
                letter => match Field::from_escape(letter) {
                    Some(field) => Item::Field { field, width, left },
                    None => continue,
                },
            };
            if !literal.is_empty() {
                items.push(Item::Literal(std::mem::take(&mut literal)));
            }
            items.push(item);
        }
        if !literal.is_empty() {
            items.push(Item::Literal(literal));
        }
        let prefix = Self { source: source.to_owned(), items, confidence: None };
        if !prefix.has_any(&[Field::Seconds, Field::Millis, Field::Epoch]) {
            return Err(OptionsError::PrefixWithoutTime { prefix: prefix.source });
        }
        Ok(prefix)
    }

    /// The prefix in PostgreSQL's syntax.
    pub(crate) fn source(&self) -> &str {
        &self.source
    }

    /// How sure it is, if it was guessed.
    pub(crate) fn confidence(&self) -> Option<&Confidence> {
        self.confidence.as_ref()
    }

    /// Whether it fits all records that it was guessed from; true if it was given.
    pub(crate) fn fits_all(&self) -> bool {
        self.confidence.as_ref().is_none_or(|it| it.lines == it.lines_of)
    }

    /// Whether lines tell one session from another.
    pub(crate) fn tells_sessions(&self) -> bool {
        self.has_any(&[Field::SessionId, Field::Pid])
    }

    /// Whether lines hold names, which may be misread.
    pub(crate) fn has_names(&self) -> bool {
        self.has_any(&[Field::User, Field::Database, Field::Application])
    }

    fn has_any(&self, fields: &[Field]) -> bool {
        self.items.iter().any(|i| matches!(i, Item::Field { field, .. } if fields.contains(field)))
    }

    /// Reads the prefix and the label at the front of a line, or `None` if the line has another shape.
    pub(crate) fn matches(&self, line: &[u8], names: Names<'_>) -> Option<Match> {
        let found = Match::EMPTY;
        let mut matcher = Matcher { items: &self.items, line, names, found, steps: STEPS_MAX };
        matcher.item(0, 0).then_some(matcher.found)
    }

    /// What [`matches`](Self::matches) finds without names. Nearly always the first thing to try at
    /// each item is right, so that is tried without the means of going back.
    pub(crate) fn matches_plainly(&self, line: &[u8]) -> Option<Match> {
        self.first_reading(line).or_else(|| self.matches(line, Names::default()))
    }

    /// Whether [`walk`](Self::walk) can read lines: fields are not padded, and one of them is the time.
    pub(crate) fn is_plain(&self) -> bool {
        let times = [Field::Seconds, Field::Millis, Field::Epoch];
        let is_time =
            |item: &&Item| matches!(item, Item::Field { field, .. } if times.contains(field));
        let is_padded = |item: &Item| matches!(item, Item::Field { width: 1.., .. });
        self.items.iter().filter(is_time).count() == 1 && !self.items.iter().any(is_padded)
    }

    /// Whether a line begins with its time, to the millisecond, and the rest of the prefix is the same in
    /// all lines of a session, or nearly.
    pub(crate) fn repeats(&self) -> bool {
        let constant = |item: &Item| match item {
            Item::Literal(_) | Item::Quit => true,
            Item::Field { field, .. } => matches!(
                field,
                Field::Application
                    | Field::User
                    | Field::Database
                    | Field::Remote
                    | Field::Host
                    | Field::BackendType
                    | Field::Pid
                    | Field::SessionId
            ),
        };
        let [Item::Field { field: Field::Millis, .. }, rest @ ..] = self.items.as_slice() else {
            return false;
        };
        self.is_plain() && rest.iter().all(constant)
    }

    /// Shows each field of a line, as the first choice reads it, to `read`, which is given the rest of the
    /// line and, for fields that may be any text, the length; it gives the length. Gives the label
    /// after the prefix and where the text begins. For plain prefixes only.
    #[inline]
    pub(crate) fn walk(
        &self,
        line: &[u8],
        mut read: impl FnMut(Field, usize, &[u8], Option<usize>) -> Option<usize>,
    ) -> Option<(Label, usize)> {
        let mut at = 0;
        for (index, item) in self.items.iter().enumerate() {
            let rest = line.get(at..)?;
            at += match item {
                Item::Literal(literal) => starting(rest, literal)?,
                Item::Quit => match Label::parse(rest) {
                    Some((label, len)) => return Some((label, at + len)),
                    None => 0,
                },
                Item::Field { field, .. } if field.is_free() => {
                    let Some(Item::Literal(next)) = self.items.get(index + 1) else { return None };
                    read(*field, at, rest, Some(find_soon(rest, next)?))?
                }
                Item::Field { field, .. } => read(*field, at, rest, None)?,
            };
        }
        let (label, len) = Label::parse(line.get(at..)?)?;
        Some((label, at + len))
    }

    fn first_reading(&self, line: &[u8]) -> Option<Match> {
        let mut found = Match::EMPTY;
        let mut at = 0;
        for (index, item) in self.items.iter().enumerate() {
            let rest = line.get(at..)?;
            at += match item {
                Item::Literal(literal) => starting(rest, literal)?,
                Item::Quit => match Label::parse(rest) {
                    Some((label, len)) => return Some(Match { label, text: at + len, ..found }),
                    None => 0,
                },
                Item::Field { field, width: 0, .. } => {
                    let (len, span) = if field.is_free() {
                        let Some(Item::Literal(next)) = self.items.get(index + 1) else {
                            return None;
                        };
                        let len = find_soon(rest, next)?;
                        (len, (at, at + len))
                    } else {
                        let len = shape::lengths(*field, rest).into_iter().flatten().next()?;
                        (len, (at, at + len))
                    };
                    found.set(*field, span).then_some(len)?
                }
                Item::Field { .. } => return None,
            };
        }
        let (label, len) = Label::parse(line.get(at..)?)?;
        Some(Match { label, text: at + len, ..found })
    }

    /// Farthest behind the text of a match that another reading, with other names, could find a label;
    /// `None` if there can be no other reading.
    pub(crate) fn doubt_bytes(&self) -> Option<usize> {
        let open = |item: &&Item| matches!(item, Item::Field { field, .. } if field.is_free() || shape::is_open_ended(*field));
        let count = self.items.iter().filter(open).count();
        (count > 0).then_some((count + 1) * WINDOW_BYTES + self.source.len())
    }
}

/// Length of a field that is not free text at the front of `rest`: the first choice.
pub(crate) fn first_length(field: Field, rest: &[u8]) -> Option<usize> {
    shape::lengths(field, rest).into_iter().flatten().next()
}

/// A field from `at` to `end`, without the spaces before or after it.
#[inline]
fn without_padding(line: &[u8], at: usize, end: usize, left: bool) -> (usize, usize) {
    let padded = &line[at..end];
    match left {
        true => (at, at + padded.trim_ascii_end().len()),
        false => (end - padded.trim_ascii_start().len(), end),
    }
}

/// Length of `literal`, if `text` begins with it.
#[inline]
fn starting(text: &[u8], literal: &[u8]) -> Option<usize> {
    match literal {
        [byte] => (text.first() == Some(byte)).then_some(1),
        _ => text.starts_with(literal).then_some(literal.len()),
    }
}

/// Where `literal` first stands, if that is as near as a name can end.
#[inline]
fn find_soon(text: &[u8], literal: &[u8]) -> Option<usize> {
    let window = &text[..text.len().min(WINDOW_BYTES)];
    match literal {
        [byte] => window.iter().position(|other| other == byte),
        _ => memmem::find(window, literal),
    }
}

/// Farthest that one field is searched for. Names have at most 63 bytes, host names 255.
const WINDOW_BYTES: usize = 512;

/// Most attempts at one line, so that a strange line against a strange prefix cannot take forever.
const STEPS_MAX: u32 = 4096;

struct Matcher<'a> {
    items: &'a [Item],
    line: &'a [u8],
    names: Names<'a>,
    found: Match,
    steps: u32,
}

impl Matcher<'_> {
    /// Whether the items from `index` on match the line from `at` on.
    fn item(&mut self, index: usize, at: usize) -> bool {
        if self.steps == 0 {
            return false;
        }
        self.steps -= 1;
        match self.items.get(index) {
            None => self.label(at),
            Some(Item::Quit) => self.label(at) || self.item(index + 1, at),
            Some(Item::Literal(literal)) => {
                self.line[at..].starts_with(literal) && self.item(index + 1, at + literal.len())
            }
            Some(&Item::Field { field, width, left }) => {
                if field.is_free() {
                    self.free(index, at, field, width, left)
                } else {
                    self.shaped(index, at, field, width, left)
                }
            }
        }
    }

    fn label(&mut self, at: usize) -> bool {
        let Some((label, len)) = Label::parse(&self.line[at..]) else { return false };
        self.found.label = label;
        self.found.text = at + len;
        true
    }

    /// A field known by its shape. Where several lengths have the shape, all are tried.
    fn shaped(&mut self, index: usize, at: usize, field: Field, width: usize, left: bool) -> bool {
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
            if self.next(index, field, (start, start + len), end) {
                return true;
            }
        }
        shape::is_open_ended(field) && self.free(index, at, field, width, left)
    }

    /// A field that may be any text: the session's own name first, then the shortest that fits.
    fn free(&mut self, index: usize, at: usize, field: Field, width: usize, left: bool) -> bool {
        let line = self.line;
        let known = self.names.of(field);
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
            && self.next(index, field, (start, end), end + after)
        {
            return true;
        }
        let limit = line.len().min(at + WINDOW_BYTES);
        let first = at + width;
        if first > limit {
            return false;
        }
        if let Some(Item::Literal(literal)) = self.items.get(index + 1) {
            let window = line.len().min(limit + literal.len());
            return memmem::find_iter(&line[first..window], literal)
                .any(|found| self.free_until(index, at, field, first + found, (width, left)));
        }
        (first..=limit).any(|end| self.free_until(index, at, field, end, (width, left)))
    }

    fn free_until(
        &mut self,
        index: usize,
        at: usize,
        field: Field,
        end: usize,
        (width, left): (usize, bool),
    ) -> bool {
        let span = match end - at == width {
            true => without_padding(self.line, at, end, left),
            // It is at least as long as the padding: its spaces are its own.
            false => (at, end),
        };
        if !field.is_free() && self.line[span.0..span.1].contains(&b' ') {
            return false;
        }
        self.next(index, field, span, end)
    }

    /// Takes the field to be at `span` and goes on at `end`.
    fn next(&mut self, index: usize, field: Field, span: (usize, usize), end: usize) -> bool {
        if !self.item(index + 1, end) {
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
