//! Stores an outcome as a row, with the columns of `outcomes-*.parquet`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use howdah_traffic::{Kind, SessionId, SqlState, Text};

use super::{Disposition, ReplayOutcome, ResultCheck, fingerprint_from_text, fingerprint_text};
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
        Column::optional("order_wait_us", StoredType::Int64).since(3),
        Column::optional("captured_rows", StoredType::Int64).since(3),
        Column::optional("result", StoredType::Text).since(3),
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
        let newer = |name| Int64Reader::new_if_present(batch, name);
        let (input_late_us, order_wait_us) = (newer("input_late_us"), newer("order_wait_us"));
        let captured_rows = newer("captured_rows");
        let check = StringReader::<Text>::new_if_present(batch, "result");
        let unsigned = |column: &Option<Int64Reader<'_>>, row| match column {
            Some(column) => column.unsigned(row),
            None => Ok(None),
        };
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
                input_late_us: unsigned(&input_late_us, row)?,
                rows: rows.unsigned(row)?,
                disposition: disposition.at(row)?,
                captured_us: captured_us.unsigned(row)?,
                order_wait_us: unsigned(&order_wait_us, row)?,
                captured_rows: unsigned(&captured_rows, row)?,
                check: match &check {
                    Some(column) => column.parse_code(row, check_from_text)?,
                    None => None,
                },
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
            unsigned_numbers(rows.iter().map(|row| row.order_wait_us)),
            unsigned_numbers(rows.iter().map(|row| row.captured_rows)),
            strings(rows.iter().map(|row| row.check.map(check_text))),
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

/// Returns the value of the `result` column.
fn check_text(check: ResultCheck) -> &'static str {
    match check {
        ResultCheck::Same => "same",
        ResultCheck::Different => "different",
    }
}

fn check_from_text(text: &str) -> Option<ResultCheck> {
    [ResultCheck::Same, ResultCheck::Different].into_iter().find(|one| check_text(*one) == text)
}

/// The values of the `disposition` column.
#[derive(Clone, Copy, PartialEq, Eq)]
enum DispositionCode {
    Done,
    Failed,
    Skipped,
    Dropped,
}

impl DispositionCode {
    const ALL: [Self; 4] = [Self::Done, Self::Failed, Self::Skipped, Self::Dropped];

    fn from_disposition(disposition: &Disposition) -> Self {
        match disposition {
            Disposition::Done => Self::Done,
            Disposition::Failed { .. } => Self::Failed,
            Disposition::Skipped { .. } => Self::Skipped,
            Disposition::Dropped { .. } => Self::Dropped,
        }
    }

    fn as_str(self) -> &'static str {
        match self {
            Self::Done => "done",
            Self::Failed => "failed",
            Self::Skipped => "skipped",
            Self::Dropped => "dropped",
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
        Disposition::Skipped { reason } | Disposition::Dropped { reason } => Some(reason),
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

    fn required_reason(&mut self, row: usize) -> Result<Arc<str>, Corruption> {
        self.reason.at(row).ok_or_else(|| self.reason.null())
    }

    fn at(&mut self, row: usize) -> Result<Disposition, Corruption> {
        Ok(match self.code.parse_required(row, DispositionCode::parse)? {
            DispositionCode::Done => Disposition::Done,
            DispositionCode::Failed => Disposition::Failed {
                sqlstate: self.sqlstate.parse_code(row, |code| SqlState::new(code.as_bytes()))?,
                message: self.error.required(row)?,
            },
            DispositionCode::Skipped => Disposition::Skipped { reason: self.required_reason(row)? },
            DispositionCode::Dropped => Disposition::Dropped { reason: self.required_reason(row)? },
        })
    }
}
