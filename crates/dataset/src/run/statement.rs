//! A statement as a row: the columns of `statements-*.parquet`.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use howdah_traffic::Text;

use super::{Statement, fingerprint_from_text, fingerprint_text};
use crate::{
    columns::{
        Column, ParameterLists, Shape, Strings, Texts, known, parameter_bytes, parameters, strings,
        texts,
    },
    error::Damage,
    table::{Encode, Record},
};

impl Record for Statement {
    const STEM: &'static str = "statements";
    const COLUMNS: &'static [Column] = &[
        Column::required("fingerprint", Shape::Text),
        Column::required("query", Shape::Text),
        Column::required("example_sql", Shape::Text),
        Column::optional("example_sql_bytes", Shape::Bytes),
        Column::optional("example_parameters", Shape::TextList),
        Column::optional("example_parameters_bytes", Shape::BytesList),
        Column::optional("example_parameters_truncated", Shape::Int32List),
        Column::optional("user", Shape::Text),
        Column::optional("database", Shape::Text),
    ];

    fn decode(batch: &RecordBatch) -> Result<Vec<Self>, Damage> {
        let fingerprint = Strings::<Text>::of(batch, "fingerprint");
        let query = Strings::<Text>::of(batch, "query");
        let mut example_sql = Texts::of(batch, "example_sql", "example_sql_bytes");
        let example_parameters = ParameterLists::of(
            batch,
            ["example_parameters", "example_parameters_bytes", "example_parameters_truncated"],
        );
        let mut user = Strings::<Arc<str>>::of(batch, "user");
        let mut database = Strings::<Arc<str>>::of(batch, "database");
        let statement = |row| {
            Ok(Self {
                fingerprint: fingerprint.required_word(row, fingerprint_from_text)?,
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

impl Encode for Statement {
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
            strings(rows.iter().map(|row| known(&row.user))),
            strings(rows.iter().map(|row| known(&row.database))),
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
