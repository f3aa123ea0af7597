//! Readings of views. A file names the columns it has, so that one written by another version can be read:
//! what is unknown is left out, what is missing cannot be read.

use std::{collections::HashMap, sync::Arc};

use howdah_collect::{Cell, Meaning, RateView, Reading, VIEWS, View, rates};

use super::{
    bytes::{Damage, In, Out},
    slots::{put_place, take_place},
    texts::{Read, Written},
};

/// Most cells of a reading, and most columns; what is beyond is not kept.
const CELLS_MAX: usize = 1 << 20;
const COLUMNS_MAX: usize = 256;

const NULL: u8 = 0;
const UNAVAILABLE: u8 = 1;
const TEXT: u8 = 2;
const INTEGER: u8 = 3;
const REAL: u8 = 4;

/// The readings before, for a writer.
#[derive(Debug, Default)]
pub(super) struct Before {
    /// The last of each view, of all times: the first of a segment needs it for its rates.
    last: HashMap<&'static str, Reading>,
    /// Which of them this segment has.
    written: Vec<&'static str>,
}

impl Before {
    /// Begins a segment.
    pub(super) fn restart(&mut self) {
        self.written.clear();
    }

    /// Forgets all: the server may be another.
    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    /// Writes a reading, and remembers it.
    pub(super) fn put(&mut self, out: &mut Out, rated: &RateView, writer: &mut Words<'_>) {
        let now = &rated.reading;
        let view = now.view;
        let number = writer.number(&view.name.into());
        out.signed(number);
        let last = self.last.get(view.name).filter(|_| rated.seconds > 0.0);
        let is_new = !self.written.contains(&view.name);
        // What comes: 0 a reading without one before, 1 the one before and then it, 2 it alone.
        out.byte(match (last, is_new) {
            (None, _) => 0,
            (Some(_), true) => 1,
            (Some(_), false) => 2,
        });
        if is_new || last.is_none() {
            out.count(view.columns.len());
            for column in view.columns {
                let number = writer.number(&column.name.into());
                out.signed(number);
            }
        }
        match last {
            None => put_rows(out, now, None, writer),
            Some(last) if is_new => {
                put_rows(out, last, None, writer);
                put_rows(out, now, Some(last), writer);
            }
            Some(last) => put_rows(out, now, Some(last), writer),
        }
        if is_new {
            self.written.push(view.name);
        }
        self.last.insert(view.name, now.clone());
    }
}

/// The texts of a segment, and those that are new in this frame.
pub(super) struct Words<'a> {
    pub(super) texts: &'a mut Written,
    pub(super) fresh: &'a mut Vec<Arc<str>>,
}

impl Words<'_> {
    fn number(&mut self, text: &Arc<str>) -> i64 {
        self.texts.number(text, self.fresh)
    }
}

fn put_rows(out: &mut Out, now: &Reading, before: Option<&Reading>, writer: &mut Words<'_>) {
    let keys = keys_of(now.view);
    let rows_max = CELLS_MAX / now.view.columns.len().max(1);
    let known = before.map_or(&[][..], |before| &before.rows[..before.rows.len().min(rows_max)]);
    let places: HashMap<String, usize> =
        known.iter().enumerate().map(|(at, row)| (key(row, &keys), at)).collect();
    let rows = &now.rows[..now.rows.len().min(rows_max)];
    out.signed(now.taken_us);
    out.count(rows.len());
    let mut expected = 0;
    for row in rows {
        let place = places.get(&key(row, &keys)).copied();
        put_place(out, place, &mut expected);
        let before = place.map(|place| &known[place]);
        let same = |at: usize| before.is_some_and(|before| before[at] == row[at]);
        for first in (0..row.len()).step_by(8) {
            let last = row.len().min(first + 8);
            out.byte((first..last).fold(0, |mask, at| mask | u8::from(!same(at)) << (at - first)));
        }
        for (at, cell) in row.iter().enumerate().filter(|(at, _)| !same(*at)) {
            put_cell(out, cell, before.map(|before| &before[at]), writer);
        }
    }
}

fn put_cell(out: &mut Out, cell: &Cell, before: Option<&Cell>, writer: &mut Words<'_>) {
    match cell {
        Cell::Null => out.byte(NULL),
        Cell::Unavailable => out.byte(UNAVAILABLE),
        Cell::Text(text) => {
            out.byte(TEXT);
            let number = writer.number(text);
            out.signed(number);
        }
        Cell::Integer(value) => {
            out.byte(INTEGER);
            out.signed(value.wrapping_sub(integer(before)));
        }
        Cell::Real(value) => {
            out.byte(REAL);
            out.0.extend_from_slice(&value.to_le_bytes());
        }
    }
}

