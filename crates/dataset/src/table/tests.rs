//! Checks the tables against their documentation.

use std::{fs::File, path::Path, sync::Arc};

use arrow_array::{
    ArrayRef, Int64Array, ListArray, RecordBatch, StringArray, TimestampMicrosecondArray,
    new_empty_array, new_null_array, types::Int32Type,
};
use arrow_schema::DataType;
use howdah_traffic::{Action, Bound, CapturedOutcome, Event, Parameter, Source, Timestamp};
use parquet::{
    arrow::ArrowWriter,
    file::{
        metadata::KeyValue,
        properties::{EnabledStatistics, WriterProperties},
    },
};

use super::{FORMAT_KEY, TableFile, TableRecord, VERSION_KEY};
use crate::{
    CaptureSettings, CaptureWriter, ReplayOutcome, StatementInfo,
    capture::StoredEvent,
    columns::{StoredType, stored_schema},
    kind::DatasetKind,
};

const PAGE: &str = include_str!("../../../../docs/src/reference/capture-format.md");

/// Returns `column`, `type` and `null` of each row of the documented table that follows the line
/// with the file names.
fn described(files: &str) -> Vec<(String, String, bool)> {
    let (_, after) = PAGE.split_once(&format!("\n`{files}`: ")).expect("the page names the files");
    after
        .lines()
        .skip_while(|line| !line.starts_with("|---"))
        .skip(1)
        .take_while(|line| line.starts_with('|'))
        .map(|line| {
            let cells: Vec<&str> = line.split('|').map(str::trim).collect();
            (cells[1].trim_matches('`').to_owned(), cells[2].to_owned(), cells[3] != "never")
        })
        .collect()
}

fn declared<R: TableRecord>() -> Vec<(String, String, bool)> {
    let word = |shape| match shape {
        StoredType::Int64 => "int64",
        StoredType::Time => "timestamp",
        StoredType::Text => "text",
        StoredType::Bytes => "bytes",
        StoredType::TextList => "list of text",
        StoredType::BytesList => "list of bytes",
        StoredType::Int32List => "list of int32",
    };
    let columns = R::COLUMNS.iter();
    columns
        .map(|one| (one.name.to_owned(), word(one.column_type).to_owned(), one.is_nullable))
        .collect()
}

#[test]
fn page_describes_every_column() {
    assert_eq!(described("events-*.parquet"), declared::<StoredEvent>());
    assert_eq!(described("outcomes-*.parquet"), declared::<ReplayOutcome>());
    assert_eq!(described("statements-*.parquet"), declared::<StatementInfo>());
}

fn execution(parameters: Vec<Parameter>) -> Event {
    let bound = Bound {
        statement: "".into(),
        portal: "".into(),
        sql: "select 1".into(),
        parameters: Some(parameters),
    };
    Event {
        time: Timestamp::from_micros(0),
        session: "s".into(),
        user: "u".into(),
        database: "d".into(),
        application: "".into(),
        action: Action::Execute(bound),
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

/// Returns the event of a file, and the names of the columns that were decoded.
fn read(path: &Path) -> (Event, Vec<&'static str>) {
    let file = TableFile::<StoredEvent>::open(path, DatasetKind::Capture).unwrap();
    let decoded = file.columns_with_values(0);
    let names = decoded.into_iter().map(|index| StoredEvent::COLUMNS[index].name).collect();
    let stored = file.read(0).unwrap().next().unwrap().unwrap();
    (*stored.event, names)
}

#[test]
fn columns_without_values_are_not_decoded() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer =
        CaptureWriter::create(&dir.path().join("capture"), CaptureSettings::default()).unwrap();
    let event = execution(vec![Parameter::Null]);
    writer.write(&event).unwrap();
    writer.finish(serde_json::Value::Null).unwrap();
    let (read, decoded) = read(&dir.path().join("capture/events-000001.parquet"));
    assert_eq!(read, event);
    let expected = ["sequence", "time", "session", "kind", "user", "database"];
    let expected = [&expected[..], &["statement", "portal", "sql", "parameters", "source"]];
    assert_eq!(decoded, expected.concat());
}

/// Other programs count an empty list as null in their statistics.
#[test]
fn empty_list_of_another_program_is_not_null() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("events-000001.parquet");
    let event = execution(Vec::new());
    let text = |text: &str| Arc::new(StringArray::from(vec![text])) as ArrayRef;
    let schema = stored_schema(StoredEvent::COLUMNS);
    let columns =
        schema.fields().iter().map(|field| match (field.name().as_str(), field.data_type()) {
            ("sequence", _) => Arc::new(Int64Array::from(vec![0])) as ArrayRef,
            ("time", _) => Arc::new(TimestampMicrosecondArray::from(vec![0]).with_timezone("UTC")),
            ("session", _) => text(&event.session),
            ("kind", _) => text("execute"),
            ("source", _) => text("statement"),
            ("user", _) => text("u"),
            ("database", _) => text("d"),
            ("application" | "statement" | "portal", _) => text(""),
            ("sql", _) => text("select 1"),
            ("parameters", DataType::List(entry)) => {
                let offsets = ListArray::from_iter_primitive::<Int32Type, _, _>([Some([None; 0])])
                    .offsets()
                    .clone();
                let entries = new_empty_array(entry.data_type());
                Arc::new(ListArray::new(entry.clone(), offsets, entries, None))
            }
            (_, data_type) => new_null_array(data_type, 1),
        });
    let batch = RecordBatch::try_new(schema.clone(), columns.collect()).unwrap();
    let kind = DatasetKind::Capture;
    let properties = WriterProperties::builder()
        .set_created_by("another program".to_owned())
        .set_statistics_enabled(EnabledStatistics::Chunk)
        .set_key_value_metadata(Some(vec![
            KeyValue::new(FORMAT_KEY.to_owned(), kind.format().to_owned()),
            KeyValue::new(VERSION_KEY.to_owned(), kind.version().to_string()),
        ]));
    let file = File::create(&path).unwrap();
    let mut writer = ArrowWriter::try_new(file, schema, Some(properties.build())).unwrap();
    writer.write(&batch).unwrap();
    writer.close().unwrap();
    assert_eq!(read(&path).0, event);
}
