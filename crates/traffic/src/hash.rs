//! One number for a set of events, whatever their order: [`EventHash`].
//!
//! It answers "are these the same events?" between a log and the capture made of it, between two
//! readers of one log, between a capture and its parts. It is no checksum of files and keeps no secret.
//!
//! # Cost
//!
//! One copy of an event's bytes into a buffer of a few kilobytes and one pass of XXH3 over it. Nothing
//! is allocated per event; texts larger than the buffer are hashed where they are.

use std::{fmt, ops::AddAssign};

use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::{Action, Bound, CopyDirection, Event, Kind, Parameter};

/// A hash over every field of every event added, independent of their order, with the events
/// counted by kind.
///
/// It is the sum, modulo 2¹²⁸, of one XXH3-128 hash (seed 0) per event. What is hashed is the event
/// as a run of fields, in the order of [`Field`], those that the event does not have left out:
///
/// ```text
/// field  = tag: u8, value
/// value  = number: i64 little-endian
///        | text: u64 little-endian length, bytes
///        | list: u64 little-endian count, then per entry
///                0: u8 (NULL) | 1: u8, text (a value) | 2: u8, text (a value that was cut)
/// ```
///
/// Being a sum, it can be taken in parts: hash halves of a log apart and add them. Equal events count
/// as often as they come, which an exclusive or would not see.
///
/// ```
/// use howdah_traffic::EventHash;
/// assert_eq!(EventHash::default().to_string(), "00000000000000000000000000000000");
/// ```
#[derive(Clone, Default)]
pub struct EventHash {
    sum: u128,
    kinds: [u64; Kind::ALL.len()],
    row: Row,
}

/// What the tag of a field says, in the order of the fields of an event. Numbers are never reused.
/// `docs/src/reference/event-hash.md` tells them to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Field {
    /// Number: microseconds since 1970-01-01 00:00 UTC.
    Time = 1,
    /// Text.
    Session = 2,
    /// Text: [`Kind::as_str`].
    Kind = 3,
    /// Text, left out if empty, as are the next two.
    User = 4,
    /// Text.
    Database = 5,
    /// Text.
    Application = 6,
    /// Text: name of the prepared statement.
    Statement = 7,
    /// Text.
    Portal = 8,
    /// Text.
    Sql = 9,
    /// List.
    Parameters = 10,
    /// Text: `in` or `out`.
    CopyDirection = 11,
    /// Text: name of the function that was called.
    Function = 12,
    /// Number, microseconds.
    Duration = 13,
    /// Text: five characters.
    SqlState = 14,
    /// Text: the error message.
    Error = 15,
    /// Text: [`crate::Source::as_str`].
    Source = 16,
    /// Text.
    Vxid = 17,
    /// Number.
    QueryId = 18,
    /// Number.
    Pipeline = 19,
}

impl EventHash {
    /// Takes an event in.
    pub fn add(&mut self, event: &Event) {
        let row = &mut self.row;
        row.number(Field::Time, event.time.as_micros());
        row.text(Field::Session, event.session.as_bytes());
        row.text(Field::Kind, event.action.kind().as_str().as_bytes());
        row.known(Field::User, &event.user);
        row.known(Field::Database, &event.database);
        row.known(Field::Application, &event.application);
        row.action(&event.action);
        if let Some(duration_us) = event.outcome.duration_us {
            row.number(Field::Duration, duration_us.cast_signed());
        }
        if let Some(code) = event.outcome.sqlstate {
            row.text(Field::SqlState, code.as_str().as_bytes());
        }
        if let Some(error) = &event.outcome.error {
            row.text(Field::Error, error.as_bytes());
        }
        row.text(Field::Source, event.source.as_str().as_bytes());
        if let Some(vxid) = &event.vxid {
            row.text(Field::Vxid, vxid.as_bytes());
        }
        if let Some(query_id) = event.query_id {
            row.number(Field::QueryId, query_id);
        }
        if let Some(pipeline) = event.pipeline {
            row.number(Field::Pipeline, i64::from(pipeline));
        }
        self.sum = self.sum.wrapping_add(row.take());
        self.kinds[event.action.kind() as usize] += 1;
    }

    /// The hash.
    pub fn value(&self) -> u128 {
        self.sum
    }

    /// Number of events.
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Number of events of each kind that came, in the order of [`Kind::ALL`].
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        Kind::ALL.iter().map(|kind| (*kind, self.kinds[*kind as usize])).filter(|(_, n)| *n > 0)
    }
}

