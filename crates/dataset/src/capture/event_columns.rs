//! [`EventColumns`]: events buffered for a file, by column.
//!
//! An event is split into columns when it arrives. Repeated values, such as statement texts and
//! names, are stored once, and columns without values take no space. A file can then be written in
//! one pass over each column that has values.

use std::{fmt, sync::Arc};

use hashbrown::HashTable;
use howdah_traffic::{
    ActionRef, EventIdentity, EventRef, Kind, ParameterRef, ParametersRef, Source, SqlState, Text,
    Timestamp, WireDetail,
};
use parquet::errors::ParquetError;

use super::event_row::direction_code;
use crate::{
    chunk::GroupWriter,
    columns::{copy_end_code, ref_parameter_bytes},
    dictionary::{
        DictionaryColumn, DictionaryIndex, DictionaryListColumn, Int64Column, ListColumn,
        StringDictionary, TextColumn, insert_readable, saturate_to_i64,
    },
    table::Columnar,
};

/// Buffered events, numbered from 0 in order of arrival.
pub(super) struct EventColumns {
    /// Sequence number of row 0.
    first_sequence: i64,
    /// Time of each row, in microseconds since the Unix epoch.
    times: Vec<i64>,
    text_bytes: Vec<u32>,
    kinds: Vec<Kind>,
    sources: Vec<Source>,
    kind_dictionary: StringDictionary,
    source_dictionary: StringDictionary,
    identities: SessionIdentities,
    statement: TextColumn,
    portal: TextColumn,
    sql: TextColumn,
    parameters: DictionaryListColumn,
    parameters_bytes: DictionaryListColumn,
    parameters_truncated: ListColumn<i32>,
    copy_direction: DictionaryColumn,
    function: TextColumn,
    duration_us: Int64Column,
    sqlstate: DictionaryColumn,
    error: TextColumn,
    vxid: DictionaryColumn,
    query_id: Int64Column,
    pipeline: Int64Column,
    rows: Int64Column,
    rows_max: Int64Column,
    types: ListColumn<i32>,
    formats: ListColumn<i32>,
    result_formats: ListColumn<i32>,
    settings: DictionaryListColumn,
    copy: CopyColumns,
    arguments: DictionaryListColumn,
    messages: DictionaryColumn,
    result: ReturnedColumns,
}

/// The rows that a client sent for COPY.
#[derive(Default)]
struct CopyColumns {
    bytes: Int64Column,
    data: DictionaryListColumn,
    end: DictionaryColumn,
}

/// The rows that a client received.
#[derive(Default)]
struct ReturnedColumns {
    checksum: Int64Column,
    first_row: DictionaryListColumn,
}

