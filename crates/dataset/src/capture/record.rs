//! An event as a row: the columns of `events-*.parquet`.

use std::sync::Arc;

use arrow_array::RecordBatch;
use howdah_traffic::{
    Action, Bound, CopyDirection, Event, Kind, Outcome, SessionId, Source, SqlState, Text,
    Timestamp,
};

use crate::{
    columns::{Column, Numbers, ParameterLists, Shape, Strings, Texts, Times, WireColumns},
    error::Damage,
    table::Record,
};

/// An event and its place in the order of arrival.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredEvent {
    /// Counts from 0 in one capture. Decides among events of the same time.
    pub(crate) sequence: i64,
    /// On its own, so that what is sorted and handed on is small.
    pub(crate) event: Box<Event>,
}

impl StoredEvent {
    /// What events are ordered by: unique in a capture.
    pub(crate) fn key(&self) -> (Timestamp, i64) {
        (self.event.time, self.sequence)
    }
}

impl Record for StoredEvent {
    const STEM: &'static str = "events";
    const SORTED_BY: &'static [&'static str] = &["time", "sequence"];
    const COLUMNS: &'static [Column] = &[
        Column::required("sequence", Shape::Int64),
        Column::required("time", Shape::Time),
        Column::required("session", Shape::Text),
        Column::required("kind", Shape::Text),
        Column::optional("user", Shape::Text),
        Column::optional("database", Shape::Text),
        Column::optional("application", Shape::Text),
        Column::optional("statement", Shape::Text),
        Column::optional("statement_bytes", Shape::Bytes),
        Column::optional("portal", Shape::Text),
        Column::optional("portal_bytes", Shape::Bytes),
        Column::optional("sql", Shape::Text),
        Column::optional("sql_bytes", Shape::Bytes),
        Column::optional("parameters", Shape::TextList),
        Column::optional("parameters_bytes", Shape::BytesList),
        Column::optional("parameters_truncated", Shape::Int32List),
        Column::optional("copy_direction", Shape::Text),
        Column::optional("function", Shape::Text),
        Column::optional("function_bytes", Shape::Bytes),
        Column::optional("duration_us", Shape::Int64),
        Column::optional("sqlstate", Shape::Text),
        Column::optional("error", Shape::Text),
        Column::optional("error_bytes", Shape::Bytes),
        Column::required("source", Shape::Text),
        Column::optional("vxid", Shape::Text),
        Column::optional("query_id", Shape::Int64),
        Column::optional("pipeline", Shape::Int64).since(2),
        Column::optional("rows", Shape::Int64).since(3),
        Column::optional("rows_max", Shape::Int64).since(3),
        Column::optional("types", Shape::Int32List).since(3),
        Column::optional("formats", Shape::Int32List).since(3),
        Column::optional("result_formats", Shape::Int32List).since(3),
        Column::optional("settings", Shape::BytesList).since(3),
        Column::optional("copy_bytes", Shape::Int64).since(3),
        Column::optional("copy_data", Shape::BytesList).since(3),
        Column::optional("copy_end", Shape::Text).since(3),
        Column::optional("arguments", Shape::BytesList).since(4),
        Column::optional("messages", Shape::Bytes).since(4),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Damage> {
        let mut columns = Columns::of(batch);
        (0..batch.num_rows()).map(|row| columns.at(row)).collect()
    }
}

pub(super) fn direction_word(direction: CopyDirection) -> &'static str {
    match direction {
        CopyDirection::In => "in",
        CopyDirection::Out => "out",
    }
}

fn direction_from_word(word: &str) -> Option<CopyDirection> {
    [CopyDirection::In, CopyDirection::Out].into_iter().find(|one| direction_word(*one) == word)
}

