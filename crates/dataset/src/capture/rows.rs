//! [`Rows`]: events that wait to become a file, by column.
//!
//! An event is taken apart when it comes: what repeats, such as texts of statements and names, is then held
//! once, and what an event does not have takes no room. So a file is made in one walk through each column
//! that holds anything, and nothing is looked at twice.

use std::{fmt, sync::Arc};

use hashbrown::HashTable;
use howdah_traffic::{
    ActionRef, EventRef, Identity, Kind, ParameterRef, Parameters, Source, SqlState, Text,
    Timestamp, Wire,
};
use parquet::errors::ParquetError;

use super::record::direction_word;
use crate::{
    chunk::GroupWriter,
    columns::{copy_end_word, ref_parameter_bytes},
    table::Columnar,
    words::{Lists, Numbers, Slot, TextColumn, WordColumn, WordLists, Words, amount, readable},
};

/// Events that wait, numbered from 0 in the order in which they came.
pub(super) struct Rows {
    /// The sequence of row 0.
    first_sequence: i64,
    /// Microseconds.
    times: Vec<i64>,
    text_bytes: Vec<u32>,
    kinds: Vec<Kind>,
    sources: Vec<Source>,
    kind_words: Words,
    source_words: Words,
    identities: Identities,
    statement: TextColumn,
    portal: TextColumn,
    sql: TextColumn,
    parameters: WordLists,
    parameters_bytes: WordLists,
    parameters_truncated: Lists<i32>,
    copy_direction: WordColumn,
    function: TextColumn,
    duration_us: Numbers,
    sqlstate: WordColumn,
    error: TextColumn,
    vxid: WordColumn,
    query_id: Numbers,
    pipeline: Numbers,
    rows: Numbers,
    rows_max: Numbers,
    types: Lists<i32>,
    formats: Lists<i32>,
    result_formats: Lists<i32>,
    settings: WordLists,
    copy_bytes: Numbers,
    copy_data: WordLists,
    copy_end: WordColumn,
    arguments: WordLists,
    messages: WordColumn,
}

