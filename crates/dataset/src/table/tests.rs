//! Checks the tables against their documentation.

use super::TableRecord;
use crate::{ReplayOutcome, StatementInfo, capture::StoredEvent, columns::StoredType};

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
