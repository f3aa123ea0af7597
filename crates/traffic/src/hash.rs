//! An order-independent hash of a set of events: [`EventHash`].
//!
//! The hash shows whether two sets of events are equal: those of a log and the capture created from
//! it, of two readers of one log, or of a capture and its parts. It is neither a file checksum nor
//! cryptographic.
//!
//! # Cost
//!
//! One pass of XXH3 over each text and one multiplication per field, without copying the texts.
//! Hashes of data that repeats from event to event (a session's names), or that is looked up anyway
//! (statements), are computed once: see [`EventRef`].

use std::{fmt, ops::AddAssign};

use xxhash_rust::{const_xxh3, xxh3::xxh3_64};

use crate::{
    ActionRef, CopyDirection, Event, EventRef, Kind, ParameterRef, ParametersRef, Source, Text,
    WireDetail,
    hash_field::{EMPTY, FieldSum, HashField},
};

/// A hash over every field of every event added, independent of their order, with the number of
/// events of each kind.
///
/// The value is the sum, modulo 2¹²⁸, of one hash per event. The hash of an event is computed from
/// its fields:
///
/// ```text
/// event  = XXH3-128 (the sum of its fields, modulo 2¹²⁸, as 16 bytes, little-endian)
/// field  = (word + 1) · multiplier        multiplier = XXH3-64 (the tag, one byte) | 1
/// word   = number: the number, modulo 2⁶⁴
///        | text:   XXH3-64 (the bytes)
///        | list:   XXH3-64 (its entries, 8 bytes each, little-endian)
///          entry:  0 (NULL) | XXH3-64 (a value) | the complement of that (a value that was cut)
///                  | the number (in a list of numbers)
/// ```
///
/// All XXH3 hashes use seed 0. The tags are those of [`HashField`].
///
/// A sum can be computed in parts: hash the halves of a log separately and add the results. Equal
/// events count as often as they occur; an exclusive or would not detect repetitions.
///
/// ```
/// use howdah_traffic::EventHash;
/// assert_eq!(EventHash::default().to_string(), "00000000000000000000000000000000");
/// ```
#[derive(Clone, Default)]
pub struct EventHash {
    sum: u128,
    kinds: [u64; Kind::ALL.len()],
    /// Buffer for the entries of a list, for reuse.
    entries: Vec<u8>,
}

impl EventHash {
    /// Adds an event that owns its texts.
    pub fn add(&mut self, event: &Event) {
        self.add_ref(&EventRef::from_event(event));
    }

    /// Adds a borrowed event.
    pub fn add_ref(&mut self, event: &EventRef<'_>) {
        let kind = event.action.kind();
        let mut fields = event.identity.field_sum();
        fields.number(HashField::Time, event.time.as_micros().cast_unsigned());
        fields.number(HashField::Kind, KINDS[kind as usize]);
        fields.number(HashField::Source, SOURCES[event.source as usize]);
        self.add_action(&event.action, &mut fields);
        if let Some(duration_us) = event.outcome.duration_us {
            fields.number(HashField::Duration, duration_us);
        }
        if let Some(code) = event.outcome.sqlstate {
            fields.text(HashField::SqlState, code.as_str().as_bytes());
        }
        if let Some(error) = event.outcome.error {
            fields.text(HashField::Error, error);
        }
        if let Some(vxid) = event.vxid {
            fields.text(HashField::Vxid, vxid.as_bytes());
        }
        if let Some(query_id) = event.query_id {
            fields.number(HashField::QueryId, query_id.cast_unsigned());
        }
        if let Some(pipeline) = event.pipeline {
            fields.number(HashField::Pipeline, u64::from(pipeline));
        }
        if let Some(wire) = event.wire {
            self.add_wire(wire, &mut fields);
        }
        self.sum = self.sum.wrapping_add(fields.hash());
        self.kinds[kind as usize] += 1;
    }