impl Rows {
    pub(super) fn new() -> Self {
        let words = |all: &mut dyn Iterator<Item = &'static str>| {
            let mut words = Words::default();
            for word in all {
                words.insert(word.as_bytes());
            }
            words
        };
        Self {
            first_sequence: 0,
            times: Vec::new(),
            text_bytes: Vec::new(),
            kinds: Vec::new(),
            sources: Vec::new(),
            kind_words: words(&mut Kind::ALL.iter().map(|kind| kind.as_str())),
            source_words: words(&mut Source::ALL.iter().map(|source| source.as_str())),
            identities: Identities::default(),
            statement: TextColumn::default(),
            portal: TextColumn::default(),
            sql: TextColumn::default(),
            parameters: WordLists::default(),
            parameters_bytes: WordLists::default(),
            parameters_truncated: Lists::default(),
            copy_direction: WordColumn::default(),
            function: TextColumn::default(),
            duration_us: Numbers::default(),
            sqlstate: WordColumn::default(),
            error: TextColumn::default(),
            vxid: WordColumn::default(),
            query_id: Numbers::default(),
            pipeline: Numbers::default(),
            rows: Numbers::default(),
            rows_max: Numbers::default(),
            types: Lists::default(),
            formats: Lists::default(),
            result_formats: Lists::default(),
            settings: WordLists::default(),
            copy_bytes: Numbers::default(),
            copy_data: WordLists::default(),
            copy_end: WordColumn::default(),
            arguments: WordLists::default(),
            messages: WordColumn::default(),
        }
    }

    /// Adds an event with so many bytes of text.
    pub(super) fn push(&mut self, event: &EventRef<'_>, text_bytes: usize) {
        let row = self.times.len() as u32;
        self.times.push(event.time.as_micros());
        self.text_bytes.push(u32::try_from(text_bytes).unwrap_or(u32::MAX));
        self.kinds.push(event.action.kind());
        self.sources.push(event.source);
        self.identities.push(&event.identity);
        self.set_action(row, &event.action);
        if let Some(duration_us) = event.outcome.duration_us {
            self.duration_us.set(row, amount(duration_us));
        }
        if let Some(code) = &event.outcome.sqlstate {
            self.sqlstate.set(row, SqlState::as_str(code).as_bytes());
        }
        if let Some(error) = event.outcome.error {
            self.error.set(row, error);
        }
        if let Some(vxid) = event.vxid {
            self.vxid.set(row, vxid.as_bytes());
        }
        if let Some(query_id) = event.query_id {
            self.query_id.set(row, query_id);
        }
        if let Some(pipeline) = event.pipeline {
            self.pipeline.set(row, pipeline.into());
        }
        if let Some(wire) = event.wire {
            self.set_wire(row, wire);
        }
    }

    fn set_action(&mut self, row: u32, action: &ActionRef<'_>) {
        if let Some(sql) = action.sql() {
            self.sql.set(row, sql.as_bytes());
        }
        if let Some(statement) = action.statement() {
            self.statement.set(row, statement);
        }
        if let Some(bound) = action.bound() {
            self.portal.set(row, bound.portal);
            if let Some(parameters) = bound.parameters {
                self.set_parameters(row, parameters);
            }
        }
        match action {
            ActionRef::Copy { direction, .. } => {
                self.copy_direction.set(row, direction_word(*direction).as_bytes());
            }
            ActionRef::Call { function } => self.function.set(row, function),
            _ => {}
        }
    }

    /// Readable values, exact values where any differs, and the numbers (from 1, as in `$1`) of those that the
    /// server cut.
    fn set_parameters(&mut self, row: u32, values: Parameters<'_>) {
        let WordLists { words, lists } = &mut self.parameters;
        let (mut any_inexact, mut any_truncated) = (false, false);
        let slot = |value: ParameterRef<'_>| {
            any_truncated |= matches!(value, ParameterRef::Truncated(_));
            let Some(text) = value.text() else { return 0 };
            let (slot, is_exact) = readable(words, text);
            any_inexact |= !is_exact;
            slot
        };
        lists.set(row, values.iter().map(slot));
        if any_inexact {
            let exact = values.iter().map(ParameterRef::text);
            let exact = exact.map(|text| text.filter(|text| std::str::from_utf8(text).is_err()));
            self.parameters_bytes.set(row, exact);
        }
        if any_truncated {
            let is_cut = |value: &ParameterRef<'_>| matches!(value, ParameterRef::Truncated(_));
            let cut = (1..).zip(values.iter()).filter(|(_, value)| is_cut(value));
            self.parameters_truncated.set(row, cut.map(|(number, _)| number));
        }
    }

    /// An event has it whole or not at all; that it has it, though nothing of it, is told by `rows_max`.
    /// Lists without entries are null, since most events have none.
    fn set_wire(&mut self, row: u32, wire: &Wire) {
        if let Some(rows) = wire.rows {
            self.rows.set(row, amount(rows));
        }
        self.rows_max.set(row, wire.rows_max.into());
        if !wire.types.is_empty() {
            self.types.set(row, wire.types.iter().map(|oid| oid.cast_signed()));
        }
        if !wire.formats.is_empty() {
            self.formats.set(row, wire.formats.iter().map(|code| i32::from(*code)));
        }
        if !wire.result_formats.is_empty() {
            self.result_formats.set(row, wire.result_formats.iter().map(|code| i32::from(*code)));
        }
        if !wire.settings.is_empty() {
            let each = wire.settings.iter().flat_map(|(name, value)| [name, value]);
            self.settings.set(row, each.map(|text| Some(text.as_bytes())));
        }
        if let Some(copy) = &wire.copy_in {
            self.copy_bytes.set(row, amount(copy.bytes));
            self.copy_data.set(row, copy.data.iter().map(bytes_of));
            self.copy_end.set(row, copy_end_word(copy).as_bytes());
        }
        if let Some(arguments) = &wire.arguments {
            self.arguments.set(row, arguments.iter().map(bytes_of));
        }
        if let Some(messages) = &wire.messages {
            self.messages.set(row, messages.as_bytes());
        }
    }

    fn numbers(&self, column: &Numbers, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
        if column.is_empty() {
            to.nothing()
        } else if column.is_whole(self.times.len()) {
            to.all_numbers(rows.iter().map(|row| column.number(*row)))
        } else {
            to.numbers(rows.iter().map(|row| column.at(*row)))
        }
    }

    /// The rows in the order of their time; those of the same time as they came.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let mut rows: Vec<u32> = (0..self.times.len() as u32).collect();
        rows.sort_by_key(|row| self.times.get(*row as usize));
        rows
    }

    pub(super) fn time(&self, row: u32) -> Timestamp {
        Timestamp::from_micros(self.times[row as usize])
    }

    /// The kind of each row.
    pub(super) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(super) fn text_bytes(&self, row: u32) -> usize {
        self.text_bytes[row as usize] as usize
    }

    /// Forgets all rows.
    pub(super) fn clear(&mut self) {
        self.first_sequence += i64::try_from(self.times.len()).unwrap_or(0);
        self.times.clear();
        self.text_bytes.clear();
        self.kinds.clear();
        self.sources.clear();
        self.identities.clear();
        let texts = [
            &mut self.statement,
            &mut self.portal,
            &mut self.sql,
            &mut self.function,
            &mut self.error,
        ];
        texts.into_iter().for_each(TextColumn::clear);
        let lists = [
            &mut self.parameters,
            &mut self.parameters_bytes,
            &mut self.settings,
            &mut self.copy_data,
            &mut self.arguments,
        ];
        lists.into_iter().for_each(WordLists::clear);
        let numbers = [
            &mut self.parameters_truncated,
            &mut self.types,
            &mut self.formats,
            &mut self.result_formats,
        ];
        numbers.into_iter().for_each(Lists::clear);
        let words = [
            &mut self.copy_direction,
            &mut self.sqlstate,
            &mut self.vxid,
            &mut self.copy_end,
            &mut self.messages,
        ];
        words.into_iter().for_each(WordColumn::clear);
        let numbers = [
            &mut self.duration_us,
            &mut self.query_id,
            &mut self.pipeline,
            &mut self.rows,
            &mut self.rows_max,
            &mut self.copy_bytes,
        ];
        numbers.into_iter().for_each(Numbers::clear);
    }
}

