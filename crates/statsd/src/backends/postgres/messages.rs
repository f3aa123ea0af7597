//! [`MessageTables`]: the tables of events and service checks.
//!
//! ```sql
//! create table statsd_events (
//!   time timestamptz not null, received timestamptz not null, host text, title text not null,
//!   text text not null, aggregation_key text, priority text not null, source_type text,
//!   alert_type text not null, tags jsonb not null
//! );
//! create table statsd_service_checks (
//!   time timestamptz not null, received timestamptz not null, host text, name text not null,
//!   status text not null, message text, tags jsonb not null
//! );
//! ```
//!
//! Both are created with an index on `time` before the first row is inserted. They are not
//! partitioned, because messages are rare compared with values and senders choose their times; rows
//! are deleted once they are older than the retention. A batch is a JSON array.

use howdah_connect::{Client, QueryError};

use super::table::{NAME_BYTES_MAX, TargetTable};
use crate::{
    backends::{
        messages,
        outbox::{BatchContent, BatchSink, ValueBatch},
    },
    flush::{MessageContent, ReceivedMessage},
    js::{self, JsValue, Spacing},
    settings,
};

/// Approximate size of a batch in bytes.
const BATCH_BYTES: usize = 1 << 20;

/// The tables of events and service checks; each `None` if it is turned off.
#[derive(Debug)]
pub(super) struct MessageTables {
    events: Option<MessageTable>,
    checks: Option<MessageTable>,
    retention_seconds: f64,
}

#[derive(Debug)]
struct MessageTable {
    quoted: String,
    create: String,
    insert: String,
}

/// A column that both tables have, or that is specific to one: the name and its type with
/// constraints.
type MessageColumn = (&'static str, &'static str);

const EVENT_COLUMNS: &[MessageColumn] = &[
    ("title", "text not null"),
    ("text", "text not null"),
    ("aggregation_key", "text"),
    ("priority", "text not null"),
    ("source_type", "text"),
    ("alert_type", "text not null"),
];
const CHECK_COLUMNS: &[MessageColumn] =
    &[("name", "text not null"), ("status", "text not null"), ("message", "text")];

impl MessageTables {
    /// Derives the names and statements from the settings.
    ///
    /// # Errors
    ///
    /// The name of a table that is invalid.
    pub(super) fn new(
        settings: &settings::PostgresSettings,
        values: &TargetTable,
    ) -> Result<Self, String> {
        let table = |name: &Option<String>, default: &str, columns| match name.as_deref() {
            Some("") => Ok(None),
            Some(name) => match TargetTable::parse(name, NAME_BYTES_MAX - INDEX_SUFFIX.len()) {
                Some(name) => Ok(Some(MessageTable::new(&name, columns))),
                None => Err(name.to_owned()),
            },
            None => Ok(Some(MessageTable::new(&values.sibling(default), columns))),
        };
        Ok(Self {
            events: table(&settings.events_table, "statsd_events", EVENT_COLUMNS)?,
            checks: table(&settings.checks_table, "statsd_service_checks", CHECK_COLUMNS)?,
            retention_seconds: settings.retention.as_secs_f64(),
        })
    }

    /// Whether there is a table.
    pub(super) fn is_used(&self) -> bool {
        self.events.is_some() || self.checks.is_some()
    }

    /// Encodes the messages that have a table.
    pub(super) fn encode(&self, messages: &[ReceivedMessage], sink: BatchSink<'_>) {
        for (content, table) in
            [(BatchContent::Events, &self.events), (BatchContent::Checks, &self.checks)]
        {
            if table.is_none() {
                continue;
            }
            let (mut body, mut values) = (String::new(), 0);
            for message in messages.iter().filter(|message| content_of(message) == content) {
                body.push(if body.is_empty() { '[' } else { ',' });
                body += &js::json(&without_type(messages::document(message)), Spacing::Compact);
                values += 1;
                if body.len() >= BATCH_BYTES {
                    body.push(']');
                    let bytes = std::mem::take(&mut body).into_bytes();
                    sink(ValueBatch { bytes, values: std::mem::take(&mut values), content });
                }
            }
            if !body.is_empty() {
                body.push(']');
                sink(ValueBatch { bytes: body.into_bytes(), values, content });
            }
        }
    }

    /// Creates the tables if they are missing, and deletes rows older than the retention.
    pub(super) fn prepare(&self, client: &mut Client, now: i64) -> Result<(), QueryError> {
        for table in [&self.events, &self.checks].into_iter().flatten() {
            client.query("set client_min_messages = warning")?;
            client.query("begin")?;
            let created = client
                .query_with(
                    "select pg_advisory_xact_lock(hashtextextended($1, 0))",
                    &[Some(&format!("howdah statsd {}", table.quoted))],
                )
                .and_then(|_| client.query(&table.create));
            if let Err(error) = created {
                if !error.is_fatal() {
                    client.query("rollback")?;
                }
                return Err(error);
            }
            client.query("commit")?;
            if self.retention_seconds > 0.0 {
                let limit = (now as f64 - self.retention_seconds).to_string();
                client.query_with(
                    &format!(
                        "delete from {} where received < to_timestamp($1::double precision)",
                        table.quoted
                    ),
                    &[Some(&limit)],
                )?;
            }
        }
        Ok(())
    }

    /// Inserts the rows of a batch.
    pub(super) fn insert(&self, client: &mut Client, batch: &ValueBatch) -> Result<(), QueryError> {
        let table = match batch.content {
            BatchContent::Values => None,
            BatchContent::Events => self.events.as_ref(),
            BatchContent::Checks => self.checks.as_ref(),
        };
        let Some(table) = table else { return Ok(()) };
        let documents = String::from_utf8_lossy(&batch.bytes);
        client.query_with(&table.insert, &[Some(&documents)]).map(drop)
    }
}

/// The end of an index's name.
const INDEX_SUFFIX: &str = "_time_idx";

impl MessageTable {
    fn new(name: &TargetTable, columns: &[MessageColumn]) -> Self {
        let quoted = name.quoted();
        let definitions: Vec<String> =
            columns.iter().map(|(name, kind)| format!("{name} {kind}")).collect();
        let index = name.quoted_suffix(INDEX_SUFFIX);
        let create = format!(
            "create table if not exists {quoted} (
               time timestamptz not null, received timestamptz not null, host text, {},
               tags jsonb not null
             );
             create index if not exists {index} on {quoted} (time)",
            definitions.join(", ")
        );
        let names: Vec<&str> = columns.iter().map(|(name, _)| *name).collect();
        let (names, fields) = (names.join(", "), names.join(" text, "));
        let insert = format!(
            "insert into {quoted} (time, received, host, {names}, tags)
             select to_timestamp(time), to_timestamp(received), host, {names}, tags
             from jsonb_to_recordset($1::jsonb) as message (
               time double precision, received double precision, host text, {fields} text,
               tags jsonb
             )"
        );
        Self { quoted, create, insert }
    }
}

fn content_of(message: &ReceivedMessage) -> BatchContent {
    match message.content {
        MessageContent::Event { .. } => BatchContent::Events,
        MessageContent::Check { .. } => BatchContent::Checks,
    }
}

/// Removes the field that the table implies.
fn without_type(document: JsValue) -> JsValue {
    match document {
        JsValue::Object(mut fields) => {
            fields.retain(|(name, _)| &**name != "type");
            JsValue::Object(fields)
        }
        other => other,
    }
}
