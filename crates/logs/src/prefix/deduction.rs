//! Deduces an unusual prefix from the lines themselves.
//!
//! The head of each line, up to its label, is split into tokens: values with a distinct shape
//! (times, addresses, session ids, numbers), words, and the literal text between them. Comparing
//! heads with the same kinds of tokens shows the meaning of a token: a constant word followed by
//! `=` is literal text of the prefix; two words that the server repeats in `connection authorized`
//! are user and database. The result is only a candidate, which the
//! [guess](super::guess_prefix()) tries on every line.

mod padding;

use howdah_log_input::{LineLabel, stamp_len};
use std::{cmp::Reverse, collections::HashMap};

use self::padding::{Padding, with_single_spaces};
use super::{PrefixField, shape};
use crate::record::spans::{parse_session_id, parse_u64};

/// Returns the prefixes that the heads of the lines suggest, most likely first: without padded
/// fields, then with them.
pub(super) fn deduce_prefixes(lines: &[&[u8]]) -> impl Iterator<Item = String> {
    let heads: Vec<LineHead<'_>> = lines.iter().filter_map(|line| LineHead::split(line)).collect();
    [false, true].into_iter().flat_map(move |is_padded| {
        let groups = common_groups(&heads, is_padded);
        let prefixes = groups.iter().flat_map(|group| {
            let quit = quit_at(group[0], &heads, is_padded);
            let quits = later_quits(quit, group[0].tokens.len(), is_padded);
            quits.map(|quit| prefix_of_group(group, quit, is_padded)).collect::<Vec<_>>()
        });
        prefixes.collect::<Vec<_>>()
    })
}

