//! Stores an outcome as a row, with the columns of `outcomes-*.parquet`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use howdah_traffic::{Kind, SessionId, SqlState, Text};

use super::{Disposition, ReplayOutcome, fingerprint_from_text, fingerprint_text};
use crate::{
    columns::{
        Column, Int64Reader, StoredType, StringReader, TextPairReader, TimeReader, non_empty,
        numbers, strings, texts, times, unsigned_numbers,
    },
    error::Corruption,
    table::{Encode, TableRecord},
};

impl TableRecord for ReplayOutcome {
    const FILE_PREFIX: &'static str = "outcomes";
    const COLUMNS: &'static [Column] = &[
        Column::required("time", StoredType::Time),
        Column::required("session", StoredType::Text),
        Column::optional("user", StoredType::Text),
        Column::optional("database", StoredType::Text),
        Column::required("kind", StoredType::Text),
        Column::optional("fingerprint", StoredType::Text),
        Column::required("due_us", StoredType::Int64),
        Column::optional("sent_us", StoredType::Int64),
        Column::optional("service_us", StoredType::Int64),
        Column::optional("schedule_error_us", StoredType::Int64),
        Column::optional("dependency_lag_us", StoredType::Int64),
        Column::optional("rows", StoredType::Int64),
        Column::required("disposition", StoredType::Text),
        Column::optional("sqlstate", StoredType::Text),
        Column::optional("error", StoredType::Text),
        Column::optional("error_bytes", StoredType::Bytes),
        Column::optional("skip_reason", StoredType::Text),
        Column::optional("captured_us", StoredType::Int64),
        Column::optional("input_late_us", StoredType::Int64).since(2),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Corruption> {
        let time = TimeReader::new(batch, "time");
        let mut session = StringReader::<SessionId>::new(batch, "session");
        let mut user = StringReader::<Arc<str>>::new(batch, "user");
        let mut database = StringReader::<Arc<str>>::new(batch, "database");
        let kind = StringReader::<Text>::new(batch, "kind");
        let fingerprint = StringReader::<Text>::new(batch, "fingerprint");
        let amount = |name| Int64Reader::new(batch, name);
        let (due_us, sent_us) = (amount("due_us"), amount("sent_us"));
        let (service_us, captured_us) = (amount("service_us"), amount("captured_us"));
        let schedule_error_us = amount("schedule_error_us");
        let dependency_lag_us = amount("dependency_lag_us");
        let input_late_us = Int64Reader::new_if_present(batch, "input_late_us");
        let rows = amount("rows");
        let mut disposition = DispositionColumns::new(batch);
        let outcome = |row| {
            Ok(Self {
                time: time.at(row),
                session: session.at(row).unwrap_or_default(),
                user: user.at(row).unwrap_or_default(),
                database: database.at(row).unwrap_or_default(),
                kind: kind.parse_required(row, Kind::parse)?,
                fingerprint: fingerprint.parse_code(row, fingerprint_from_text)?,
                due_us: due_us.required(row),
                sent_us: sent_us.at(row),
                service_us: service_us.unsigned(row)?,
                schedule_error_us: schedule_error_us.unsigned(row)?,
                dependency_lag_us: dependency_lag_us.unsigned(row)?,
                input_late_us: match &input_late_us {
                    Some(column) => column.unsigned(row)?,
                    None => None,
                },
                rows: rows.unsigned(row)?,
                disposition: disposition.at(row)?,
                captured_us: captured_us.unsigned(row)?,
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
            strings(rows.iter().map(|row| non_empty(&row.user))),
            strings(rows.iter().map(|row| non_empty(&row.database))),
            strings(rows.iter().map(|row| Some(row.kind.as_str()))),
            strings(fingerprints.iter().map(Option::as_deref)),
            numbers(rows.iter().map(|row| Some(row.due_us))),
            numbers(rows.iter().map(|row| row.sent_us)),
            unsigned_numbers(rows.iter().map(|row| row.service_us)),
            unsigned_numbers(rows.iter().map(|row| row.schedule_error_us)),
            unsigned_numbers(rows.iter().map(|row| row.dependency_lag_us)),
            unsigned_numbers(rows.iter().map(|row| row.rows)),
            strings(
                rows.iter()
                    .map(|row| Some(DispositionCode::from_disposition(&row.disposition).as_str())),
            ),
            strings(rows.iter().map(|row| sqlstate(&row.disposition).map(SqlState::as_str))),
            error,
            error_bytes,
            strings(rows.iter().map(|row| reason(&row.disposition))),
            unsigned_numbers(rows.iter().map(|row| row.captured_us)),
            unsigned_numbers(rows.iter().map(|row| row.input_late_us)),
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

/// The values of the `disposition` column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DispositionCode {
    Done,
    Failed,
    Skipped,
}

impl DispositionCode {
    const ALL: [Self; 3] = [Self::Done, Self::Failed, Self::Skipped];

    fn from_disposition(disposition: &Disposition) -> Self {
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

    fn parse(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.as_str() == code)
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

/// The columns from which a row's [`Disposition`] is decoded.
struct DispositionColumns<'a> {
    code: StringReader<'a, Text>,
    sqlstate: StringReader<'a, Text>,
    error: TextPairReader<'a>,
    reason: StringReader<'a, Arc<str>>,
}

impl<'a> DispositionColumns<'a> {
    fn new(batch: &'a RecordBatch) -> Self {
        Self {
            code: StringReader::new(batch, "disposition"),
            sqlstate: StringReader::new(batch, "sqlstate"),
            error: TextPairReader::new(batch, "error", "error_bytes"),
            reason: StringReader::new(batch, "skip_reason"),
        }
    }

    fn at(&mut self, row: usize) -> Result<Disposition, Corruption> {
        Ok(match self.code.parse_required(row, DispositionCode::parse)? {
            DispositionCode::Done => Disposition::Done,
            DispositionCode::Failed => Disposition::Failed {
                sqlstate: self.sqlstate.parse_code(row, |code| SqlState::new(code.as_bytes()))?,
                message: self.error.required(row)?,
            },
            DispositionCode::Skipped => Disposition::Skipped {
                reason: self.reason.at(row).ok_or_else(|| self.reason.null())?,
            },
        })
    }
}