fn integer(before: Option<&Cell>) -> i64 {
    match before {
        Some(Cell::Integer(value)) => *value,
        _ => 0,
    }
}

fn keys_of(view: &View) -> Vec<usize> {
    (0..view.columns.len()).filter(|&at| view.columns[at].meaning == Meaning::Key).collect()
}

fn key(row: &[Cell], keys: &[usize]) -> String {
    keys.iter().map(|&at| format!("{:?}\0", row[at])).collect()
}

/// The readings before, for a reader.
#[derive(Debug, Default)]
pub(super) struct Known(HashMap<i64, KnownView>);

#[derive(Debug, Default)]
struct KnownView {
    columns: Vec<Arc<str>>,
    taken_us: i64,
    rows: Vec<Box<[Cell]>>,
}

impl Known {
    /// Reads what [`Before::put`] wrote; `None` if this version has no such view.
    pub(super) fn take(
        &mut self,
        input: &mut In<'_>,
        texts: &Read,
    ) -> Result<Option<RateView>, Damage> {
        let number = input.signed()?;
        let name = texts.word(number)?;
        let has_before = input.byte()?;
        let known = self.0.entry(number).or_default();
        if has_before > 2 {
            return Err(Damage::Kind);
        }
        if has_before < 2 || known.columns.is_empty() {
            let count = input.count(COLUMNS_MAX)?;
            let columns = (0..count).map(|_| texts.word(input.signed()?));
            *known =
                KnownView { columns: columns.collect::<Result<_, _>>()?, ..Default::default() };
        }
        let view = VIEWS.iter().find(|view| view.name == &*name);
        let reading = |known: &KnownView| view.map(|view| known.reading(view));
        if has_before == 1 {
            known.take_rows(input, texts)?;
        }
        let before = if has_before == 0 { None } else { reading(known) };
        known.take_rows(input, texts)?;
        Ok(reading(known).map(|now| rates(before.as_ref(), &now)))
    }
}

impl KnownView {
    fn take_rows(&mut self, input: &mut In<'_>, texts: &Read) -> Result<(), Damage> {
        let width = self.columns.len();
        self.taken_us = input.signed()?;
        let count = input.count((CELLS_MAX / width.max(1)).min(input.0.len()))?;
        let mut rows: Vec<Box<[Cell]>> = Vec::with_capacity(count);
        let mut expected = 0;
        for _ in 0..count {
            let place = take_place(input, self.rows.len(), &mut expected)?;
            let mut row = match place {
                Some(place) => self.rows[place].clone(),
                None => vec![Cell::Null; width].into(),
            };
            let mask = input.take(width.div_ceil(8))?;
            for (at, cell) in row.iter_mut().enumerate() {
                if mask[at / 8] >> (at % 8) & 1 == 1 {
                    *cell = take_cell(input, cell, texts)?;
                }
            }
            rows.push(row);
        }
        self.rows = rows;
        Ok(())
    }

    /// Its rows under the columns that the view has today.
    fn reading(&self, view: &'static View) -> Reading {
        let places: Vec<Option<usize>> = view
            .columns
            .iter()
            .map(|column| self.columns.iter().position(|name| **name == *column.name))
            .collect();
        let cell = |row: &[Cell], place: &Option<usize>| {
            place.map_or(Cell::Unavailable, |at| row[at].clone())
        };
        let row = |row: &[Cell]| places.iter().map(|place| cell(row, place)).collect();
        Reading {
            view,
            taken_us: self.taken_us,
            rows: self.rows.iter().map(|cells| row(cells)).collect(),
        }
    }
}

fn take_cell(input: &mut In<'_>, before: &Cell, texts: &Read) -> Result<Cell, Damage> {
    Ok(match input.byte()? {
        NULL => Cell::Null,
        UNAVAILABLE => Cell::Unavailable,
        TEXT => Cell::Text(texts.word(input.signed()?)?),
        INTEGER => Cell::Integer(input.signed()?.wrapping_add(integer(Some(before)))),
        REAL => {
            let bytes = input.take(8)?.try_into().map_err(|_| Damage::Ended)?;
            Cell::Real(f64::from_le_bytes(bytes))
        }
        _ => return Err(Damage::Kind),
    })
}
