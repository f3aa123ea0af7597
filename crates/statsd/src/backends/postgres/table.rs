//! The table, its index and its partitions: made when missing, dropped when old.
//!
//! Partitions are named after the table and the time they begin at, `statsd_samples_p20260301` (an
//! hour's: `…_p2026030110`, a month's: `…_p202603`), and only partitions of such names are dropped. A
//! partition is made as a table of its own and then attached, which lets others read and write the
//! table meanwhile. Several servers may share a table: who makes a partition holds an advisory lock.

use howdah_connect::{Client, QueryError};
use jiff::{Span, Timestamp, Zoned, tz::TimeZone};

use crate::settings::{self, CopyFormat, Partition};

/// Bytes of a name in PostgreSQL.
const NAME_BYTES_MAX: usize = 63;
/// `_p` and ten digits.
const SUFFIX_BYTES: usize = 12;

/// What is known of the table before it is looked at.
#[derive(Debug)]
pub(super) struct Table {
    /// The statement that takes rows.
    pub(super) copy: String,
    schema: Option<String>,
    name: String,
    partition: Partition,
    retention_seconds: f64,
}

impl Table {
    /// `None` if the name is none.
    pub(super) fn new(settings: &settings::Postgres) -> Option<Self> {
        let (schema, name) = match settings.table.split_once('.') {
            Some((schema, name)) => (Some(schema.to_owned()), name),
            None => (None, settings.table.as_str()),
        };
        let fits = |name: &str| !name.is_empty() && !name.contains(['.', '\0']);
        if !fits(name)
            || name.len() > NAME_BYTES_MAX - SUFFIX_BYTES
            || schema.as_deref().is_some_and(|schema| !fits(schema))
        {
            return None;
        }
        let mut table = Self {
            copy: String::new(),
            schema,
            name: name.to_owned(),
            partition: settings.partition,
            retention_seconds: settings.retention.as_secs_f64(),
        };
        let format = match settings.format {
            CopyFormat::Binary => "binary",
            CopyFormat::Text => "text",
        };
        table.copy = format!(
            "copy {} (time, kind, name, tags, field, value) from stdin (format {format})",
            table.quoted(&table.name)
        );
        Some(table)
    }

    /// Makes the table and the partitions for `time` and for the one after, drops those that are too
    /// old. Gives the second at which this is to be done again: the end of the present partition.
    pub(super) fn prepare(&self, client: &mut Client, time: i64) -> Result<i64, QueryError> {
        let parent = self.quoted(&self.name);
        // Notices of "already exists, skipping" are no news.
        client.query("set client_min_messages = warning")?;
        client.query("begin")?;
        let made = self.make(client, &parent, time);
        let end = match made {
            Ok(end) => {
                client.query("commit")?;
                end
            }
            Err(error) => {
                if !error.is_fatal() {
                    client.query("rollback")?;
                }
                return Err(error);
            }
        };
        if self.retention_seconds > 0.0 {
            match self.drop_old(client, &parent, time) {
                // Rows can be copied all the same; it is tried again with the next partition.
                Err(error) if !error.is_fatal() => {
                    tracing::warn!(table = parent, %error, "old partitions cannot be dropped");
                }
                dropped => dropped?,
            }
        }
        Ok(end)
    }