    fn add_action(&mut self, action: &ActionRef<'_>, fields: &mut FieldSum) {
        if let Some(sql) = action.sql() {
            fields.number(HashField::Sql, sql.hash());
        }
        if let Some(statement) = action.statement() {
            fields.text(HashField::Statement, statement);
        }
        match action {
            ActionRef::Copy { direction: CopyDirection::In, .. } => {
                fields.text(HashField::CopyDirection, b"in");
            }
            ActionRef::Copy { direction: CopyDirection::Out, .. } => {
                fields.text(HashField::CopyDirection, b"out");
            }
            ActionRef::Call { function } => fields.text(HashField::Function, function),
            ActionRef::Bind(bound) | ActionRef::Execute(bound) | ActionRef::Fetch(bound) => {
                fields.text(HashField::Portal, bound.portal);
                if let Some(parameters) = bound.parameters {
                    fields.number(HashField::Parameters, self.list_word(parameters));
                }
            }
            _ => {}
        }
    }

    fn add_wire(&mut self, wire: &WireDetail, fields: &mut FieldSum) {
        if let Some(rows) = wire.rows {
            fields.number(HashField::Rows, rows);
        }
        let mut numbers = |field, words: &mut dyn Iterator<Item = u64>| {
            self.entries.clear();
            words.for_each(|word| self.entries.extend_from_slice(&word.to_le_bytes()));
            if !self.entries.is_empty() {
                fields.number(field, xxh3_64(&self.entries));
            }
        };
        let text = |bytes: &[u8]| xxh3_64(bytes);
        let word = |data: &Option<Text>| data.as_ref().map_or(0, |data| text(data.as_bytes()));
        // Most events have none of these, so check that first.
        if !wire.types.is_empty() {
            numbers(HashField::Types, &mut wire.types.iter().map(|oid| u64::from(*oid)));
        }
        if !wire.formats.is_empty() {
            numbers(HashField::Formats, &mut wire.formats.iter().map(|code| u64::from(*code)));
        }
        if !wire.result_formats.is_empty() {
            let mut codes = wire.result_formats.iter().map(|code| u64::from(*code));
            numbers(HashField::ResultFormats, &mut codes);
        }
        if !wire.settings.is_empty() {
            let settings = wire.settings.iter().flat_map(|(name, value)| [name, value]);
            numbers(HashField::Settings, &mut settings.map(|one| text(one.as_bytes())));
        }
        if let Some(copy) = &wire.copy_in {
            numbers(HashField::CopyData, &mut copy.data.iter().map(word));
        }
        if let Some(first_row) = wire.result.as_ref().and_then(|it| it.first_row.as_ref()) {
            numbers(HashField::FirstRow, &mut first_row.iter().map(word));
        }
        if let Some(arguments) = &wire.arguments {
            numbers(HashField::Arguments, &mut arguments.iter().map(word));
            if arguments.is_empty() {
                fields.number(HashField::Arguments, EMPTY);
            }
        }
        if let Some(result) = &wire.result {
            fields.number(HashField::ResultChecksum, result.checksum);
        }
        if let Some(messages) = &wire.messages {
            fields.text(HashField::Messages, messages.as_bytes());
        }
        if wire.rows_max != 0 {
            fields.number(HashField::RowsMax, u64::from(wire.rows_max));
        }
        if let Some(copy) = &wire.copy_in {
            fields.number(HashField::CopyBytes, copy.bytes);
            if copy.failed {
                fields.number(HashField::CopyFailed, 1);
            }
        }
    }

    /// Returns the word of a list of parameters.
    fn list_word(&mut self, parameters: ParametersRef<'_>) -> u64 {
        self.entries.clear();
        let mut add = |value| {
            let word = match value {
                ParameterRef::Null => 0,
                ParameterRef::Value(text) => xxh3_64(text),
                ParameterRef::Truncated(text) => !xxh3_64(text),
            };
            self.entries.extend_from_slice(&word.to_le_bytes());
        };
        match parameters {
            ParametersRef::Flat { bytes, spans: slots } => {
                slots.iter().for_each(|slot| add(slot.resolve(bytes)));
            }
            ParametersRef::List(_) => parameters.iter().for_each(add),
        }
        xxh3_64(&self.entries)
    }

    /// Returns the hash of the events added so far.
    pub fn value(&self) -> u128 {
        self.sum
    }

    /// Returns the number of events added so far.
    pub fn events(&self) -> u64 {
        self.kinds.iter().sum()
    }

    /// Returns the number of events of each kind that occurred, in the order of [`Kind::ALL`].
    pub fn kinds(&self) -> impl Iterator<Item = (Kind, u64)> + '_ {
        Kind::ALL.iter().map(|kind| (*kind, self.kinds[*kind as usize])).filter(|(_, n)| *n > 0)
    }
}