/// The columns of one batch.
struct Columns<'a> {
    sequence: Numbers<'a>,
    time: Times<'a>,
    session: Strings<'a, SessionId>,
    kind: Strings<'a, Text>,
    user: Strings<'a, Arc<str>>,
    database: Strings<'a, Arc<str>>,
    application: Strings<'a, Arc<str>>,
    statement: Texts<'a>,
    portal: Texts<'a>,
    sql: Texts<'a>,
    parameters: ParameterLists<'a>,
    copy_direction: Strings<'a, Text>,
    function: Texts<'a>,
    duration_us: Numbers<'a>,
    sqlstate: Strings<'a, Text>,
    error: Texts<'a>,
    source: Strings<'a, Text>,
    vxid: Strings<'a, Arc<str>>,
    query_id: Numbers<'a>,
    pipeline: Option<Numbers<'a>>,
    wire: Option<WireColumns<'a>>,
}

impl<'a> Columns<'a> {
    fn of(batch: &'a RecordBatch) -> Self {
        Self {
            sequence: Numbers::of(batch, "sequence"),
            time: Times::of(batch, "time"),
            session: Strings::of(batch, "session"),
            kind: Strings::of(batch, "kind"),
            user: Strings::of(batch, "user"),
            database: Strings::of(batch, "database"),
            application: Strings::of(batch, "application"),
            statement: Texts::of(batch, "statement", "statement_bytes"),
            portal: Texts::of(batch, "portal", "portal_bytes"),
            sql: Texts::of(batch, "sql", "sql_bytes"),
            parameters: ParameterLists::of(
                batch,
                ["parameters", "parameters_bytes", "parameters_truncated"],
            ),
            copy_direction: Strings::of(batch, "copy_direction"),
            function: Texts::of(batch, "function", "function_bytes"),
            duration_us: Numbers::of(batch, "duration_us"),
            sqlstate: Strings::of(batch, "sqlstate"),
            error: Texts::of(batch, "error", "error_bytes"),
            source: Strings::of(batch, "source"),
            vxid: Strings::of(batch, "vxid"),
            query_id: Numbers::of(batch, "query_id"),
            pipeline: Numbers::of_added(batch, "pipeline"),
            wire: WireColumns::of(batch),
        }
    }

    fn at(&mut self, row: usize) -> Result<StoredEvent, Damage> {
        let event = Event {
            time: self.time.at(row),
            session: self.session.at(row).unwrap_or_default(),
            user: self.user.at(row).unwrap_or_default(),
            database: self.database.at(row).unwrap_or_default(),
            application: self.application.at(row).unwrap_or_default(),
            action: self.action(row)?,
            outcome: Outcome {
                duration_us: self.duration_us.amount(row)?,
                sqlstate: self.sqlstate.word(row, |word| SqlState::new(word.as_bytes()))?,
                error: self.error.at(row),
            },
            source: self.source.required_word(row, Source::from_word)?,
            vxid: self.vxid.at(row),
            query_id: self.query_id.at(row),
            pipeline: self.pipeline.as_ref().map_or(Ok(None), |numbers| numbers.count(row))?,
            wire: self.wire.as_ref().map_or(Ok(None), |wire| wire.at(row))?.map(Box::new),
        };
        Ok(StoredEvent { sequence: self.sequence.required(row), event: Box::new(event) })
    }

    fn action(&mut self, row: usize) -> Result<Action, Damage> {
        Ok(match self.kind.required_word(row, Kind::from_word)? {
            Kind::Connect => Action::Connect,
            Kind::Disconnect => Action::Disconnect,
            Kind::Simple => Action::Simple { sql: self.sql.required(row)? },
            Kind::Copy => Action::Copy {
                sql: self.sql.required(row)?,
                direction: self.copy_direction.required_word(row, direction_from_word)?,
            },
            Kind::Parse => Action::Parse {
                statement: self.statement.required(row)?,
                sql: self.sql.required(row)?,
            },
            Kind::Bind => Action::Bind(self.bound(row)?),
            Kind::Execute => Action::Execute(self.bound(row)?),
            Kind::Fetch => Action::Fetch(self.bound(row)?),
            Kind::Call => Action::Call { function: self.function.required(row)? },
            Kind::Cancel => Action::Cancel,
        })
    }

    fn bound(&mut self, row: usize) -> Result<Bound, Damage> {
        Ok(Bound {
            statement: self.statement.required(row)?,
            portal: self.portal.required(row)?,
            sql: self.sql.required(row)?,
            parameters: self.parameters.at(row)?,
        })
    }
}