    fn make(&self, client: &mut Client, parent: &str, time: i64) -> Result<i64, QueryError> {
        let lock = "select pg_advisory_xact_lock(hashtextextended($1, 0))";
        client.query_with(lock, &[Some(&format!("howdah statsd {parent}"))])?;
        let known = client.query_with("select to_regclass($1)", &[Some(parent)])?;
        if known.rows.first().is_none_or(|row| row.text(0).is_none()) {
            let index = quote(&format!("{}_name_time_idx", self.name));
            client.query(&format!(
                "create table {parent} (
                   time timestamptz not null, kind text not null, name text not null,
                   tags jsonb not null, field text not null, value double precision not null
                 ) partition by range (time);
                 create index {index} on {parent} (name, field, time)"
            ))?;
        }
        let start = self.start(time);
        let middle = self.after(&start);
        let end = self.after(&middle);
        for (from, to) in [(&start, &middle), (&middle, &end)] {
            self.make_partition(client, parent, from, to)?;
        }
        Ok(middle.timestamp().as_second())
    }

    fn make_partition(
        &self,
        client: &mut Client,
        parent: &str,
        from: &Zoned,
        to: &Zoned,
    ) -> Result<(), QueryError> {
        let partition = self.quoted(&format!("{}_p{}", self.name, from.strftime(self.pattern())));
        let attached = "select 1 from pg_inherits
                        where inhparent = to_regclass($1) and inhrelid = to_regclass($2)";
        let found = client.query_with(attached, &[Some(parent), Some(&partition)])?;
        if !found.rows.is_empty() {
            return Ok(());
        }
        let bound = |time: &Zoned| time.timestamp().to_string();
        client.query("savepoint partition")?;
        let made = client.query(&format!(
            "create table if not exists {partition} (like {parent} including defaults);
             alter table {parent} attach partition {partition} for values from ('{}') to ('{}')",
            bound(from),
            bound(to)
        ));
        match made {
            // Somebody's own partition, or one from when partitions were larger, holds that time.
            Err(QueryError::Sql(error)) if error.sqlstate == "42P17" => {
                client.query("rollback to savepoint partition")?;
                Ok(())
            }
            made => made.map(drop),
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
        let names = format!("^{}_p[0-9]{{{digits}}}$", pattern_of(&self.name));
        let limit = (time as f64 - self.retention_seconds).to_string();
        let found = client.query_with(old, &[Some(parent), Some(&names), Some(&limit)])?;
        for row in &found.rows {
            let Some(partition) = row.text(0) else { continue };
            // Detached first, and concurrently, so that dropping never waits behind readers of the
            // table while others wait behind it.
            client.query(&format!(
                "alter table {parent} detach partition {partition} concurrently"
            ))?;
            client.query(&format!("drop table {partition}"))?;
            tracing::info!(%partition, "dropped a partition that was too old");
        }
        Ok(())
    }

    /// When the partition of that second begins.
    fn start(&self, time: i64) -> Zoned {
        let time = Timestamp::from_second(time).unwrap_or(Timestamp::UNIX_EPOCH);
        let time = time.to_zoned(TimeZone::UTC);
        let date = match self.partition {
            Partition::Month => time.date().first_of_month(),
            _ => time.date(),
        };
        let hour = if self.partition == Partition::Hour { time.hour() } else { 0 };
        // UTC has every hour of every day.
        date.at(hour, 0, 0, 0).to_zoned(TimeZone::UTC).unwrap_or(time)
    }

    /// When the next one begins.
    fn after(&self, start: &Zoned) -> Zoned {
        let span = match self.partition {
            Partition::Hour => Span::new().hours(1),
            Partition::Day => Span::new().days(1),
            Partition::Month => Span::new().months(1),
        };
        start.checked_add(span).unwrap_or_else(|_| start.clone())
    }

    fn pattern(&self) -> &'static str {
        match self.partition {
            Partition::Hour => "%Y%m%d%H",
            Partition::Day => "%Y%m%d",
            Partition::Month => "%Y%m",
        }
    }

    fn quoted(&self, name: &str) -> String {
        match &self.schema {
            Some(schema) => format!("{}.{}", quote(schema), quote(name)),
            None => quote(name),
        }
    }
}

/// An identifier in quotes.
fn quote(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

/// A regular expression for exactly this text.
fn pattern_of(name: &str) -> String {
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

    fn table(name: &str, partition: Partition) -> Option<Table> {
        Table::new(&settings::Postgres {
            connection: String::new(),
            table: name.to_owned(),
            partition,
            retention: std::time::Duration::ZERO,
            format: CopyFormat::Text,
            spool_bytes: 0,
        })
    }

    #[test]
    fn partitions_begin_on_the_hour_the_day_or_the_month() {
        // 2026-12-31 23:45:00 UTC
        let time = 1_798_760_700;
        for (partition, name, next) in [
            (Partition::Hour, "2026123123", "2027010100"),
            (Partition::Day, "20261231", "20270101"),
            (Partition::Month, "202612", "202701"),
        ] {
            let table = table("t", partition).unwrap();
            let start = table.start(time);
            assert_eq!(start.strftime(table.pattern()).to_string(), name);
            assert_eq!(table.after(&start).strftime(table.pattern()).to_string(), next);
        }
    }

    #[test]
    fn names_are_quoted() {
        let named = table("My \"schema\".t", Partition::Day).unwrap();
        assert!(named.copy.starts_with("copy \"My \"\"schema\"\"\".\"t\" ("), "{}", named.copy);
        for name in ["", ".", "a.", ".b", "a.b.c", &"x".repeat(52)] {
            assert!(table(name, Partition::Day).is_none(), "{name}");
        }
        assert_eq!(pattern_of("a.b+c_1"), "a\\.b\\+c_1");
    }
}
