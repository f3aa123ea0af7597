//! [`SampleTable`]: creates the table with its index, and its partitions, if they are missing, and
//! drops expired partitions.
//!
//! Partitions are named after the table and their start time, `statsd_samples_p20260301` (hourly:
//! `…_p2026030110`, monthly: `…_p202603`), and only partitions with such names are dropped. A
//! partition is created as a separate table and then attached, so that the table stays readable and
//! writable during the creation. Several servers may share a table: creating partitions takes an
//! advisory lock.

use std::collections::BTreeSet;

use howdah_connect::{Client, QueryError};
use jiff::{Span, Timestamp, Zoned, tz::TimeZone};

use crate::settings::{self, Partition, PostgresCopyFormat};

/// Maximum length of an identifier in PostgreSQL, in bytes (`NAMEDATALEN` − 1).
pub(super) const NAME_BYTES_MAX: usize = 63;
/// Maximum length in bytes of the suffix of a partition's name: `_p` and ten digits.
const SUFFIX_BYTES: usize = 12;

/// The name of a table, with its schema if one is configured.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct TargetTable {
    schema: Option<String>,
    name: String,
}

impl TargetTable {
    /// Parses `table` or `schema.table`; `None` if a part is empty or has a dot, or the table's
    /// name exceeds `bytes_max`.
    pub(super) fn parse(text: &str, bytes_max: usize) -> Option<Self> {
        let (schema, name) = match text.split_once('.') {
            Some((schema, name)) => (Some(schema.to_owned()), name),
            None => (None, text),
        };
        let fits = |name: &str| !name.is_empty() && !name.contains(['.', '\0']);
        let is_valid = fits(name) && name.len() <= bytes_max && schema.as_deref().is_none_or(fits);
        is_valid.then(|| Self { schema, name: name.to_owned() })
    }

    /// Returns the name of another table in the same schema.
    pub(super) fn sibling(&self, name: &str) -> Self {
        Self { schema: self.schema.clone(), name: name.to_owned() }
    }

    pub(super) fn quoted(&self) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quote(schema), quote(&self.name)),
            None => quote(&self.name),
        }
    }

    /// Returns the quoted name with a suffix and without the schema, for an index of the table.
    pub(super) fn quoted_suffix(&self, suffix: &str) -> String {
        quote(&format!("{}{suffix}", self.name))
    }
}

/// The configured table: its name, its COPY statement and the settings of its partitions.
#[derive(Debug)]
pub(super) struct SampleTable {
    /// The COPY statement.
    pub(super) copy: String,
    pub(super) name: TargetTable,
    partition: Partition,
    retention_seconds: f64,
}

impl SampleTable {
    /// Derives the names and the COPY statement from the settings; `None` if the table name is
    /// invalid.
    pub(super) fn new(settings: &settings::PostgresSettings) -> Option<Self> {
        let name = TargetTable::parse(&settings.table, NAME_BYTES_MAX - SUFFIX_BYTES)?;
        let format = match settings.format {
            PostgresCopyFormat::Binary => "binary",
            PostgresCopyFormat::Text => "text",
        };
        let copy = format!(
            "copy {} (time, kind, name, tags, field, value) from stdin (format {format})",
            name.quoted()
        );
        Some(Self {
            copy,
            name,
            partition: settings.partition,
            retention_seconds: settings.retention.as_secs_f64(),
        })
    }

    /// Drops expired partitions, and then creates the table, the partitions that start at the times
    /// in `needed`, and the one after that of `time`, if they are missing.
    ///
    /// A needed partition may be expired: spooled values, or values with timestamps, may be older
    /// than the retention. It exists until the next call.
    pub(super) fn prepare(
        &self,
        client: &mut Client,
        time: i64,
        needed: &BTreeSet<i64>,
    ) -> Result<(), QueryError> {
        let parent = self.name.quoted();
        // Suppresses the notices "already exists, skipping".
        client.query("set client_min_messages = warning")?;
        if self.retention_seconds > 0.0 {
            match self.drop_old(client, &parent, time) {
                // Rows can still be copied; this is retried with the next partition.
                Err(error) if !error.is_fatal() => {
                    tracing::warn!(table = parent, %error, "cannot drop expired partitions");
                }
                dropped => dropped?,
            }
        }
        client.query("begin")?;
        match self.create(client, &parent, time, needed) {
            Ok(()) => client.query("commit").map(drop),
            Err(error) => {
                if !error.is_fatal() {
                    client.query("rollback")?;
                }
                Err(error)
            }
        }
    }

