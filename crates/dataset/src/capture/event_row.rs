//! [`StoredEvent`]: a row of `events-*.parquet`, its columns, and how it is decoded.

use std::sync::Arc;

use arrow_array::RecordBatch;
use howdah_traffic::{
    Action, Bound, CapturedOutcome, CopyDirection, Event, Kind, SessionId, Source, SqlState, Text,
    Timestamp,
};

use crate::{
    columns::{
        Column, Int64Reader, ParameterListReader, StoredType, StringReader, TextPairReader,
        TimeReader, WireColumns,
    },
    error::Corruption,
    table::TableRecord,
};

/// An event with its sequence number.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StoredEvent {
    /// Number of the event in its capture, from 0, in order of arrival. It orders events with the
    /// same time.
    pub(crate) sequence: i64,
    /// The event, boxed to make sorting and moving rows cheap.
    pub(crate) event: Box<Event>,
}

impl StoredEvent {
    /// Returns the sort key of the event, which is unique in a capture.
    pub(crate) fn key(&self) -> (Timestamp, i64) {
        (self.event.time, self.sequence)
    }
}

impl TableRecord for StoredEvent {
    const FILE_PREFIX: &'static str = "events";
    const SORTED_BY: &'static [&'static str] = &["time", "sequence"];
    const COLUMNS: &'static [Column] = &[
        Column::required("sequence", StoredType::Int64),
        Column::required("time", StoredType::Time),
        Column::required("session", StoredType::Text),
        Column::required("kind", StoredType::Text),
        Column::optional("user", StoredType::Text),
        Column::optional("database", StoredType::Text),
        Column::optional("application", StoredType::Text),
        Column::optional("statement", StoredType::Text),
        Column::optional("statement_bytes", StoredType::Bytes),
        Column::optional("portal", StoredType::Text),
        Column::optional("portal_bytes", StoredType::Bytes),
        Column::optional("sql", StoredType::Text),
        Column::optional("sql_bytes", StoredType::Bytes),
        Column::optional("parameters", StoredType::TextList),
        Column::optional("parameters_bytes", StoredType::BytesList),
        Column::optional("parameters_truncated", StoredType::Int32List),
        Column::optional("copy_direction", StoredType::Text),
        Column::optional("function", StoredType::Text),
        Column::optional("function_bytes", StoredType::Bytes),
        Column::optional("duration_us", StoredType::Int64),
        Column::optional("sqlstate", StoredType::Text),
        Column::optional("error", StoredType::Text),
        Column::optional("error_bytes", StoredType::Bytes),
        Column::required("source", StoredType::Text),
        Column::optional("vxid", StoredType::Text),
        Column::optional("query_id", StoredType::Int64),
        Column::optional("pipeline", StoredType::Int64).since(2),
        Column::optional("rows", StoredType::Int64).since(3),
        Column::optional("rows_max", StoredType::Int64).since(3),
        Column::optional("types", StoredType::Int32List).since(3),
        Column::optional("formats", StoredType::Int32List).since(3),
        Column::optional("result_formats", StoredType::Int32List).since(3),
        Column::optional("settings", StoredType::BytesList).since(3),
        Column::optional("copy_bytes", StoredType::Int64).since(3),
        Column::optional("copy_data", StoredType::BytesList).since(3),
        Column::optional("copy_end", StoredType::Text).since(3),
        Column::optional("arguments", StoredType::BytesList).since(4),
        Column::optional("messages", StoredType::Bytes).since(4),
        Column::optional("result_checksum", StoredType::Int64).since(5),
        Column::optional("first_row", StoredType::BytesList).since(5),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Corruption> {
        let mut columns = Columns::new(batch);
        (0..batch.num_rows()).map(|row| columns.at(row)).collect()
    }
}

pub(super) fn direction_code(direction: CopyDirection) -> &'static str {
    match direction {
        CopyDirection::In => "in",
        CopyDirection::Out => "out",
    }
}

fn parse_direction(word: &str) -> Option<CopyDirection> {
    [CopyDirection::In, CopyDirection::Out].into_iter().find(|one| direction_code(*one) == word)
}