fn bytes_of(text: &Option<Text>) -> Option<&[u8]> {
    text.as_ref().map(Text::as_bytes)
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("rows", &self.times.len()).finish_non_exhaustive()
    }
}

impl Columnar for Rows {
    fn encode(&self, rows: &[u32], to: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        let of = |row: &u32| *row as usize;
        to.all_numbers(rows.iter().map(|row| self.first_sequence + i64::from(*row)))?;
        to.all_numbers(rows.iter().map(|row| self.times[of(row)]))?;
        self.identities.encode(0, rows, to)?;
        to.words(&self.kind_words, rows.iter().map(|row| self.kinds[of(row)] as Slot + 1))?;
        for name in 1..4 {
            self.identities.encode(name, rows, to)?;
        }
        texts(&self.statement, rows, to)?;
        texts(&self.portal, rows, to)?;
        texts(&self.sql, rows, to)?;
        word_lists(&self.parameters, rows, to)?;
        word_lists(&self.parameters_bytes, rows, to)?;
        number_lists(&self.parameters_truncated, rows, to)?;
        words(&self.copy_direction, rows, to)?;
        texts(&self.function, rows, to)?;
        self.numbers(&self.duration_us, rows, to)?;
        words(&self.sqlstate, rows, to)?;
        texts(&self.error, rows, to)?;
        to.words(&self.source_words, rows.iter().map(|row| self.sources[of(row)] as Slot + 1))?;
        words(&self.vxid, rows, to)?;
        for column in [&self.query_id, &self.pipeline, &self.rows, &self.rows_max] {
            self.numbers(column, rows, to)?;
        }
        for column in [&self.types, &self.formats, &self.result_formats] {
            number_lists(column, rows, to)?;
        }
        word_lists(&self.settings, rows, to)?;
        self.numbers(&self.copy_bytes, rows, to)?;
        word_lists(&self.copy_data, rows, to)?;
        words(&self.copy_end, rows, to)?;
        word_lists(&self.arguments, rows, to)?;
        words(&self.messages, rows, to)
    }
}

type Encoded = Result<(), ParquetError>;

