//! A statement that is planned once per connection.

use howdah_connect::{Client, Format, QueryError, ResultSet};

use crate::CollectError;

/// A statement, prepared when it first runs.
#[derive(Debug)]
pub(crate) struct Prepared {
    name: &'static str,
    sql: String,
    /// Of the columns of its result.
    format: Format,
    is_prepared: bool,
}

impl Prepared {
    /// `name`: of the statement on its connection, and of what is read in messages.
    pub(crate) fn new(name: &'static str, sql: String) -> Self {
        Self { name, sql, format: Format::Text, is_prepared: false }
    }

    /// The same with its result in binary form: `bytea` then are the bytes themselves, and `text` as ever.
    pub(crate) fn in_binary(self) -> Self {
        Self { format: Format::Binary, ..self }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) fn run(
        &mut self,
        client: &mut Client,
        values: &[Option<&str>],
    ) -> Result<ResultSet, CollectError> {
        self.try_run(client, values).map_err(CollectError::query(self.name))
    }

    fn try_run(
        &mut self,
        client: &mut Client,
        values: &[Option<&str>],
    ) -> Result<ResultSet, QueryError> {
        if !self.is_prepared {
            client.prepare(self.name, &self.sql)?;
            self.is_prepared = true;
        }
        match client.query_prepared_in(self.format, self.name, values) {
            // Unknown: a pooler between us has given us another server. Changed: what it reads has new
            // columns, an extension was upgraded.
            Err(error) if matches!(error.sqlstate(), Some("26000" | "0A000")) => {
                client.query_with_in(self.format, &self.sql, values)
            }
            result => result,
        }
    }
}