/// The columns of one batch.
struct Columns<'a> {
    sequence: Int64Reader<'a>,
    time: TimeReader<'a>,
    session: StringReader<'a, SessionId>,
    kind: StringReader<'a, Text>,
    user: StringReader<'a, Arc<str>>,
    database: StringReader<'a, Arc<str>>,
    application: StringReader<'a, Arc<str>>,
    statement: TextPairReader<'a>,
    portal: TextPairReader<'a>,
    sql: TextPairReader<'a>,
    parameters: ParameterListReader<'a>,
    copy_direction: StringReader<'a, Text>,
    function: TextPairReader<'a>,
    duration_us: Int64Reader<'a>,
    sqlstate: StringReader<'a, Text>,
    error: TextPairReader<'a>,
    source: StringReader<'a, Text>,
    vxid: StringReader<'a, Arc<str>>,
    query_id: Int64Reader<'a>,
    pipeline: Option<Int64Reader<'a>>,
    wire: Option<WireColumns<'a>>,
}

impl<'a> Columns<'a> {
    fn new(batch: &'a RecordBatch) -> Self {
        Self {
            sequence: Int64Reader::new(batch, "sequence"),
            time: TimeReader::new(batch, "time"),
            session: StringReader::new(batch, "session"),
            kind: StringReader::new(batch, "kind"),
            user: StringReader::new(batch, "user"),
            database: StringReader::new(batch, "database"),
            application: StringReader::new(batch, "application"),
            statement: TextPairReader::new(batch, "statement", "statement_bytes"),
            portal: TextPairReader::new(batch, "portal", "portal_bytes"),
            sql: TextPairReader::new(batch, "sql", "sql_bytes"),
            parameters: ParameterListReader::new(
                batch,
                ["parameters", "parameters_bytes", "parameters_truncated"],
            ),
            copy_direction: StringReader::new(batch, "copy_direction"),
            function: TextPairReader::new(batch, "function", "function_bytes"),
            duration_us: Int64Reader::new(batch, "duration_us"),
            sqlstate: StringReader::new(batch, "sqlstate"),
            error: TextPairReader::new(batch, "error", "error_bytes"),
            source: StringReader::new(batch, "source"),
            vxid: StringReader::new(batch, "vxid"),
            query_id: Int64Reader::new(batch, "query_id"),
            pipeline: Int64Reader::new_if_present(batch, "pipeline"),
            wire: WireColumns::new(batch),
        }
    }

    fn at(&mut self, row: usize) -> Result<StoredEvent, Corruption> {
        let event = Event {
            time: self.time.at(row),
            session: self.session.at(row).unwrap_or_default(),
            user: self.user.at(row).unwrap_or_default(),
            database: self.database.at(row).unwrap_or_default(),
            application: self.application.at(row).unwrap_or_default(),
            action: self.action(row)?,
            outcome: CapturedOutcome {
                duration_us: self.duration_us.unsigned(row)?,
                sqlstate: self.sqlstate.parse_code(row, |word| SqlState::new(word.as_bytes()))?,
                error: self.error.at(row),
            },
            source: self.source.parse_required(row, Source::parse)?,
            vxid: self.vxid.at(row),
            query_id: self.query_id.at(row),
            pipeline: self.pipeline.as_ref().map_or(Ok(None), |numbers| numbers.small(row))?,
            wire: self.wire.as_ref().map_or(Ok(None), |wire| wire.at(row))?.map(Box::new),
        };
        Ok(StoredEvent { sequence: self.sequence.required(row), event: Box::new(event) })
    }

    fn action(&mut self, row: usize) -> Result<Action, Corruption> {
        Ok(match self.kind.parse_required(row, Kind::parse)? {
            Kind::Connect => Action::Connect,
            Kind::Disconnect => Action::Disconnect,
            Kind::Simple => Action::Simple { sql: self.sql.required(row)? },
            Kind::Copy => Action::Copy {
                sql: self.sql.required(row)?,
                direction: self.copy_direction.parse_required(row, parse_direction)?,
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

    fn bound(&mut self, row: usize) -> Result<Bound, Corruption> {
        Ok(Bound {
            statement: self.statement.required(row)?,
            portal: self.portal.required(row)?,
            sql: self.sql.required(row)?,
            parameters: self.parameters.at(row)?,
        })
    }
}