fn words(column: &WordColumn, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
    match column.is_empty() {
        true => to.nothing(),
        false => to.words(&column.words, rows.iter().map(|row| column.at(*row))),
    }
}

fn texts(column: &TextColumn, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
    words(&column.readable, rows, to)?;
    words(&column.exact, rows, to)
}

fn word_lists(column: &WordLists, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
    let WordLists { words, lists } = column;
    match lists.is_empty() {
        true => to.nothing(),
        false => to.word_lists(words, rows.iter().map(|row| lists.at(*row))),
    }
}

fn number_lists(column: &Lists<i32>, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
    match column.is_empty() {
        true => to.nothing(),
        false => to.number_lists(rows.iter().map(|row| column.at(*row))),
    }
}

/// Session, user, database and application of the rows: all four are found at once, by where they lie.
#[derive(Default)]
struct Identities {
    /// By row, an index into `known`.
    rows: Vec<u32>,
    known: Vec<Known>,
    table: HashTable<u32>,
    words: [Words; 4],
}

struct Known {
    /// Held, so that their addresses stand for them.
    names: [Arc<str>; 4],
    slots: [Slot; 4],
}

impl Identities {
    fn push(&mut self, identity: &Identity<'_>) {
        let names =
            [identity.session(), identity.user(), identity.database(), identity.application()];
        // The rows of a session often follow one another.
        let last = self.rows.last().copied();
        let row = match last.filter(|index| self.is(*index, names)) {
            Some(index) => index,
            None => self.index_of(names),
        };
        self.rows.push(row);
    }

    fn index_of(&mut self, names: [&Arc<str>; 4]) -> u32 {
        let hash = hash_of(names);
        if let Some(index) = self.table.find(hash, |index| self.is(*index, names)) {
            return *index;
        }
        let index = self.known.len() as u32;
        let mut slots = [0; 4];
        for ((slot, words), (at, name)) in
            slots.iter_mut().zip(&mut self.words).zip(names.into_iter().enumerate())
        {
            // The empty text stands for "not known", but a session has a name.
            if at == 0 || !name.is_empty() {
                *slot = words.slot(name.as_bytes());
            }
        }
        self.known.push(Known { names: names.map(Arc::clone), slots });
        let known = &self.known;
        let rehash = |index: &u32| hash_of(known[*index as usize].names.each_ref());
        self.table.insert_unique(hash, index, rehash);
        index
    }

    fn is(&self, index: u32, names: [&Arc<str>; 4]) -> bool {
        let known = &self.known[index as usize].names;
        known.iter().zip(names).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    fn encode(&self, name: usize, rows: &[u32], to: &mut GroupWriter<'_>) -> Encoded {
        let slot = |row: &u32| self.known[self.rows[*row as usize] as usize].slots[name];
        to.words(&self.words[name], rows.iter().map(slot))
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.known.clear();
        self.table.clear();
        self.words.iter_mut().for_each(Words::clear);
    }
}

/// Of addresses, which nobody chooses.
fn hash_of(names: [&Arc<str>; 4]) -> u64 {
    let hash = names.iter().fold(0, |hash: u64, name| {
        (hash.rotate_left(5) ^ name.as_ptr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    // Addresses are multiples of 16, and so are products of them.
    hash ^ hash >> 32
}

/// Bytes of all texts of an event.
pub(super) fn text_bytes(event: &EventRef<'_>) -> usize {
    let EventRef { identity, action, outcome, .. } = event;
    let names = [identity.session(), identity.user(), identity.database(), identity.application()];
    let bound = action.bound();
    let function = match action {
        ActionRef::Call { function } => Some(*function),
        _ => None,
    };
    let sql = action.sql().map(|sql| sql.as_bytes());
    let portal = bound.map(|bound| bound.portal);
    let texts = [action.statement(), portal, sql, function, outcome.error];
    names.iter().map(|name| name.len()).sum::<usize>()
        + texts.iter().map(|text| text.map_or(0, <[u8]>::len)).sum::<usize>()
        + event.vxid.map_or(0, str::len)
        + bound.and_then(|bound| bound.parameters).map_or(0, ref_parameter_bytes)
        + event.wire.map_or(0, Wire::bytes)
}
