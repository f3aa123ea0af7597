//! SHOW STATS, STATS_TOTALS and STATS_AVERAGES: totals and averages by database. SHOW TOTALS: the
//! same over all databases.

use std::{collections::BTreeMap, time::Duration};

use howdah_pool_core::{PoolStats, micros};

use super::{
    super::snapshot::{PoolView, PoolerSnapshot},
    CellValue,
    ColumnType::{self, Numeric, Text},
    ShowColumn,
    peers::ADMIN_DATABASE,
};

/// The columns that a table has: totals, averages, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StatColumns {
    Totals,
    Averages,
    Both,
}

/// The divisor of a count's average over a period.
enum Average {
    /// The length of the period in seconds.
    Second,
    /// Another count, such as the number of transactions.
    Each(fn(&PoolStats) -> u64),
}

/// A count, with its column name in each table.
struct StatCounter {
    in_stats: &'static str,
    average_in_stats: &'static str,
    in_totals: &'static str,
    in_averages: &'static str,
    in_list: &'static str,
    average_in_list: &'static str,
    value: fn(&PoolStats) -> u64,
    average: Average,
}

macro_rules! counter {
    ($name:literal, $value:expr, $average:expr) => {
        counter!($name, $name, $name, $name, $name, $value, $average)
    };
    ($total:literal, $avg:literal, $in_totals:literal, $in_averages:literal, $list:literal,
     $value:expr, $average:expr) => {
        StatCounter {
            in_stats: concat!("total_", $total),
            average_in_stats: concat!("avg_", $avg),
            in_totals: $in_totals,
            in_averages: $in_averages,
            in_list: concat!("total_", $list),
            average_in_list: concat!("avg_", $list),
            value: $value,
            average: $average,
        }
    };
    // Columns that PgBouncer added later have the same average name in all tables but TOTALS.
    (new $name:literal, $avg:literal, $list:literal, $value:expr) => {
        counter!($name, $name, $name, $avg, $list, $value, Average::Second)
    };
}

const COUNTERS: &[StatCounter] = &[
    counter!("server_assignment_count", |it| it.assignments, Average::Second),
    counter!("xact_count", |it| it.transactions, Average::Second),
    counter!("query_count", |it| it.queries, Average::Second),
    counter!(
        "received",
        "recv",
        "bytes_received",
        "bytes_received",
        "client_bytes",
        |it| it.client_bytes,
        Average::Second
    ),
    counter!(
        "sent",
        "sent",
        "bytes_sent",
        "bytes_sent",
        "server_bytes",
        |it| it.server_bytes,
        Average::Second
    ),
    counter!(
        "xact_time",
        |it| micros(it.transaction_time.total()),
        Average::Each(|it| it.transactions)
    ),
    counter!("query_time", |it| micros(it.query_time.total()), Average::Each(|it| it.queries)),
    counter!("wait_time", |it| micros(it.wait_time.total()), Average::Second),
    counter!(new "client_parse_count", "avg_client_parse_count", "ps_client_parse_count", |it| it.client_parses),
    counter!(new "server_parse_count", "avg_server_parse_count", "ps_server_parse_count", |it| it.server_parses),
    counter!(new "bind_count", "avg_bind_count", "ps_bind_count", |it| it.binds),
    counter!(new "client_login_count", "avg_client_login_count", "client_login_count", |it| it.logins),
];

pub(super) const TOTALS: &[(&str, ColumnType)] = &[("name", Text), ("value", Numeric)];

pub(super) fn columns(which: StatColumns) -> Vec<ShowColumn> {
    let columns_named = |name: fn(&StatCounter) -> &'static str| {
        COUNTERS.iter().map(move |counter| ShowColumn { name: name(counter), kind: Numeric })
    };
    let mut columns = vec![ShowColumn { name: "database", kind: Text }];
    match which {
        StatColumns::Totals => columns.extend(columns_named(|it| it.in_totals)),
        StatColumns::Averages => columns.extend(columns_named(|it| it.in_averages)),
        StatColumns::Both => {
            columns.extend(columns_named(|it| it.in_stats));
            columns.extend(columns_named(|it| it.average_in_stats));
        }
    }
    columns
}

/// Sums of the counts of several pools, in total and over the last complete period, with the length
/// of that period.
#[derive(Default)]
struct StatTotals {
    all: PoolStats,
    last: PoolStats,
    period: Duration,
}

impl StatTotals {
    fn add(&mut self, pool: &PoolView) {
        self.all += &pool.tally;
        if let Some((last, period)) = &pool.last_period {
            self.last += last;
            self.period = self.period.max(*period);
        }
    }

    fn totals(&self) -> impl Iterator<Item = CellValue> {
        COUNTERS.iter().map(|counter| (counter.value)(&self.all).into())
    }

    fn averages(&self) -> impl Iterator<Item = CellValue> {
        COUNTERS.iter().map(|counter| {
            let value = (counter.value)(&self.last);
            let average = match counter.average {
                Average::Second => {
                    u128::from(value) * 1_000_000 / self.period.as_micros().max(1_000_000)
                }
                Average::Each(of) => u128::from(value / of(&self.last).max(1)),
            };
            average.into()
        })
    }
}

pub(super) fn rows(view: &PoolerSnapshot, which: StatColumns) -> Vec<Vec<CellValue>> {
    let mut sums: BTreeMap<&str, StatTotals> = BTreeMap::new();
    let commands = view.admin_commands;
    let console = PoolStats { transactions: commands, queries: commands, ..PoolStats::default() };
    sums.entry(ADMIN_DATABASE).or_default().all = console;
    for (database, tally) in &view.removed {
        if let Some(database) = database {
            sums.entry(database).or_default().all += tally;
        }
    }
    for pool in view.pools.iter().filter(|pool| pool.is_owner()) {
        sums.entry(&pool.database).or_default().add(pool);
    }
    let row = |(database, sum): (&str, StatTotals)| {
        let mut row = vec![database.into()];
        if which != StatColumns::Averages {
            row.extend(sum.totals());
        }
        if which != StatColumns::Totals {
            row.extend(sum.averages());
        }
        row
    };
    sums.into_iter().map(row).collect()
}

/// Returns the sums over all databases, one row per count.
pub(super) fn totals(view: &PoolerSnapshot) -> Vec<Vec<CellValue>> {
    let mut sum = StatTotals::default();
    view.removed.iter().for_each(|(_, tally)| sum.all += tally);
    view.pools.iter().filter(|pool| pool.is_owner()).for_each(|pool| sum.add(pool));
    let names =
        |name: fn(&StatCounter) -> &'static str| COUNTERS.iter().map(move |it| name(it).into());
    let totals = names(|it| it.in_list).zip(sum.totals());
    let averages = names(|it| it.average_in_list).zip(sum.averages());
    totals.chain(averages).map(|(name, value)| vec![name, value]).collect()
}
