//! An outcome as a row: the columns of `outcomes-*.parquet`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use howdah_traffic::{Kind, SessionId, SqlState, Text};

use super::{Disposition, ReplayOutcome, fingerprint_from_text, fingerprint_text};
use crate::{
    columns::{
        Column, Numbers, Shape, Strings, Texts, Times, amounts, known, numbers, strings, texts,
        times,
    },
    error::Damage,
    table::{Encode, Record},
};

impl Record for ReplayOutcome {
    const STEM: &'static str = "outcomes";
    const COLUMNS: &'static [Column] = &[
        Column::required("time", Shape::Time),
        Column::required("session", Shape::Text),
        Column::optional("user", Shape::Text),
        Column::optional("database", Shape::Text),
        Column::required("kind", Shape::Text),
        Column::optional("fingerprint", Shape::Text),
        Column::required("due_us", Shape::Int64),
        Column::optional("sent_us", Shape::Int64),
        Column::optional("service_us", Shape::Int64),
        Column::optional("schedule_error_us", Shape::Int64),
        Column::optional("dependency_lag_us", Shape::Int64),
        Column::optional("rows", Shape::Int64),
        Column::required("disposition", Shape::Text),
        Column::optional("sqlstate", Shape::Text),
        Column::optional("error", Shape::Text),
        Column::optional("error_bytes", Shape::Bytes),
        Column::optional("skip_reason", Shape::Text),
        Column::optional("captured_us", Shape::Int64),
        Column::optional("input_late_us", Shape::Int64).since(2),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Damage> {
        let time = Times::of(batch, "time");
        let mut session = Strings::<SessionId>::of(batch, "session");
        let mut user = Strings::<Arc<str>>::of(batch, "user");
        let mut database = Strings::<Arc<str>>::of(batch, "database");
        let kind = Strings::<Text>::of(batch, "kind");
        let fingerprint = Strings::<Text>::of(batch, "fingerprint");
        let amount = |name| Numbers::of(batch, name);
        let (due_us, sent_us) = (amount("due_us"), amount("sent_us"));
        let (service_us, captured_us) = (amount("service_us"), amount("captured_us"));
        let schedule_error_us = amount("schedule_error_us");
        let dependency_lag_us = amount("dependency_lag_us");
        let input_late_us = Numbers::of_added(batch, "input_late_us");
        let rows = amount("rows");
        let mut disposition = Dispositions::of(batch);
        let outcome = |row| {
            Ok(Self {
                time: time.at(row),
                session: session.at(row).unwrap_or_default(),
                user: user.at(row).unwrap_or_default(),
                database: database.at(row).unwrap_or_default(),
                kind: kind.required_word(row, Kind::from_word)?,
                fingerprint: fingerprint.word(row, fingerprint_from_text)?,
                due_us: due_us.required(row),
                sent_us: sent_us.at(row),
                service_us: service_us.amount(row)?,
                schedule_error_us: schedule_error_us.amount(row)?,
                dependency_lag_us: dependency_lag_us.amount(row)?,
                input_late_us: match &input_late_us {
                    Some(column) => column.amount(row)?,
                    None => None,
                },
                rows: rows.amount(row)?,
                disposition: disposition.at(row)?,
                captured_us: captured_us.amount(row)?,
            })
        };
        (0..batch.num_rows()).map(outcome).collect()
    }
}

impl Encode for ReplayOutcome {
    fn encode(rows: &[Self]) -> Vec<ArrayRef> {
        let fingerprints: Vec<Option<String>> =
            rows.iter().map(|row| row.fingerprint.map(fingerprint_text)).collect();
        let [error, error_bytes] = texts(rows.iter().map(|row| message(&row.disposition)));
        vec![
            times(rows.iter().map(|row| row.time)),
            strings(rows.iter().map(|row| Some(&*row.session))),
            strings(rows.iter().map(|row| known(&row.user))),
            strings(rows.iter().map(|row| known(&row.database))),
            strings(rows.iter().map(|row| Some(row.kind.as_str()))),
            strings(fingerprints.iter().map(Option::as_deref)),
            numbers(rows.iter().map(|row| Some(row.due_us))),
            numbers(rows.iter().map(|row| row.sent_us)),
            amounts(rows.iter().map(|row| row.service_us)),
            amounts(rows.iter().map(|row| row.schedule_error_us)),
            amounts(rows.iter().map(|row| row.dependency_lag_us)),
            amounts(rows.iter().map(|row| row.rows)),
            strings(rows.iter().map(|row| Some(Word::of(&row.disposition).as_str()))),
            strings(rows.iter().map(|row| sqlstate(&row.disposition).map(SqlState::as_str))),
            error,
            error_bytes,
            strings(rows.iter().map(|row| reason(&row.disposition))),
            amounts(rows.iter().map(|row| row.captured_us)),
            amounts(rows.iter().map(|row| row.input_late_us)),
        ]
    }

    fn text_bytes(&self) -> usize {
        self.session.len()
            + self.user.len()
            + self.database.len()
            + message(&self.disposition).map_or(0, Text::len)
            + reason(&self.disposition).map_or(0, str::len)
    }
}

/// The `disposition` column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Word {
    Done,
    Failed,
    Skipped,
}

impl Word {
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Skipped];

    fn of(disposition: &Disposition) -> Self {
        match disposition {
            Disposition::Done => Self::Done,
            Disposition::Failed { .. } => Self::Failed,
            Disposition::Skipped { .. } => Self::Skipped,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
        }
    }

    fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == word)
    }
}

fn message(disposition: &Disposition) -> Option<&Text> {
    match disposition {
        Disposition::Failed { message, .. } => Some(message),
        _ => None,
    }
}

fn sqlstate(disposition: &Disposition) -> Option<&SqlState> {
    match disposition {
        Disposition::Failed { sqlstate, .. } => sqlstate.as_ref(),
        _ => None,
    }
}

fn reason(disposition: &Disposition) -> Option<&str> {
    match disposition {
        Disposition::Skipped { reason } => Some(reason),
        _ => None,
    }
}

/// The columns that a [`Disposition`] takes.
struct Dispositions<'a> {
    word: Strings<'a, Text>,
    sqlstate: Strings<'a, Text>,
    error: Texts<'a>,
    reason: Strings<'a, Arc<str>>,
}

impl<'a> Dispositions<'a> {
    fn of(batch: &'a RecordBatch) -> Self {
        Self {
            word: Strings::of(batch, "disposition"),
            sqlstate: Strings::of(batch, "sqlstate"),
            error: Texts::of(batch, "error", "error_bytes"),
            reason: Strings::of(batch, "skip_reason"),
        }
    }

    fn at(&mut self, row: usize) -> Result<Disposition, Damage> {
        Ok(match self.word.required_word(row, Word::from_word)? {
            Word::Done => Disposition::Done,
            Word::Failed => Disposition::Failed {
                sqlstate: self.sqlstate.word(row, |word| SqlState::new(word.as_bytes()))?,
                message: self.error.required(row)?,
            },
            Word::Skipped => Disposition::Skipped {
                reason: self.reason.at(row).ok_or_else(|| self.reason.null())?,
            },
        })
    }
}