impl EventColumns {
    pub(super) fn new() -> Self {
        let words = |all: &mut dyn Iterator<Item = &'static str>| {
            let mut words = StringDictionary::default();
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
            kind_dictionary: words(&mut Kind::ALL.iter().map(|kind| kind.as_str())),
            source_dictionary: words(&mut Source::ALL.iter().map(|source| source.as_str())),
            identities: SessionIdentities::default(),
            statement: TextColumn::default(),
            portal: TextColumn::default(),
            sql: TextColumn::default(),
            parameters: DictionaryListColumn::default(),
            parameters_bytes: DictionaryListColumn::default(),
            parameters_truncated: ListColumn::default(),
            copy_direction: DictionaryColumn::default(),
            function: TextColumn::default(),
            duration_us: Int64Column::default(),
            sqlstate: DictionaryColumn::default(),
            error: TextColumn::default(),
            vxid: DictionaryColumn::default(),
            query_id: Int64Column::default(),
            pipeline: Int64Column::default(),
            rows: Int64Column::default(),
            rows_max: Int64Column::default(),
            types: ListColumn::default(),
            formats: ListColumn::default(),
            result_formats: ListColumn::default(),
            settings: DictionaryListColumn::default(),
            copy: CopyColumns::default(),
            arguments: DictionaryListColumn::default(),
            messages: DictionaryColumn::default(),
            result: ReturnedColumns::default(),
        }
    }

    /// Adds an event with this many bytes of text.
    pub(super) fn push(&mut self, event: &EventRef<'_>, text_bytes: usize) {
        let row = self.times.len() as u32;
        self.times.push(event.time.as_micros());
        self.text_bytes.push(u32::try_from(text_bytes).unwrap_or(u32::MAX));
        self.kinds.push(event.action.kind());
        self.sources.push(event.source);
        self.identities.push(&event.identity);
        self.set_action(row, &event.action);
        if let Some(duration_us) = event.outcome.duration_us {
            self.duration_us.set(row, saturate_to_i64(duration_us));
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
                self.copy_direction.set(row, direction_code(*direction).as_bytes());
            }
            ActionRef::Call { function } => self.function.set(row, function),
            _ => {}
        }
    }

    /// Stores readable values, exact values where any differs, and the numbers (from 1, as in `$1`)
    /// of values that the server truncated.
    fn set_parameters(&mut self, row: u32, values: ParametersRef<'_>) {
        let DictionaryListColumn { dictionary: words, lists } = &mut self.parameters;
        let (mut any_inexact, mut any_truncated) = (false, false);
        let slot = |value: ParameterRef<'_>| {
            any_truncated |= matches!(value, ParameterRef::Truncated(_));
            let Some(text) = value.text() else { return 0 };
            let (slot, is_exact) = insert_readable(words, text);
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

    /// Stores the wire details. `rows_max` is always set, because null means that an event has no
    /// wire details. Empty lists of types, formats and settings are null.
    fn set_wire(&mut self, row: u32, wire: &WireDetail) {
        if let Some(rows) = wire.rows {
            self.rows.set(row, saturate_to_i64(rows));
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
            self.copy.bytes.set(row, saturate_to_i64(copy.bytes));
            self.copy.data.set(row, copy.data.iter().map(optional_bytes));
            self.copy.end.set(row, copy_end_code(copy).as_bytes());
        }
        if let Some(arguments) = &wire.arguments {
            self.arguments.set(row, arguments.iter().map(optional_bytes));
        }
        if let Some(messages) = &wire.messages {
            self.messages.set(row, messages.as_bytes());
        }
        if let Some(result) = &wire.result {
            self.result.checksum.set(row, result.checksum.cast_signed());
            if let Some(first_row) = &result.first_row {
                self.result.first_row.set(row, first_row.iter().map(optional_bytes));
            }
        }
    }

    fn encode_numbers(
        &self,
        column: &Int64Column,
        rows: &[u32],
        to: &mut GroupWriter<'_>,
    ) -> EncodeResult {
        if column.is_empty() {
            to.nulls()
        } else if column.has_no_nulls(self.times.len()) {
            to.all_numbers(rows.iter().map(|row| column.number(*row)))
        } else {
            to.numbers(rows.iter().map(|row| column.at(*row)))
        }
    }

    /// Returns the rows ordered by time; rows with the same time keep their order.
    pub(super) fn sorted(&self) -> Vec<u32> {
        let first = self.times.iter().min().copied().unwrap_or(0);
        let last = self.times.iter().max().copied().unwrap_or(0);
        let rows = 0..self.times.len() as u32;
        let row_bits = u32::BITS - rows.end.leading_zeros();
        // Sorting numbers that contain both time and row takes a third of the time of sorting rows
        // by their times. A full file may then span four years.
        if last.checked_sub(first).is_some_and(|span| span.leading_zeros() >= row_bits) {
            let time = |row: u32| (self.times[row as usize] - first).cast_unsigned();
            let mut keys: Vec<u64> =
                rows.map(|row| time(row) << row_bits | u64::from(row)).collect();
            keys.sort_unstable();
            let mask = (1 << row_bits) - 1;
            return keys.into_iter().map(|key| (key & mask) as u32).collect();
        }
        let mut rows: Vec<u32> = rows.collect();
        rows.sort_by_key(|row| self.times.get(*row as usize));
        rows
    }

    pub(super) fn time(&self, row: u32) -> Timestamp {
        Timestamp::from_micros(self.times[row as usize])
    }

    /// Returns the kind of each row.
    pub(super) fn kinds(&self) -> &[Kind] {
        &self.kinds
    }

    pub(super) fn text_bytes(&self, row: u32) -> usize {
        self.text_bytes[row as usize] as usize
    }

    /// Removes all rows. Sequence numbers of later rows continue.
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
            &mut self.copy.data,
            &mut self.arguments,
            &mut self.result.first_row,
        ];
        lists.into_iter().for_each(DictionaryListColumn::clear);
        let numbers = [
            &mut self.parameters_truncated,
            &mut self.types,
            &mut self.formats,
            &mut self.result_formats,
        ];
        numbers.into_iter().for_each(ListColumn::clear);
        let words = [
            &mut self.copy_direction,
            &mut self.sqlstate,
            &mut self.vxid,
            &mut self.copy.end,
            &mut self.messages,
        ];
        words.into_iter().for_each(DictionaryColumn::clear);
        let numbers = [
            &mut self.duration_us,
            &mut self.query_id,
            &mut self.pipeline,
            &mut self.rows,
            &mut self.rows_max,
            &mut self.copy.bytes,
            &mut self.result.checksum,
        ];
        numbers.into_iter().for_each(Int64Column::clear);
    }
}

