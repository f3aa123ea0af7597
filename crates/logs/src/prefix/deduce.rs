//! A prefix that nobody thought of, from the lines themselves.
//!
//! Each line's head, up to its label, is split into pieces: those of a shape of their own (times,
//! addresses, session ids, numbers), words, and what stands between. Heads that are split alike show
//! what a piece is: a word that never changes and has a `=` behind it is the prefix' own; two that the
//! server names in `connection authorized` are user and database. What comes out is a candidate only:
//! the [guess](super::guess()) holds it against every line.

mod padding;

use std::{cmp::Reverse, collections::HashMap};

use self::padding::{Padding, with_single_spaces};
use super::{Field, shape};
use crate::{
    clock::stamp_len,
    pieces::{number, session_id},
    record::Label,
};

/// The prefixes that most heads suggest: as they are, and with fields that spaces fill up.
pub(super) fn deduce(lines: &[&[u8]]) -> impl Iterator<Item = String> {
    let heads: Vec<Head<'_>> = lines.iter().filter_map(|line| Head::split(line)).collect();
    [false, true].into_iter().filter_map(move |is_padded| suggested(&heads, is_padded))
}

/// The prefix that most heads suggest; `None` if they suggest none. If `is_padded`, heads that differ
/// in their numbers of spaces are alike.
fn suggested(heads: &[Head<'_>], is_padded: bool) -> Option<String> {
    // Lines of sessions have the most pieces; of those, the most common way to be split.
    // Of several such, the first in the log: a guess must be the same each time.
    let mut groups: HashMap<Vec<Kind>, (usize, Vec<&Head<'_>>)> = HashMap::new();
    for (number, head) in heads.iter().enumerate() {
        let (_, group) = groups.entry(head.kinds(is_padded)).or_insert((number, Vec::new()));
        group.push(head);
    }
    let least = heads.len().div_ceil(LEAST_SHARE);
    let (_, session) = groups
        .values()
        .filter(|(_, group)| group.len() >= least)
        .max_by_key(|(first, group)| (group[0].pieces.len(), group.len(), Reverse(*first)))?;
    let mut text = String::new();
    let mut known = Known::default();
    let quit = quit_at(session[0], heads, is_padded);
    let session = session.as_slice();
    let padding = if is_padded { Padding::of(session) } else { Padding::none(session) };
    for at in 0..session[0].pieces.len() {
        if quit == Some((at, 0)) {
            text.push_str("%q");
        }
        let column: Vec<&[u8]> = session.iter().map(|head| head.pieces[at].1).collect();
        match known.escape(&session[0].pieces[at].0, at, &column, session, &text) {
            Some(escape) => text.push_str(&padding.padded(at, escape)),
            None => {
                let offset = quit.filter(|(piece, _)| *piece == at).map_or(0, |(_, offset)| offset);
                let own = padding.without(at, column[0]);
                let (before, after) = own.split_at(offset.min(own.len()));
                let quoted = |text: &[u8]| String::from_utf8_lossy(text).replace('%', "%%");
                text += &quoted(before);
                text += if offset > 0 { "%q" } else { "" };
                text += &quoted(after);
            }
        }
    }
    Some(text)
}

/// A way to be split must be that of one in so many lines.
const LEAST_SHARE: usize = 6;

/// What stands before a label.
struct Head<'a> {
    pieces: Vec<(Kind, &'a [u8])>,
    /// User, database and application, where the message names them.
    names: [&'a [u8]; 3],
}

/// What a piece looks like.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Kind {
    Millis,
    Seconds,
    Epoch,
    SessionId,
    Vxid,
    Remote,
    Host,
    Number,
    Word,
    /// What stands between: always the same.
    Between(Vec<u8>),
}

impl<'a> Head<'a> {
    fn split(line: &'a [u8]) -> Option<Self> {
        let (start, text) = label(line)?;
        let mut pieces: Vec<(Kind, usize, usize)> = Vec::new();
        let mut at = 0;
        while at < start {
            let (kind, len) = piece(&line[..start], at);
            match (&kind, pieces.last_mut()) {
                (Kind::Between(more), Some((Kind::Between(known), _, end))) => {
                    known.extend_from_slice(more);
                    *end = at + len;
                }
                _ => pieces.push((kind, at, at + len)),
            }
            at += len;
        }
        let pieces = pieces.into_iter().map(|(kind, from, to)| (kind, &line[from..to])).collect();
        Some(Self { pieces, names: names(text) })
    }

    /// Whether a piece is the process id that the session id tells; `None` if there is no such id.
    fn is_pid(&self, at: usize) -> Option<bool> {
        let id = self.pieces.iter().find(|(kind, _)| *kind == Kind::SessionId)?.1;
        let (_, pid) = session_id(id)?;
        Some(number(self.pieces[at].1) == Some(u64::from(pid)))
    }

    /// What its pieces look like; if `is_padded`, however many spaces there are.
    fn kinds(&self, is_padded: bool) -> Vec<Kind> {
        let kind = |kind: &Kind| match kind {
            Kind::Between(text) if is_padded => Kind::Between(with_single_spaces(text)),
            kind => kind.clone(),
        };
        self.pieces.iter().map(|(it, _)| kind(it)).collect()
    }
}

/// Where the first label of a line stands, if there is one.
pub(super) fn label_at(line: &[u8]) -> Option<usize> {
    label(line).map(|(start, _)| start)
}

/// The same, with the text after it.
fn label(line: &[u8]) -> Option<(usize, &[u8])> {
    let window = &line[..line.len().min(HEAD_BYTES_MAX)];
    memchr::memmem::find_iter(window, b":  ").find_map(|colon| {
        let is_letter = |byte: &u8| byte.is_ascii_uppercase() || byte.is_ascii_digit();
        let word = window[..colon].iter().rposition(|byte| !is_letter(byte));
        // A label may follow a field without anything between.
        (word.map_or(0, |at| at + 1)..colon)
            .find_map(|at| Label::parse(&window[at..]).map(|(_, len)| (at, &line[at + len..])))
    })
}

/// Farthest that a label is looked for.
const HEAD_BYTES_MAX: usize = 512;

/// The names in `connection authorized: user=al database=shop application_name=psql`.
fn names(text: &[u8]) -> [&[u8]; 3] {
    let Some(rest) = text.strip_prefix(b"connection authorized: ") else { return [b""; 3] };
    [&b"user="[..], b" database=", b" application_name="].map(|key| {
        let Some(at) = memchr::memmem::find(rest, key) else { return &b""[..] };
        let value = &rest[at + key.len()..];
        &value[..value.iter().position(|byte| b" \n".contains(byte)).unwrap_or(value.len())]
    })
}

/// The piece of a head that begins at `at`, and its length.
fn piece(head: &[u8], at: usize) -> (Kind, usize) {
    let bytes = &head[at..];
    if let Some(len) = stamp_len(bytes, true) {
        return (Kind::Millis, len);
    }
    if let Some(len) = stamp_len(bytes, false) {
        return (Kind::Seconds, len);
    }
    let run =
        |is_part: &dyn Fn(u8) -> bool| bytes.iter().take_while(|byte| is_part(**byte)).count();
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_' || byte >= 0x80;
    let shaped = |field: Field| shape::lengths(field, bytes)[0];
    if bytes[0] == b'[' {
        let end = memchr::memchr(b']', &bytes[..bytes.len().min(16)]);
        return match end.map(|end| &bytes[..=end]) {
            Some(b"[local]") => (Kind::Remote, 7),
            Some(b"[unknown]") => (Kind::Word, 9),
            _ => (Kind::Between(vec![b'[']), 1),
        };
    }
    // Query ids have a sign.
    if bytes[0] == b'-' && at > 0 && b"=[( :".contains(&head[at - 1]) {
        let digits = bytes[1..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        if digits >= QUERY_ID_DIGITS_MIN {
            return (Kind::Number, 1 + digits);
        }
    }
    if !is_word(bytes[0]) {
        return (Kind::Between(vec![bytes[0]]), 1);
    }
    let ends = |len: usize| bytes.get(len).is_none_or(|byte| !is_word(*byte) && *byte != b'.');
    let whole = |field: Field| shaped(field).filter(|len| ends(*len));
    if let Some(len) = whole(Field::Epoch).filter(|len| *len == 14) {
        return (Kind::Epoch, len);
    }
    if let Some(len) = shaped(Field::Remote).filter(|len| bytes[len - 1] == b')') {
        return (Kind::Remote, len);
    }
    if let Some(len) = whole(Field::SessionId).filter(|len| *len >= 10) {
        return (Kind::SessionId, len);
    }
    if let Some(len) = whole(Field::Host).filter(|len| bytes[..*len].contains(&b'.')) {
        return (Kind::Host, len);
    }
    if let Some(len) = whole(Field::Vxid) {
        return (Kind::Vxid, len);
    }
    let digits = run(&|byte| byte.is_ascii_digit());
    if digits > 0 && ends(digits) {
        return (Kind::Number, digits);
    }
    (Kind::Word, run(&is_word))
}

/// Fewer digits after a sign are hardly ever a query id: it has 64 bits, all of them random.
const QUERY_ID_DIGITS_MIN: usize = 8;

/// Where heads of other processes stop, if they stop earlier than those of sessions: before a piece,
/// or after so many bytes of it.
fn quit_at(session: &Head<'_>, heads: &[Head<'_>], is_padded: bool) -> Option<(usize, usize)> {
    let kinds = session.kinds(is_padded);
    let mut ends = heads.iter().map(|head| head.kinds(is_padded)).filter_map(|other| {
        let (last, before) = other.split_last()?;
        if other.len() > kinds.len() || !kinds.starts_with(before) {
            return None;
        }
        match (last, &kinds[before.len()]) {
            (last, kind) if last == kind && other.len() < kinds.len() => Some((other.len(), 0)),
            (Kind::Between(short), Kind::Between(long))
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

/// What was given an escape already.
#[derive(Default)]
struct Known {
    has_time: bool,
    used: Vec<&'static str>,
}

impl Known {
    /// The escape for a column of pieces; `None` if it is the prefix' own text.
    fn escape(
        &mut self,
        kind: &Kind,
        at: usize,
        column: &[&[u8]],
        heads: &[&Head<'_>],
        before: &str,
    ) -> Option<&'static str> {
        let is_constant = column.iter().all(|value| *value == column[0]);
        let escape = match kind {
            Kind::Between(_) => return None,
            Kind::Millis | Kind::Seconds | Kind::Epoch if self.has_time => "%s",
            // A session's start is in seconds always; beside a finer time it is nothing else.
            Kind::Seconds
                if heads[0]
                    .pieces
                    .iter()
                    .any(|(kind, _)| *kind == Kind::Millis || *kind == Kind::Epoch) =>
            {
                "%s"
            }
            Kind::Millis => "%m",
            Kind::Seconds => "%t",
            Kind::Epoch => "%n",
            Kind::SessionId => "%c",
            Kind::Vxid => "%v",
            Kind::Remote => "%r",
            Kind::Host => "%h",
            Kind::Number if is_constant && column[0] == b"1" && before.ends_with("%l-") => {
                return None;
            }
            Kind::Number if self.named(&NUMBER_KEYS, before).is_some() => {
                self.named(&NUMBER_KEYS, before)?
            }
            Kind::Number if are_sqlstates(column) => self.first(&["%e"])?,
            Kind::Number if is_constant && column[0] == b"0" => self.first(&["%x", "%Q"])?,
            Kind::Number if heads.iter().any(|head| head.is_pid(at) == Some(false)) => {
                self.first(&["%l", "%x", "%Q"])?
            }
            Kind::Number => self.first(&["%p", "%l", "%x", "%Q"])?,
            Kind::Word => self.word(at, column, heads, before, is_constant)?,
        };
        self.has_time |= matches!(escape, "%m" | "%t" | "%n");
        self.used.push(escape);
        Some(escape)
    }

    /// The first of some escapes that was not used.
    fn first(&self, escapes: &[&'static str]) -> Option<&'static str> {
        escapes.iter().copied().find(|escape| !self.used.contains(escape))
    }

    /// The escape that the word before a value names, such as `user=`, if it was not used.
    fn named(&self, keys: &[(&str, &'static str)], before: &str) -> Option<&'static str> {
        let before = before.trim_end_matches(['=', ':', ' ']);
        let key = before.rsplit(|c: char| !c.is_alphanumeric() && c != '_').next();
        let escape = keys.iter().find(|(word, _)| Some(*word) == key).map(|(_, escape)| *escape);
        escape.filter(|escape| !self.used.contains(escape))
    }

    /// The same for words: names, tags, or text.
    fn word(
        &self,
        at: usize,
        column: &[&[u8]],
        heads: &[&Head<'_>],
        before: &str,
        is_constant: bool,
    ) -> Option<&'static str> {
        const ESCAPES: [&str; 3] = ["%u", "%d", "%a"];
        let is_key = heads.iter().all(|head| {
            let next = head.pieces.get(at + 1).map_or(&b""[..], |(_, bytes)| bytes);
            matches!(next.first(), Some(b'=' | b':')) && is_constant
        });
        if is_key {
            return None;
        }
        for (number, escape) in ESCAPES.into_iter().enumerate() {
            let named: Vec<_> =
                heads.iter().filter(|head| !head.names[number].is_empty()).collect();
            let agrees = named.iter().all(|head| head.pieces[at].1 == head.names[number]);
            if agrees && !named.is_empty() && !self.used.contains(&escape) {
                return Some(escape);
            }
        }
        if are_sqlstates(column) {
            return self.first(&["%e"]);
        }
        if let Some(escape) = self.named(KEYS, before) {
            return Some(escape);
        }
        if column.iter().all(|value| TAGS.contains(value)) {
            return self.first(&["%i"]);
        }
        // `%u@%d` is how most prefixes name them, also where all sessions have the same.
        let next = heads[0].pieces.get(at + 1).map_or(&b""[..], |(_, bytes)| bytes);
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
        if is_name { self.first(&ESCAPES) } else { None }
    }
}

/// Words that prefixes call their fields by.
const KEYS: &[(&str, &str)] = &[
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

/// The same for fields that are numbers.
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

const TAGS: &[&[u8]] = &[
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

/// Whether all are SQLSTATEs: there is always one of success among them.
fn are_sqlstates(column: &[&[u8]]) -> bool {
    let is_code = |value: &&[u8]| {
        value.len() == 5 && value.iter().all(|b| b.is_ascii_digit() || b.is_ascii_uppercase())
    };
    column.contains(&&b"00000"[..]) && column.iter().all(is_code)
}

#[cfg(test)]
mod tests;
