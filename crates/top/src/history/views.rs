//! Encodes samples of statistics views.
//!
//! A file names the columns of each view, so that other versions can read it: unknown columns are
//! ignored, and missing ones are unavailable.

use std::{collections::HashMap, sync::Arc};

use howdah_codec::{ByteReader, ByteWriter as _};
use howdah_collect::{ColumnKind, RateView, StatsView, VIEWS, ViewCell, ViewSample, rates};

use super::{
    delta::{decode_row_index, encode_row_index},
    error::CorruptFrame,
    texts::{TextReader, TextWriter},
};

/// Maximum number of cells of a sample. Further rows are not recorded.
const CELLS_MAX: usize = 1 << 20;
/// Maximum number of columns of a sample that is read.
const COLUMNS_MAX: usize = 256;

const NULL: u8 = 0;
const UNAVAILABLE: u8 = 1;
const TEXT: u8 = 2;
const INTEGER: u8 = 3;
const REAL: u8 = 4;

/// Encodes view samples as differences. Keeps the previous sample of each view.
#[derive(Debug, Default)]
pub(super) struct ViewWriter {
    /// The last sample of each view, across segments: rates of the first sample in a segment need
    /// it.
    last: HashMap<&'static str, ViewSample>,
    /// Views already written in this segment.
    written: Vec<&'static str>,
}

impl ViewWriter {
    /// Starts a segment, in which each view's columns are written anew.
    pub(super) fn restart(&mut self) {
        self.written.clear();
    }

    /// Discards all samples, because the next ones may come from a different server.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Encodes a sample as its difference from the previous one.
    pub(super) fn encode(
        &mut self,
        out: &mut Vec<u8>,
        rate_view: &RateView,
        writer: &mut SegmentTexts<'_>,
    ) {
        let now = &rate_view.sample;
        let view = now.view;
        let number = writer.number(&view.name.into());
        out.write_signed(number);
        let last = self.last.get(view.name).filter(|_| rate_view.seconds > 0.0);
        let is_new = !self.written.contains(&view.name);
        // This byte states what follows. 0: a sample without a predecessor; 1: the predecessor and
        // the sample; 2: the sample alone, as its predecessor is in this segment.
        out.push(match (last, is_new) {
            (None, _) => 0,
            (Some(_), true) => 1,
            (Some(_), false) => 2,
        });
        if is_new || last.is_none() {
            out.write_count(view.columns.len());
            for column in view.columns {
                let number = writer.number(&column.name.into());
                out.write_signed(number);
            }
        }
        match last {
            None => encode_rows(out, now, None, writer),
            Some(last) if is_new => {
                encode_rows(out, last, None, writer);
                encode_rows(out, now, Some(last), writer);
            }
            Some(last) => encode_rows(out, now, Some(last), writer),
        }
        if is_new {
            self.written.push(view.name);
        }
        self.last.insert(view.name, now.clone());
    }
}

/// The texts of a segment, and those that are new in this frame.
pub(super) struct SegmentTexts<'a> {
    pub(super) texts: &'a mut TextWriter,
    pub(super) new_texts: &'a mut Vec<Arc<str>>,
}

impl SegmentTexts<'_> {
    fn number(&mut self, text: &Arc<str>) -> i64 {
        self.texts.number(text, self.new_texts)
    }
}

fn encode_rows(
    out: &mut Vec<u8>,
    now: &ViewSample,
    before: Option<&ViewSample>,
    writer: &mut SegmentTexts<'_>,
) {
    let keys = key_columns(now.view);
    let rows_max = CELLS_MAX / now.view.columns.len().max(1);
    let known = before.map_or(&[][..], |before| &before.rows[..before.rows.len().min(rows_max)]);
    let row_indexes: HashMap<String, usize> =
        known.iter().enumerate().map(|(at, row)| (row_key(row, &keys), at)).collect();
    let rows = &now.rows[..now.rows.len().min(rows_max)];
    out.write_signed(now.taken_us);
    out.write_count(rows.len());
    let mut expected = 0;
    for row in rows {
        let row_index = row_indexes.get(&row_key(row, &keys)).copied();
        encode_row_index(out, row_index, &mut expected);
        let before = row_index.map(|row_index| &known[row_index]);
        let same = |at: usize| before.is_some_and(|before| before[at] == row[at]);
        for first in (0..row.len()).step_by(8) {
            let last = row.len().min(first + 8);
            out.push((first..last).fold(0, |mask, at| mask | u8::from(!same(at)) << (at - first)));
        }
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| !same(*at)) {
            encode_cell(out, cell, before.map(|before| &before[at]), writer);
        }
    }
}