/// The hash of both sets of events together.
impl AddAssign<&Self> for EventHash {
    fn add_assign(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            *mine += theirs;
        }
    }
}

/// Two are equal when their sums and counts are.
impl PartialEq for EventHash {
    fn eq(&self, other: &Self) -> bool {
        (self.sum, self.kinds) == (other.sum, other.kinds)
    }
}

impl Eq for EventHash {}

/// Thirty-two hexadecimal digits.
impl fmt::Display for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.sum)
    }
}

impl fmt::Debug for EventHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventHash")
            .field("sum", &format_args!("{:032x}", self.sum))
            .field("events", &self.events())
            .finish_non_exhaustive()
    }
}

/// The bytes of one event on their way into a hash.
///
/// Most events fit the buffer and take the fast path of hashing known bytes at once; the hasher in
/// steps, which gives the same hash, is for those that do not.
#[derive(Clone, Default)]
struct Row {
    buffer: Vec<u8>,
    /// Has taken the bytes before those of the buffer. Boxed once, then reused.
    stepwise: Option<Box<Xxh3>>,
    overflowed: bool,
}

impl Row {
    fn number(&mut self, field: Field, number: i64) {
        self.head(field as u8, number.cast_unsigned());
    }

    fn text(&mut self, field: Field, text: &[u8]) {
        self.sized(field as u8, text);
    }

    /// A tag and a number, as one run of bytes.
    #[inline]
    fn head(&mut self, tag: u8, number: u64) {
        let mut head = [tag; 9];
        head[1..].copy_from_slice(&number.to_le_bytes());
        if self.buffer.len() + head.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(&head);
        } else {
            self.put(&head);
        }
    }

    fn known(&mut self, field: Field, text: &str) {
        if !text.is_empty() {
            self.text(field, text.as_bytes());
        }
    }

    fn action(&mut self, action: &Action) {
        match action {
            Action::Connect | Action::Disconnect | Action::Cancel => {}
            Action::Simple { sql } => self.text(Field::Sql, sql.as_bytes()),
            Action::Copy { sql, direction } => {
                self.text(Field::Sql, sql.as_bytes());
                let word = match direction {
                    CopyDirection::In => "in",
                    CopyDirection::Out => "out",
                };
                self.text(Field::CopyDirection, word.as_bytes());
            }
            Action::Parse { statement, sql } => {
                self.text(Field::Statement, statement.as_bytes());
                self.text(Field::Sql, sql.as_bytes());
            }
            Action::Bind(bound) | Action::Execute(bound) | Action::Fetch(bound) => {
                self.bound(bound);
            }
            Action::Call { function } => self.text(Field::Function, function.as_bytes()),
        }
    }

    fn bound(&mut self, bound: &Bound) {
        self.text(Field::Statement, bound.statement.as_bytes());
        self.text(Field::Portal, bound.portal.as_bytes());
        self.text(Field::Sql, bound.sql.as_bytes());
        let Some(parameters) = &bound.parameters else { return };
        self.head(Field::Parameters as u8, parameters.len() as u64);
        for parameter in parameters {
            match parameter {
                Parameter::Null => self.put(&[0]),
                Parameter::Value(text) => self.sized(1, text.as_bytes()),
                Parameter::Truncated(text) => self.sized(2, text.as_bytes()),
            }
        }
    }

    /// A tag and a text with its length.
    #[inline]
    fn sized(&mut self, tag: u8, text: &[u8]) {
        self.head(tag, text.len() as u64);
        self.put(text);
    }

    #[inline]
    fn put(&mut self, bytes: &[u8]) {
        if self.buffer.len() + bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
            return;
        }
        let hasher = self.stepwise.get_or_insert_default();
        hasher.update(&self.buffer);
        self.buffer.clear();
        self.overflowed = true;
        if bytes.len() <= BUFFER_BYTES {
            self.buffer.extend_from_slice(bytes);
        } else {
            hasher.update(bytes);
        }
    }

    /// The hash of what was put in; the next event begins anew.
    fn take(&mut self) -> u128 {
        let hash = match &mut self.stepwise {
            Some(hasher) if self.overflowed => {
                hasher.update(&self.buffer);
                let hash = hasher.digest128();
                hasher.reset();
                hash
            }
            _ => xxh3_128(&self.buffer),
        };
        self.buffer.clear();
        self.overflowed = false;
        hash
    }
}