/// Returns the groups of heads with the same kinds of tokens that are common enough: those with the
/// most tokens first, and among these the most common ones. If `is_padded`, heads that differ only
/// in their numbers of spaces are alike.
///
/// Lines of sessions have the most tokens, unless a name contains spaces.
fn common_groups<'a, 'h>(heads: &'h [LineHead<'a>], is_padded: bool) -> Vec<Vec<&'h LineHead<'a>>> {
    let mut groups: HashMap<Vec<HeadTokenKind>, (usize, Vec<&LineHead<'_>>)> = HashMap::new();
    for (number, head) in heads.iter().enumerate() {
        let (_, group) = groups.entry(head.kinds(is_padded)).or_insert((number, Vec::new()));
        group.push(head);
    }
    let least = heads.len().div_ceil(GROUP_SHARE_MIN);
    let is_common = |(_, group): &(usize, Vec<_>)| group.len() >= least;
    let mut groups: Vec<_> = groups.into_values().filter(is_common).collect();
    // The first in the log precedes others that are equally common, so that the guess is
    // reproducible.
    groups.sort_by_key(|(first, group)| (Reverse((group[0].tokens.len(), group.len())), *first));
    groups.into_iter().map(|(_, group)| group).collect()
}

/// Returns the positions at which the heads of background processes may end, given the first. If
/// `is_padded`, fields that are only spaces in these heads may precede the end.
fn later_quits(
    quit: Option<(usize, usize)>,
    tokens: usize,
    is_padded: bool,
) -> impl Iterator<Item = Option<(usize, usize)>> {
    let last = if is_padded { tokens } else { 0 };
    let later = quit.into_iter().flat_map(move |(at, _)| at + 1..last).map(|at| Some((at, 0)));
    std::iter::once(quit).chain(later)
}

/// Returns the prefix that heads with the same kinds of tokens suggest.
fn prefix_of_group(
    session: &[&LineHead<'_>],
    quit: Option<(usize, usize)>,
    is_padded: bool,
) -> String {
    let mut text = String::new();
    let mut known = AssignedEscapes::default();
    let padding = if is_padded { Padding::detect(session) } else { Padding::none(session) };
    for at in 0..session[0].tokens.len() {
        if quit == Some((at, 0)) {
            text.push_str("%q");
        }
        let column: Vec<&[u8]> = session.iter().map(|head| head.tokens[at].1).collect();
        match known.escape(&session[0].tokens[at].0, at, &column, session, &text) {
            Some(escape) => text.push_str(&padding.escape_with_width(at, escape)),
            None => {
                let offset = quit.filter(|(token, _)| *token == at).map_or(0, |(_, offset)| offset);
                let own = padding.strip_padding(at, column[0]);
                let (before, after) = own.split_at(offset.min(own.len()));
                let quoted = |text: &[u8]| String::from_utf8_lossy(text).replace('%', "%%");
                text += &quoted(before);
                text += if offset > 0 { "%q" } else { "" };
                text += &quoted(after);
            }
        }
    }
    text
}

/// A combination of tokens suggests a prefix only if at least one in this many heads has it.
const GROUP_SHARE_MIN: usize = 6;

/// The part of a line before its label.
struct LineHead<'a> {
    tokens: Vec<(HeadTokenKind, &'a [u8])>,
    /// User, database and application, if the message names them.
    names: [&'a [u8]; 3],
}

/// Classification of a token in a line's head.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum HeadTokenKind {
    Millis,
    Seconds,
    Epoch,
    SessionId,
    Vxid,
    Remote,
    Host,
    Number,
    Word,
    /// Literal text between values.
    Between(Vec<u8>),
}

impl<'a> LineHead<'a> {
    fn split(line: &'a [u8]) -> Option<Self> {
        let (start, text) = label(line)?;
        let mut tokens: Vec<(HeadTokenKind, usize, usize)> = Vec::new();
        let mut at = 0;
        while at < start {
            let (kind, len) = next_token(&line[..start], at);
            match (&kind, tokens.last_mut()) {
                (HeadTokenKind::Between(more), Some((HeadTokenKind::Between(known), _, end))) => {
                    known.extend_from_slice(more);
                    *end = at + len;
                }
                _ => tokens.push((kind, at, at + len)),
            }
            at += len;
        }
        let tokens = tokens.into_iter().map(|(kind, from, to)| (kind, &line[from..to])).collect();
        Some(Self { tokens, names: names(text) })
    }

    /// Whether a token is the process id contained in the session id; `None` if the head has no
    /// session id.
    fn is_pid(&self, at: usize) -> Option<bool> {
        let id = self.tokens.iter().find(|(kind, _)| *kind == HeadTokenKind::SessionId)?.1;
        let (_, pid) = parse_session_id(id)?;
        Some(parse_u64(self.tokens[at].1) == Some(u64::from(pid)))
    }

    /// Returns the kinds of the head's tokens. If `is_padded`, runs of spaces are reduced to one.
    fn kinds(&self, is_padded: bool) -> Vec<HeadTokenKind> {
        let kind = |kind: &HeadTokenKind| match kind {
            HeadTokenKind::Between(text) if is_padded => {
                HeadTokenKind::Between(with_single_spaces(text))
            }
            kind => kind.clone(),
        };
        self.tokens.iter().map(|(it, _)| kind(it)).collect()
    }
}

/// Returns the offset of the first label of a line, if there is one.
pub(super) fn label_at(line: &[u8]) -> Option<usize> {
    label(line).map(|(start, _)| start)
}

/// Returns the offset of the first label of a line, and the text after it.
fn label(line: &[u8]) -> Option<(usize, &[u8])> {
    let window = &line[..line.len().min(HEAD_BYTES_MAX)];
    memchr::memmem::find_iter(window, b":  ").find_map(|colon| {
        let is_letter = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let word = window[..colon].iter().rposition(|byte| !is_letter(byte));
        // A label may follow a field without a separator.
        (word.map_or(0, |at| at + 1)..colon)
            .find_map(|at| LineLabel::parse(&window[at..]).map(|(_, len)| (at, &line[at + len..])))
    })
}

/// Number of bytes at the front of a line that are searched for a label.
const HEAD_BYTES_MAX: usize = 512;

/// Parses the names in `connection authorized: user=al database=shop application_name=psql`.
fn names(text: &[u8]) -> [&[u8]; 3] {
    let Some(rest) = text.strip_prefix(b"connection authorized: ") else { return [b""; 3] };
    [&b"user="[..], b" database=", b" application_name="].map(|key| {
        let Some(at) = memchr::memmem::find(rest, key) else { return &b""[..] };
        let value = &rest[at + key.len()..];
        &value[..value.iter().position(|byte| b" \n".contains(byte)).unwrap_or(value.len())]
    })
}

/// Returns the token of a head that begins at `at`, and its length.
fn next_token(head: &[u8], at: usize) -> (HeadTokenKind, usize) {
    let bytes = &head[at..];
    if let Some(len) = stamp_len(bytes, true) {
        return (HeadTokenKind::Millis, len);
    }
    if let Some(len) = stamp_len(bytes, false) {
        return (HeadTokenKind::Seconds, len);
    }
    let run =
        |is_part: &dyn Fn(u8) -> bool| bytes.iter().take_while(|byte| is_part(**byte)).count();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let shaped = |field: PrefixField| shape::lengths(field, bytes)[0];
    if bytes[0] == b'[' {
        let end = memchr::memchr(b']', &bytes[..bytes.len().min(16)]);
        return match end.map(|end| &bytes[..=end]) {
            Some(b"[local]") => (HeadTokenKind::Remote, 7),
            Some(b"[unknown]") => (HeadTokenKind::Word, 9),
            _ => (HeadTokenKind::Between(vec![b'[']), 1),
        };
    }
    // Query ids have a sign.
    if bytes[0] == b'-' && at > 0 && b"=[( :".contains(&head[at - 1]) {
        let digits = bytes[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits >= QUERY_ID_DIGITS_MIN {
            return (HeadTokenKind::Number, 1 + digits);
        }
    }
    if !is_word(bytes[0]) {
        return (HeadTokenKind::Between(vec![bytes[0]]), 1);
    }
    let ends = |len: usize| bytes.get(len).is_none_or(|byte| !is_word(*byte) && *byte != b'.');
    let whole = |field: PrefixField| shaped(field).filter(|len| ends(*len));
    if let Some(len) = whole(PrefixField::Epoch).filter(|len| *len == 14) {
        return (HeadTokenKind::Epoch, len);
    }
    if let Some(len) = shaped(PrefixField::Remote).filter(|len| bytes[len - 1] == b')') {
        return (HeadTokenKind::Remote, len);
    }
    if let Some(len) = whole(PrefixField::SessionId).filter(|len| *len >= 10) {
        return (HeadTokenKind::SessionId, len);
    }
    if let Some(len) = whole(PrefixField::Host).filter(|len| bytes[..*len].contains(&b'.')) {
        return (HeadTokenKind::Host, len);
    }
    if let Some(len) = whole(PrefixField::Vxid) {
        return (HeadTokenKind::Vxid, len);
    }
    let digits = run(&|byte| byte.is_ascii_digit());
    if digits > 0 && ends(digits) {
        return (HeadTokenKind::Number, digits);
    }
    (HeadTokenKind::Word, run(&is_word))
}

/// Minimum digits of a negative query id. Ids are 64 random bits, so shorter ones are very
/// unlikely.
const QUERY_ID_DIGITS_MIN: usize = 8;

/// Returns the position at which the heads of background processes end, if they end earlier than
/// those of sessions: the index of a token, and an offset in it. `None` if they do not all end at
/// the same position.
fn quit_at(
    session: &LineHead<'_>,
    heads: &[LineHead<'_>],
    is_padded: bool,
) -> Option<(usize, usize)> {
    let kinds = session.kinds(is_padded);
    let mut ends = heads.iter().map(|head| head.kinds(is_padded)).filter_map(|other| {
        let (last, before) = other.split_last()?;
        if other.len() > kinds.len() || !kinds.starts_with(before) {
            return None;
        }
        match (last, &kinds[before.len()]) {
            (last, kind) if last == kind && other.len() < kinds.len() => Some((other.len(), 0)),
            (HeadTokenKind::Between(short), HeadTokenKind::Between(long))
                if long.len() > short.len() && long.starts_with(short) =>
            {
                Some((before.len(), short.len()))
            }
            _ => None,
        }
    });
    let first = ends.next()?;
    ends.all(|end| end == first).then_some(first)
}

/// The escapes that a deduced prefix already uses.
#[derive(Default)]
struct AssignedEscapes {
    has_time: bool,
    used: Vec<&'static str>,
}

impl AssignedEscapes {
    /// Returns the escape for a column of tokens; `None` if it is literal text.
    fn escape(
        &mut self,
        kind: &HeadTokenKind,
        at: usize,
        column: &[&[u8]],
        heads: &[&LineHead<'_>],
        before: &str,
    ) -> Option<&'static str> {
        let is_constant = column.iter().all(|value| *value == column[0]);
        let escape = match kind {
            HeadTokenKind::Between(_) => return None,
            HeadTokenKind::Millis | HeadTokenKind::Seconds | HeadTokenKind::Epoch
                if self.has_time =>
            {
                "%s"
            }
            // Next to a finer time, a time in whole seconds can only be the session's start.
            HeadTokenKind::Seconds
                if heads[0].tokens.iter().any(|(kind, _)| {
                    *kind == HeadTokenKind::Millis || *kind == HeadTokenKind::Epoch
                }) =>
            {
                "%s"
            }
            HeadTokenKind::Millis => "%m",
            HeadTokenKind::Seconds => "%t",
            HeadTokenKind::Epoch => "%n",
            HeadTokenKind::SessionId => "%c",
            HeadTokenKind::Vxid => "%v",
            HeadTokenKind::Remote => "%r",
            HeadTokenKind::Host => "%h",
            HeadTokenKind::Number
                if is_constant && column[0] == b"1" && ends_with_line_number(before) =>
            {
                return None;
            }
            HeadTokenKind::Number if self.escape_for_key(&NUMBER_KEYS, before).is_some() => {
                self.escape_for_key(&NUMBER_KEYS, before)?
            }
            HeadTokenKind::Number if are_sqlstates(column) => self.first_unused(&["%e"])?,
            HeadTokenKind::Number if is_constant && column[0] == b"0" => {
                self.first_unused(&["%x", "%Q"])?
            }
            HeadTokenKind::Number if heads.iter().any(|head| head.is_pid(at) == Some(false)) => {
                self.first_unused(&["%l", "%x", "%Q"])?
            }
            HeadTokenKind::Number => self.first_unused(&["%p", "%l", "%x", "%Q"])?,
            HeadTokenKind::Word => self.word_escape(at, column, heads, before, is_constant)?,
        };
        self.has_time |= matches!(escape, "%m" | "%t" | "%n");
        self.used.push(escape);
        Some(escape)
    }

    /// Returns the first of `escapes` that is not used yet.
    fn first_unused(&self, escapes: &[&'static str]) -> Option<&'static str> {
        escapes.iter().copied().find(|escape| !self.used.contains(escape))
    }

    /// Returns the escape for a value after a word such as `user=`, if it is not used yet.
    fn escape_for_key(&self, keys: &[(&str, &'static str)], before: &str) -> Option<&'static str> {
        let before = before.trim_end_matches(['=', ':', ' ']);
        let key = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        let escape = keys.iter().find(|(word, _)| Some(*word) == key).map(|(_, escape)| *escape);
        escape.filter(|escape| !self.used.contains(escape))
    }

    /// Returns the escape for a column of words; `None` for literal text.
    fn word_escape(
        &self,
        at: usize,
        column: &[&[u8]],
        heads: &[&LineHead<'_>],
        before: &str,
        is_constant: bool,
    ) -> Option<&'static str> {
        const ESCAPES: [&str; 3] = ["%u", "%d", "%a"];
        let is_key = heads.iter().all(|head| {
            let next = head.tokens.get(at + 1).map_or(&b""[..], |(_, bytes)| bytes);
            matches!(next.first(), Some(b'=' | b':')) && is_constant
        });
        if is_key {
            return None;
        }
        for (number, escape) in ESCAPES.into_iter().enumerate() {
            let named: Vec<_> =
                heads.iter().filter(|head| !head.names[number].is_empty()).collect();
            let agrees = named.iter().all(|head| head.tokens[at].1 == head.names[number]);
            if agrees && !named.is_empty() && !self.used.contains(&escape) {
                return Some(escape);
            }
        }
        if are_sqlstates(column) {
            return self.first_unused(&["%e"]);
        }
        if let Some(escape) = self.escape_for_key(WORD_KEYS, before) {
            return Some(escape);
        }
        if column.iter().all(|value| COMMAND_TAGS.contains(value)) {
            return self.first_unused(&["%i"]);
        }
        // Most prefixes use `%u@%d`, even where all sessions have the same names.
        let next = heads[0].tokens.get(at + 1).map_or(&b""[..], |(_, bytes)| bytes);
        let beside = if next.starts_with(b"@") {
            Some("%u")
        } else if before.ends_with("%u@") {
            Some("%d")
        } else {
            None
        };
        if let Some(escape) = beside.filter(|escape| !self.used.contains(escape)) {
            return Some(escape);
        }
        let is_name = column.contains(&&b"[unknown]"[..]) || !is_constant;
        if is_name { self.first_unused(&ESCAPES) } else { None }
    }
}

/// Whether a prefix ends with `%l-`, after which the convention is a literal `1`.
fn ends_with_line_number(before: &str) -> bool {
    let width =
        before.strip_suffix("l-").map(|it| it.trim_end_matches(|c: char| c.is_ascii_digit()));
    width.is_some_and(|it| it.ends_with('%') || it.ends_with("%-"))
}

/// Words that prefixes use to label their fields, with the escapes of these fields.
const WORD_KEYS: &[(&str, &str)] = &[
    ("user", "%u"),
    ("usr", "%u"),
    ("u", "%u"),
    ("role", "%u"),
    ("db", "%d"),
    ("database", "%d"),
    ("d", "%d"),
    ("app", "%a"),
    ("application", "%a"),
    ("a", "%a"),
    ("client", "%h"),
    ("host", "%h"),
    ("tag", "%i"),
    ("cmd", "%i"),
    ("sqlstate", "%e"),
];

/// Words that prefixes use to label their numeric fields, with the escapes of these fields.
const NUMBER_KEYS: [(&str, &str); 9] = [
    ("queryid", "%Q"),
    ("query_id", "%Q"),
    ("qid", "%Q"),
    ("pid", "%p"),
    ("process", "%p"),
    ("line", "%l"),
    ("xid", "%x"),
    ("txid", "%x"),
    ("xact", "%x"),
];

const COMMAND_TAGS: &[&[u8]] = &[
    b"SELECT",
    b"INSERT",
    b"UPDATE",
    b"DELETE",
    b"BEGIN",
    b"COMMIT",
    b"idle",
    b"authentication",
    b"BIND",
    b"PARSE",
];

/// Whether all values are SQLSTATEs, and at least one of them is `00000`.
fn are_sqlstates(column: &[&[u8]]) -> bool {
    let is_code = |value: &&[u8]| {
        value.len() == 5 && value.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
    };
    column.contains(&&b"00000"[..]) && column.iter().all(is_code)
}

#[cfg(test)]
mod tests;