    fn create(
        &self,
        client: &mut Client,
        parent: &str,
        time: i64,
        needed: &BTreeSet<i64>,
    ) -> Result<(), QueryError> {
        let lock = "select pg_advisory_xact_lock(hashtextextended($1, 0))";
        client.query_with(lock, &[Some(&format!("howdah statsd {parent}"))])?;
        let existing = client.query_with("select to_regclass($1)", &[Some(parent)])?;
        if existing.rows.first().is_none_or(|row| row.text(0).is_none()) {
            let index = self.name.quoted_suffix("_name_time_idx");
            client.query(&format!(
                "create table {parent} (
                   time timestamptz not null, kind text not null, name text not null,
                   tags jsonb not null, field text not null, value double precision not null
                 ) partition by range (time);
                 create index {index} on {parent} (name, field, time)"
            ))?;
        }
        let next = self.next_start(&self.partition_start(time));
        let needed = needed.iter().map(|start| self.partition_start(*start));
        for from in needed.chain([next]) {
            self.create_partition(client, parent, &from, &self.next_start(&from))?;
        }
        Ok(())
    }

    fn create_partition(
        &self,
        client: &mut Client,
        parent: &str,
        from: &Zoned,
        to: &Zoned,
    ) -> Result<(), QueryError> {
        let suffix = format!("_p{}", from.strftime(self.name_format()));
        let partition = self.name.sibling(&format!("{}{suffix}", self.name.name)).quoted();
        let attached = "select 1 from pg_inherits
                        where inhparent = to_regclass($1) and inhrelid = to_regclass($2)";
        let partitions = client.query_with(attached, &[Some(parent), Some(&partition)])?;
        if !partitions.rows.is_empty() {
            return Ok(());
        }
        let bound = |time: &Zoned| time.timestamp().to_string();
        client.query("savepoint partition")?;
        let created = client.query(&format!(
            "create table if not exists {partition} (like {parent} including defaults);
             alter table {parent} attach partition {partition} for values from ('{}') to ('{}')",
            bound(from),
            bound(to)
        ));
        match created {
            // The range overlaps a manually created partition, or one created with another
            // partition size.
            Err(QueryError::Sql(error)) if error.sqlstate == "42P17" => {
                client.query("rollback to savepoint partition")?;
                Ok(())
            }
            created => created.map(drop),
        }
    }

    fn drop_old(&self, client: &mut Client, parent: &str, time: i64) -> Result<(), QueryError> {
        let old = "
            select c.oid::regclass from pg_inherits i join pg_class c on c.oid = i.inhrelid
            where i.inhparent = to_regclass($1) and c.relname ~ $2
              and (regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \\(''([^'']+)''\\)'))[1]
                  ::timestamptz <= to_timestamp($3::double precision)";
        let digits = match self.partition {
            Partition::Hour => 10,
            Partition::Day => 8,
            Partition::Month => 6,
        };
        let names = format!("^{}_p[0-9]{{{digits}}}$", escape_regex(&self.name.name));
        let limit = (time as f64 - self.retention_seconds).to_string();
        let expired = client.query_with(old, &[Some(parent), Some(&names), Some(&limit)])?;
        for row in &expired.rows {
            let Some(partition) = row.text(0) else { continue };
            // The partition is first detached concurrently: dropping an attached partition would
            // wait for readers of the table while blocking new ones.
            client.query(&format!(
                "alter table {parent} detach partition {partition} concurrently"
            ))?;
            client.query(&format!("drop table {partition}"))?;
            tracing::info!(%partition, "dropped an expired partition");
        }
        Ok(())
    }

    /// Returns the start of the partition that contains `time`, in seconds since 1970.
    pub(super) fn start_of(&self, time: i64) -> i64 {
        self.partition_start(time).timestamp().as_second()
    }

    /// Returns the start of the partition that contains `time`.
    fn partition_start(&self, time: i64) -> Zoned {
        let time = Timestamp::from_second(time).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = time.to_zoned(TimeZone::UTC);
        let date = match self.partition {
            Partition::Month => time.date().first_of_month(),
            _ => time.date(),
        };
        let hour = if self.partition == Partition::Hour { time.hour() } else { 0 };
        // In UTC every local time exists, so the fallback is never used.
        date.at(hour, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap_or(time)
    }

    /// Returns the start of the partition after the one starting at `start`.
    fn next_start(&self, start: &Zoned) -> Zoned {
        let span = match self.partition {
            Partition::Hour => Span::new().hours(1),
            Partition::Day => Span::new().days(1),
            Partition::Month => Span::new().months(1),
        };
        start.checked_add(span).unwrap_or_else(|_| start.clone())
    }

    fn name_format(&self) -> &'static str {
        match self.partition {
            Partition::Hour => "%Y%m%d%H",
            Partition::Day => "%Y%m%d",
            Partition::Month => "%Y%m",
        }
    }
}

/// Returns a quoted identifier.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// Returns a regular expression that matches `name` literally.
fn escape_regex(name: &str) -> String {
    name.chars().fold(String::new(), |mut pattern, char| {
        if !char.is_alphanumeric() && char != '_' {
            pattern.push('\\');
        }
        pattern.push(char);
        pattern
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(name: &str, partition: Partition) -> Option<SampleTable> {
        SampleTable::new(&settings::PostgresSettings {
            connection: String::new(),
            table: name.to_owned(),
            partition,
            retention: std::time::Duration::ZERO,
            format: PostgresCopyFormat::Text,
            events_table: None,
            checks_table: None,
            spool_bytes: 0,
        })
    }

    #[test]
    fn partitions_start_on_hour_day_or_month() {
        // 2026-12-31 23:45:00 UTC
        let time = 1_798_760_700;
        for (partition, name, next) in [
            (Partition::Hour, "2026123123", "2027010100"),
            (Partition::Day, "20261231", "20270101"),
            (Partition::Month, "202612", "202701"),
        ] {
            let table = table("t", partition).unwrap();
            let start = table.partition_start(time);
            assert_eq!(start.strftime(table.name_format()).to_string(), name);
            assert_eq!(table.next_start(&start).strftime(table.name_format()).to_string(), next);
        }
    }

    #[test]
    fn names_are_quoted() {
        let named = table("My \"schema\".t", Partition::Day).unwrap();
        assert!(named.copy.starts_with("copy \"My \"\"schema\"\"\".\"t\" ("), "{}", named.copy);
        for name in ["", ".", "a.", ".b", "a.b.c", &"x".repeat(52)] {
            assert!(table(name, Partition::Day).is_none(), "{name}");
        }
        assert_eq!(escape_regex("a.b+c_1"), "a\\.b\\+c_1");
    }
}