/// Adds the events of another hash.
impl AddAssign<&Self> for EventHash {
    fn add_assign(&mut self, other: &Self) {
        self.sum = self.sum.wrapping_add(other.sum);
        for (mine, theirs) in self.kinds.iter_mut().zip(other.kinds) {
            *mine += theirs;
        }
    }
}

/// Compares the hashes and the numbers of events of each kind.
impl PartialEq for EventHash {
    fn eq(&self, other: &Self) -> bool {
        (self.sum, self.kinds) == (other.sum, other.kinds)
    }
}

impl Eq for EventHash {}

/// Writes thirty-two hexadecimal digits.
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

/// The hash words of the kinds, in the order of [`Kind::ALL`].
const KINDS: [u64; Kind::ALL.len()] = {
    let mut words = [0; Kind::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = const_xxh3::xxh3_64(Kind::ALL[at].as_str().as_bytes());
        at += 1;
    }
    words
};

/// The hash words of the sources, in the order of [`Source::ALL`].
const SOURCES: [u64; Source::ALL.len()] = {
    let mut words = [0; Source::ALL.len()];
    let mut at = 0;
    while at < words.len() {
        words[at] = const_xxh3::xxh3_64(Source::ALL[at].as_str().as_bytes());
        at += 1;
    }
    words
};

#[cfg(test)]
mod tests {
    use xxhash_rust::xxh3::xxh3_128;

    use super::*;
    use crate::{Action, Bound, CapturedOutcome, Parameter, SqlState, Timestamp};

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
            outcome: CapturedOutcome { duration_us: Some(2), ..CapturedOutcome::default() },
            source: Source::Duration,
            vxid: None,
            query_id: Some(-1),
            pipeline: None,
            wire: None,
        }
    }

    fn hash_all<'a>(events: impl IntoIterator<Item = &'a Event>) -> EventHash {
        let mut hash = EventHash::default();
        events.into_iter().for_each(|event| hash.add(event));
        hash
    }

    /// The documented algorithm, computed by hand.
    #[test]
    fn hash_matches_documentation() {
        let values =
            vec![Parameter::Null, Parameter::Value("v".into()), Parameter::Truncated("w".into())];
        let event = event("select $1", Some(values));
        let text = |text: &str| xxh3_64(text.as_bytes());
        let list: Vec<u8> =
            [0, text("v"), !text("w")].into_iter().flat_map(u64::to_le_bytes).collect();
        let fields = [
            (1, 1),
            (2, text("s")),
            (3, text("execute")),
            (4, text("u")),
            (7, text("")),
            (8, text("p")),
            (9, text("select $1")),
            (10, xxh3_64(&list)),
            (13, 2),
            (16, text("duration")),
            (18, u64::MAX),
        ];
        let sum = fields.into_iter().fold(0_u128, |sum, (tag, word)| {
            let multiplier = xxh3_64(&[tag]) | 1;
            sum.wrapping_add((u128::from(word) + 1) * u128::from(multiplier))
        });
        assert_eq!(hash_all([&event]).value(), xxh3_128(&sum.to_le_bytes()));
    }

    #[test]
    fn documentation_lists_every_tag() {
        let page = include_str!("../../../docs/src/reference/event-hash.md");
        let rows = page.lines().filter_map(|line| line.strip_prefix("| ")?.split_once(" |"));
        let tags: Vec<u8> = rows.filter_map(|(tag, _)| tag.parse().ok()).collect();
        assert_eq!(tags, (1..=HashField::FirstRow as u8).collect::<Vec<_>>());
    }

    #[test]
    fn hash_ignores_order_but_not_multiplicity() {
        let (one, two) = (event("select 1", None), event("select 2", None));
        assert_eq!(hash_all([&one, &two]), hash_all([&two, &one]));
        assert_ne!(hash_all([&one, &one]), hash_all([]));
        assert_ne!(hash_all([&one, &one]).value(), hash_all([&two, &two]).value());
        let mut sum = hash_all([&one]);
        sum += &hash_all([&two]);
        assert_eq!(sum, hash_all([&one, &two]));
        assert_eq!(sum.kinds().collect::<Vec<_>>(), [(Kind::Execute, 2)]);
    }

    #[test]
    fn every_field_affects_hash() {
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
                assert_ne!(hash_all([one]).value(), hash_all([other]).value(), "{one:?} {other:?}");
            }
        }
    }
}
