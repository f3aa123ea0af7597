//! Stores a statement as a row, with the columns of `statements-*.parquet`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use howdah_traffic::Text;

use super::{StatementInfo, fingerprint_from_text, fingerprint_text};
use crate::{
    columns::{
        Column, ParameterListReader, StoredType, StringReader, TextPairReader, non_empty,
        parameter_bytes, parameters, strings, texts,
    },
    error::Corruption,
    table::{Encode, TableRecord},
};

impl TableRecord for StatementInfo {
    const FILE_PREFIX: &'static str = "statements";
    const COLUMNS: &'static [Column] = &[
        Column::required("fingerprint", StoredType::Text),
        Column::required("query", StoredType::Text),
        Column::required("example_sql", StoredType::Text),
        Column::optional("example_sql_bytes", StoredType::Bytes),
        Column::optional("example_parameters", StoredType::TextList),
        Column::optional("example_parameters_bytes", StoredType::BytesList),
        Column::optional("example_parameters_truncated", StoredType::Int32List),
        Column::optional("user", StoredType::Text),
        Column::optional("database", StoredType::Text),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Corruption> {
        let fingerprint = StringReader::<Text>::new(batch, "fingerprint");
        let query = StringReader::<Text>::new(batch, "query");
        let mut example_sql = TextPairReader::new(batch, "example_sql", "example_sql_bytes");
        let example_parameters = ParameterListReader::new(
            batch,
            ["example_parameters", "example_parameters_bytes", "example_parameters_truncated"],
        );
        let mut user = StringReader::<Arc<str>>::new(batch, "user");
        let mut database = StringReader::<Arc<str>>::new(batch, "database");
        let statement = |row| {
            Ok(Self {
                fingerprint: fingerprint.parse_required(row, fingerprint_from_text)?,
                query: query.text(row).unwrap_or_default().to_owned(),
                example_sql: example_sql.required(row)?,
                example_parameters: example_parameters.at(row)?,
                user: user.at(row).unwrap_or_default(),
                database: database.at(row).unwrap_or_default(),
            })
        };
        (0..batch.num_rows()).map(statement).collect()
    }
}

impl Encode for StatementInfo {
    fn encode(rows: &[Self]) -> Vec<ArrayRef> {
        let fingerprints: Vec<String> =
            rows.iter().map(|row| fingerprint_text(row.fingerprint)).collect();
        let [sql, sql_bytes] = texts(rows.iter().map(|row| Some(&row.example_sql)));
        let [values, values_bytes, values_truncated] =
            parameters(rows.iter().map(|row| row.example_parameters.as_deref()));
        vec![
            strings(fingerprints.iter().map(|text| Some(text.as_str()))),
            strings(rows.iter().map(|row| Some(row.query.as_str()))),
            sql,
            sql_bytes,
            values,
            values_bytes,
            values_truncated,
            strings(rows.iter().map(|row| non_empty(&row.user))),
            strings(rows.iter().map(|row| non_empty(&row.database))),
        ]
    }

    fn text_bytes(&self) -> usize {
        self.query.len()
            + self.example_sql.len()
            + parameter_bytes(self.example_parameters.as_ref())
            + self.user.len()
            + self.database.len()
    }
}