fn encode_cell(
    out: &mut Vec<u8>,
    cell: &ViewCell,
    before: Option<&ViewCell>,
    writer: &mut SegmentTexts<'_>,
) {
    match cell {
        ViewCell::Null => out.push(NULL),
        ViewCell::Unavailable => out.push(UNAVAILABLE),
        ViewCell::Text(text) => {
            out.push(TEXT);
            let number = writer.number(text);
            out.write_signed(number);
        }
        ViewCell::Integer(value) => {
            out.push(INTEGER);
            out.write_signed(value.wrapping_sub(integer_or_zero(before)));
        }
        ViewCell::Real(value) => {
            out.push(REAL);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

fn integer_or_zero(before: Option<&ViewCell>) -> i64 {
    match before {
        Some(ViewCell::Integer(value)) => *value,
        _ => 0,
    }
}

fn key_columns(view: &StatsView) -> Vec<usize> {
    (0..view.columns.len()).filter(|&at| view.columns[at].kind == ColumnKind::Key).collect()
}

fn row_key(row: &[ViewCell], keys: &[usize]) -> String {
    keys.iter().map(|&at| format!("{:?}\0", row[at])).collect()
}

/// Decodes view samples. Keeps the previous sample of each view.
#[derive(Debug, Default)]
pub(super) struct ViewReader(HashMap<i64, PreviousView>);

#[derive(Debug, Default)]
struct PreviousView {
    columns: Vec<Arc<str>>,
    taken_us: i64,
    rows: Vec<Box<[ViewCell]>>,
}

impl ViewReader {
    /// Decodes the output of [`ViewWriter::encode`]. Returns `None` if this version of the program
    /// does not have the view.
    pub(super) fn decode(
        &mut self,
        input: &mut ByteReader<'_>,
        texts: &TextReader,
    ) -> Result<Option<RateView>, CorruptFrame> {
        let number = input.signed()?;
        let name = texts.line(number)?;
        let has_before = input.byte()?;
        let known = self.0.entry(number).or_default();
        if has_before > 2 {
            return Err(CorruptFrame::Kind);
        }
        if has_before < 2 || known.columns.is_empty() {
            let count = input.count_up_to(COLUMNS_MAX)?;
            let columns = (0..count).map(|_| texts.line(input.signed()?));
            *known =
                PreviousView { columns: columns.collect::<Result<_, _>>()?, ..Default::default() };
        }
        let view = VIEWS.iter().find(|view| view.name == &*name);
        let reading = |known: &PreviousView| view.map(|view| known.sample(view));
        if has_before == 1 {
            known.decode_rows(input, texts)?;
        }
        let before = if has_before == 0 { None } else { reading(known) };
        known.decode_rows(input, texts)?;
        Ok(reading(known).map(|now| rates(before.as_ref(), &now)))
    }
}

impl PreviousView {
    fn decode_rows(
        &mut self,
        input: &mut ByteReader<'_>,
        texts: &TextReader,
    ) -> Result<(), CorruptFrame> {
        let width = self.columns.len();
        self.taken_us = input.signed()?;
        let count = input.count_up_to((CELLS_MAX / width.max(1)).min(input.remaining()))?;
        let mut rows: Vec<Box<[ViewCell]>> = Vec::with_capacity(count);
        let mut expected = 0;
        for _ in 0..count {
            let row_index = decode_row_index(input, self.rows.len(), &mut expected)?;
            let mut row = match row_index {
                Some(row_index) => self.rows[row_index].clone(),
                None => vec![ViewCell::Null; width].into(),
            };
            let mask = input.bytes(width.div_ceil(8))?;
            for (at, cell) in row.iter_mut().enumerate() {
                if mask[at / 8] >> (at % 8) & 1 == 1 {
                    *cell = decode_cell(input, cell, texts)?;
                }
            }
            rows.push(row);
        }
        self.rows = rows;
        Ok(())
    }

    /// Creates a sample with the columns that the view has in this program's version.
    fn sample(&self, view: &'static StatsView) -> ViewSample {
        let row_indexes: Vec<Option<usize>> = view
            .columns
            .iter()
            .map(|column| self.columns.iter().position(|name| **name == *column.name))
            .collect();
        let cell = |row: &[ViewCell], row_index: &Option<usize>| {
            row_index.map_or(ViewCell::Unavailable, |at| row[at].clone())
        };
        let row =
            |row: &[ViewCell]| row_indexes.iter().map(|row_index| cell(row, row_index)).collect();
        ViewSample {
            view,
            taken_us: self.taken_us,
            rows: self.rows.iter().map(|cells| row(cells)).collect(),
        }
    }
}

fn decode_cell(
    input: &mut ByteReader<'_>,
    before: &ViewCell,
    texts: &TextReader,
) -> Result<ViewCell, CorruptFrame> {
    Ok(match input.byte()? {
        NULL => ViewCell::Null,
        UNAVAILABLE => ViewCell::Unavailable,
        TEXT => ViewCell::Text(texts.line(input.signed()?)?),
        INTEGER => ViewCell::Integer(input.signed()?.wrapping_add(integer_or_zero(Some(before)))),
        REAL => ViewCell::Real(f64::from_le_bytes(input.array()?)),
        _ => return Err(CorruptFrame::Kind),
    })
}