fn optional_bytes(text: &Option<Text>) -> Option<&[u8]> {
    text.as_ref().map(Text::as_bytes)
}

impl fmt::Debug for EventColumns {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rows").field("rows", &self.times.len()).finish_non_exhaustive()
    }
}

impl Columnar for EventColumns {
    fn encode(&self, rows: &[u32], to: &mut GroupWriter<'_>) -> Result<(), ParquetError> {
        let of = |row: &u32| *row as usize;
        to.all_numbers(rows.iter().map(|row| self.first_sequence + i64::from(*row)))?;
        to.all_numbers(rows.iter().map(|row| self.times[of(row)]))?;
        self.identities.encode(0, rows, to)?;
        to.strings(
            &self.kind_dictionary,
            rows.iter().map(|row| self.kinds[of(row)] as DictionaryIndex + 1),
        )?;
        for name in 1..4 {
            self.identities.encode(name, rows, to)?;
        }
        encode_texts(&self.statement, rows, to)?;
        encode_texts(&self.portal, rows, to)?;
        encode_texts(&self.sql, rows, to)?;
        encode_string_lists(&self.parameters, rows, to)?;
        encode_string_lists(&self.parameters_bytes, rows, to)?;
        encode_number_lists(&self.parameters_truncated, rows, to)?;
        encode_strings(&self.copy_direction, rows, to)?;
        encode_texts(&self.function, rows, to)?;
        self.encode_numbers(&self.duration_us, rows, to)?;
        encode_strings(&self.sqlstate, rows, to)?;
        encode_texts(&self.error, rows, to)?;
        to.strings(
            &self.source_dictionary,
            rows.iter().map(|row| self.sources[of(row)] as DictionaryIndex + 1),
        )?;
        encode_strings(&self.vxid, rows, to)?;
        for column in [&self.query_id, &self.pipeline, &self.rows, &self.rows_max] {
            self.encode_numbers(column, rows, to)?;
        }
        for column in [&self.types, &self.formats, &self.result_formats] {
            encode_number_lists(column, rows, to)?;
        }
        encode_string_lists(&self.settings, rows, to)?;
        self.encode_numbers(&self.copy.bytes, rows, to)?;
        encode_string_lists(&self.copy.data, rows, to)?;
        encode_strings(&self.copy.end, rows, to)?;
        encode_string_lists(&self.arguments, rows, to)?;
        encode_strings(&self.messages, rows, to)?;
        self.encode_numbers(&self.result.checksum, rows, to)?;
        encode_string_lists(&self.result.first_row, rows, to)
    }
}

type EncodeResult = Result<(), ParquetError>;

fn encode_strings(
    column: &DictionaryColumn,
    rows: &[u32],
    to: &mut GroupWriter<'_>,
) -> EncodeResult {
    if column.is_empty() {
        to.nulls()
    } else {
        to.strings(&column.dictionary, rows.iter().map(|row| column.at(*row)))
    }
}

