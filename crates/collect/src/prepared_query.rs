//! Statements that are prepared once per connection.

use howdah_connect::{Client, QueryError, ResultSet, ValueFormat};

use crate::CollectError;

/// Comment at the end of each statement of this program, by which the view of statements and the
/// recorder omit them: `pg_stat_statements` stores comments.
pub const OWN_COMMENT: &str = " /* howdah */";

/// A statement that is prepared when it first runs.
#[derive(Debug)]
pub(crate) struct PreparedQuery {
    name: &'static str,
    sql: String,
    /// Format in which result columns are requested: text or binary.
    format: ValueFormat,
    is_prepared: bool,
}

impl PreparedQuery {
    /// Creates a statement that is not prepared yet. `name` identifies it on the connection and in
    /// error messages. The statement ends in [`OWN_COMMENT`].
    pub(crate) fn new(name: &'static str, sql: String) -> Self {
        Self { name, sql: sql + OWN_COMMENT, format: ValueFormat::Text, is_prepared: false }
    }

    /// Requests binary results: `bytea` values are then raw bytes, and `text` stays as it is.
    pub(crate) fn with_binary_results(self) -> Self {
        Self { format: ValueFormat::Binary, ..self }
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
            // 26000: a pooler in between moved us to another server, which lacks the prepared
            // statement. 0A000: the result type changed, for instance after an extension upgrade.
            Err(error) if matches!(error.sqlstate(), Some("26000" | "0A000")) => {
                client.query_with_in(self.format, &self.sql, values)
            }
            result => result,
        }
    }
}