const BUFFER_BYTES: usize = 8 << 10;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Outcome, Source, SqlState, Timestamp};

    fn event(sql: &str, parameters: Option<Vec<Parameter>>) -> Event {
        Event {
            time: Timestamp::from_micros(1),
            session: "s".into(),
            user: "u".into(),
            database: "".into(),
            application: "".into(),
            action: Action::Execute(Bound {
                statement: "".into(),
                portal: "p".into(),
                sql: sql.into(),
                parameters,
            }),
            outcome: Outcome { duration_us: Some(2), ..Outcome::default() },
            source: Source::Duration,
            vxid: None,
            query_id: Some(-1),
            pipeline: None,
        }
    }

    fn hash_of<'a>(events: impl IntoIterator<Item = &'a Event>) -> EventHash {
        let mut hash = EventHash::default();
        events.into_iter().for_each(|event| hash.add(event));
        hash
    }

    /// What the documentation says, done by hand.
    #[test]
    fn the_hash_is_the_documented_one() {
        let value = Parameter::Value("v".into());
        let event = event("select $1", Some(vec![Parameter::Null, value]));
        let mut bytes = Vec::new();
        let mut text = |tag: u8, text: &str| {
            bytes.push(tag);
            bytes.extend((text.len() as u64).to_le_bytes());
            bytes.extend(text.as_bytes());
        };
        text(2, "s");
        text(3, "execute");
        text(4, "u");
        text(7, "");
        text(8, "p");
        text(9, "select $1");
        let after_time = bytes;
        let mut bytes = vec![1, 1, 0, 0, 0, 0, 0, 0, 0];
        bytes.extend(after_time);
        bytes.extend([10, 2, 0, 0, 0, 0, 0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, b'v']);
        bytes.extend([13, 2, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend([16, 8, 0, 0, 0, 0, 0, 0, 0]);
        bytes.extend(b"duration");
        bytes.extend([18, 255, 255, 255, 255, 255, 255, 255, 255]);
        assert_eq!(hash_of([&event]).value(), xxh3_128(&bytes));
    }

    #[test]
    fn the_page_has_every_tag() {
        let page = include_str!("../../../docs/src/reference/event-hash.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let tags: Vec<u8> = rows.filter_map(|(tag, _)| tag.parse().ok()).collect();
        assert_eq!(tags, (1..=Field::Pipeline as u8).collect::<Vec<_>>());
    }

    #[test]
    fn order_does_not_matter_and_number_does() {
        let (one, two) = (event("select 1", None), event("select 2", None));
        assert_eq!(hash_of([&one, &two]), hash_of([&two, &one]));
        assert_ne!(hash_of([&one, &one]), hash_of([]));
        assert_ne!(hash_of([&one, &one]).value(), hash_of([&two, &two]).value());
        let mut sum = hash_of([&one]);
        sum += &hash_of([&two]);
        assert_eq!(sum, hash_of([&one, &two]));
        assert_eq!(sum.kinds().collect::<Vec<_>>(), [(Kind::Execute, 2)]);
    }

    #[test]
    fn every_field_counts() {
        let base = event("select 1", Some(vec![]));
        let mut others = vec![base.clone(); 13];
        others[0].time = Timestamp::from_micros(2);
        others[1].session = "t".into();
        others[2].user = "".into();
        others[3].database = "u".into();
        others[4].application = "a".into();
        others[5].action = Action::Simple { sql: "select 1".into() };
        others[6].outcome.duration_us = None;
        others[7].outcome.sqlstate = SqlState::new(b"23505");
        others[8].outcome.error = Some("no".into());
        others[9].source = Source::Statement;
        others[10].vxid = Some("3/4".into());
        others[11].query_id = None;
        others[12].pipeline = Some(1);
        others.push(event("select 1", None));
        others.push(event("select 1", Some(vec![Parameter::Value("".into())])));
        others.push(event("select 1", Some(vec![Parameter::Truncated("".into())])));
        others.push(base);
        for (i, one) in others.iter().enumerate() {
            for other in &others[i + 1..] {
                assert_ne!(hash_of([one]).value(), hash_of([other]).value(), "{one:?} {other:?}");
            }
        }
    }

    #[test]
    fn a_text_larger_than_the_buffer_hashes_as_one_that_is_not() {
        let mut row = Row::default();
        for len in [0, 1, BUFFER_BYTES - 1, BUFFER_BYTES, BUFFER_BYTES + 1, 5 * BUFFER_BYTES] {
            let bytes = vec![b'x'; len];
            for piece in [7, 4096, BUFFER_BYTES + 1] {
                bytes.chunks(piece).for_each(|chunk| row.put(chunk));
                assert_eq!(row.take(), xxh3_128(&bytes), "{len} by {piece}");
            }
        }
    }
}