fn encode_texts(column: &TextColumn, rows: &[u32], to: &mut GroupWriter<'_>) -> EncodeResult {
    encode_strings(&column.readable, rows, to)?;
    encode_strings(&column.exact, rows, to)
}

fn encode_string_lists(
    column: &DictionaryListColumn,
    rows: &[u32],
    to: &mut GroupWriter<'_>,
) -> EncodeResult {
    let DictionaryListColumn { dictionary: words, lists } = column;
    if lists.is_empty() {
        to.nulls()
    } else {
        to.string_lists(words, rows.iter().map(|row| lists.at(*row)))
    }
}

fn encode_number_lists(
    column: &ListColumn<i32>,
    rows: &[u32],
    to: &mut GroupWriter<'_>,
) -> EncodeResult {
    if column.is_empty() {
        to.nulls()
    } else {
        to.number_lists(rows.iter().map(|row| column.at(*row)))
    }
}

/// The session, user, database and application of each row. All four are looked up at once, by
/// their addresses.
#[derive(Default)]
struct SessionIdentities {
    /// For each row, an index into `entries`.
    rows: Vec<u32>,
    entries: Vec<IdentityEntry>,
    table: HashTable<u32>,
    dictionaries: [StringDictionary; 4],
}

struct IdentityEntry {
    /// The names. Holding them keeps their addresses unique.
    names: [Arc<str>; 4],
    indexes: [DictionaryIndex; 4],
}

impl SessionIdentities {
    fn push(&mut self, identity: &EventIdentity<'_>) {
        let names =
            [identity.session(), identity.user(), identity.database(), identity.application()];
        // Consecutive rows often belong to the same session.
        let last = self.rows.last().copied();
        let row = match last.filter(|index| self.matches(*index, names)) {
            Some(index) => index,
            None => self.find_or_insert(names),
        };
        self.rows.push(row);
    }

    fn find_or_insert(&mut self, names: [&Arc<str>; 4]) -> u32 {
        let hash = hash_addresses(names);
        if let Some(index) = self.table.find(hash, |index| self.matches(*index, names)) {
            return *index;
        }
        let index = self.entries.len() as u32;
        let mut slots = [0; 4];
        for ((slot, words), (at, name)) in
            slots.iter_mut().zip(&mut self.dictionaries).zip(names.into_iter().enumerate())
        {
            // The empty text stands for an unknown name, but a session always has one.
            if at == 0 || !name.is_empty() {
                *slot = words.get_or_insert(name.as_bytes());
            }
        }
        self.entries.push(IdentityEntry { names: names.map(Arc::clone), indexes: slots });
        let known = &self.entries;
        let rehash = |index: &u32| hash_addresses(known[*index as usize].names.each_ref());
        self.table.insert_unique(hash, index, rehash);
        index
    }

    fn matches(&self, index: u32, names: [&Arc<str>; 4]) -> bool {
        let known = &self.entries[index as usize].names;
        known.iter().zip(names).all(|(a, b)| Arc::ptr_eq(a, b))
    }

    fn encode(&self, name: usize, rows: &[u32], to: &mut GroupWriter<'_>) -> EncodeResult {
        let slot = |row: &u32| self.entries[self.rows[*row as usize] as usize].indexes[name];
        to.strings(&self.dictionaries[name], rows.iter().map(slot))
    }

    fn clear(&mut self) {
        self.rows.clear();
        self.entries.clear();
        self.table.clear();
        self.dictionaries.iter_mut().for_each(StringDictionary::clear);
    }
}

/// Hashes the addresses of the names. Clients cannot choose them, so a simple hash is safe.
fn hash_addresses(names: [&Arc<str>; 4]) -> u64 {
    let hash = names.iter().fold(0, |hash: u64, name| {
        (hash.rotate_left(5) ^ name.as_ptr() as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15)
    });
    // Addresses are multiples of 16, and so are their products.
    hash ^ hash >> 32
}

/// Returns the size of an event's texts and wire details in bytes, with a fixed overhead for each
/// parameter.
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
        + event.wire.map_or(0, WireDetail::bytes)
}
