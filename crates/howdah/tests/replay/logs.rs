//! A builder of server logs.

use std::fmt::Write as _;

/// A log in stderr format with `log_line_prefix = '%m [%p] %q%u@%d '`.
pub(crate) struct LogBuilder {
    user: String,
    database: String,
    pub(crate) text: String,
}

impl LogBuilder {
    /// An empty log of sessions of `postgres` in this database.
    pub(crate) fn new(database: &str) -> Self {
        Self { user: "postgres".to_owned(), database: database.to_owned(), text: String::new() }
    }

    /// Sets the role of the lines that follow.
    pub(crate) fn user(&mut self, user: &str) -> &mut Self {
        user.clone_into(&mut self.user);
        self
    }

    /// A line of session `pid`, `millis` milliseconds after ten o'clock.
    pub(crate) fn line(&mut self, millis: u64, pid: u32, message: &str) -> &mut Self {
        let Self { user, database, text } = self;
        let (seconds, millis) = (millis / 1000, millis % 1000);
        let (minutes, seconds) = (seconds / 60, seconds % 60);
        let message = message.replace('\n', "\n\t");
        writeln!(
            text,
            "2026-11-20 10:{minutes:02}:{seconds:02}.{millis:03} UTC [{pid}] {user}@{database} {message}"
        )
        .unwrap();
        self
    }

    pub(crate) fn connect(&mut self, millis: u64, pid: u32) -> &mut Self {
        let message =
            format!("LOG:  connection authorized: user={} database={}", self.user, self.database);
        self.line(millis, pid, &message)
    }

    pub(crate) fn disconnect(&mut self, millis: u64, pid: u32) -> &mut Self {
        let message = format!(
            "LOG:  disconnection: session time: 0:00:01.000 user={} database={} host=[local]",
            self.user, self.database
        );
        self.line(millis, pid, &message)
    }

    /// A simple query.
    pub(crate) fn query(&mut self, millis: u64, pid: u32, sql: &str) -> &mut Self {
        self.line(millis, pid, &format!("LOG:  statement: {sql}"))
    }

    /// An Execute; `name` is `s1`, `S_1/C_2` or `<unnamed>`. No `DETAIL` without values.
    pub(crate) fn execute(
        &mut self,
        millis: u64,
        pid: u32,
        name: &str,
        sql: &str,
        values: &str,
    ) -> &mut Self {
        self.line(millis, pid, &format!("LOG:  execute {name}: {sql}"));
        if !values.is_empty() {
            self.line(millis, pid, &format!("DETAIL:  parameters: {values}"));
        }
        self
    }

    /// A session's connect and its simple queries, one per millisecond.
    pub(crate) fn session(&mut self, pid: u32, statements: &[&str]) -> &mut Self {
        self.connect(0, pid);
        for (millis, sql) in (1..).zip(statements) {
            self.query(millis, pid, sql);
        }
        self
    }
}
