//! SHOW STATS and what is like it: what was counted, by database.

use std::{collections::BTreeMap, time::Duration};

use super::{
    super::view::{PoolView, View},
    Column,
    Kind::{self, Numeric, Text},
    Value,
};
use crate::tally::{Tally, micros};

/// Which numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Totals,
    Averages,
    Both,
}

/// What the average over a period is of.
enum Average {
    /// A second.
    Second,
    /// One of these.
    Each(fn(&Tally) -> u64),
}

/// A number that is counted, and what each table calls it.
struct Counter {
    in_stats: &'static str,
    average_in_stats: &'static str,
    in_totals: &'static str,
    in_averages: &'static str,
    in_list: &'static str,
    average_in_list: &'static str,
    value: fn(&Tally) -> u64,
    average: Average,
}

macro_rules! counter {
    ($name:literal, $value:expr, $average:expr) => {
        counter!($name, $name, $name, $name, $name, $value, $average)
    };
    ($total:literal, $avg:literal, $in_totals:literal, $in_averages:literal, $list:literal,
     $value:expr, $average:expr) => {
        Counter {
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
    // The averages of these are called so in every table.
    (new $name:literal, $avg:literal, $value:expr) => {
        counter!($name, $name, $name, $avg, $name, $value, Average::Second)
    };
}

const COUNTERS: &[Counter] = &[
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
    counter!(new "client_parse_count", "avg_client_parse_count", |it| it.client_parses),
    counter!(new "server_parse_count", "avg_server_parse_count", |it| it.server_parses),
    counter!(new "bind_count", "avg_bind_count", |it| it.binds),
    counter!(new "client_login_count", "avg_client_login_count", |it| it.logins),
];

pub(super) const TOTALS: &[(&str, Kind)] = &[("name", Text), ("value", Numeric)];

pub(super) fn columns(which: Which) -> Vec<Column> {
    let numbers = |name: fn(&Counter) -> &'static str| {
        COUNTERS.iter().map(move |counter| Column { name: name(counter), kind: Numeric })
    };
    let mut columns = vec![Column { name: "database", kind: Text }];
    match which {
        Which::Totals => columns.extend(numbers(|it| it.in_totals)),
        Which::Averages => columns.extend(numbers(|it| it.in_averages)),
        Which::Both => {
            columns.extend(numbers(|it| it.in_stats));
            columns.extend(numbers(|it| it.average_in_stats));
        }
    }
    columns
}

/// What was counted, and what of it in the last whole period.
#[derive(Default)]
struct Sum {
    all: Tally,
    last: Tally,
    period: Duration,
}

impl Sum {
    fn add(&mut self, pool: &PoolView) {
        self.all += &pool.tally;
        if let Some((last, period)) = &pool.last_period {
            self.last += last;
            self.period = self.period.max(*period);
        }
    }

    fn totals(&self) -> impl Iterator<Item = Value> {
        COUNTERS.iter().map(|counter| (counter.value)(&self.all).into())
    }

    fn averages(&self) -> impl Iterator<Item = Value> {
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

pub(super) fn rows(view: &View, which: Which) -> Vec<Vec<Value>> {
    let mut sums: BTreeMap<&str, Sum> = BTreeMap::new();
    for (database, tally) in &view.past {
        if let Some(database) = database {
            sums.entry(database).or_default().all += tally;
        }
    }
    for pool in view.pools.iter().filter(|pool| pool.is_home()) {
        sums.entry(&pool.database).or_default().add(pool);
    }
    let row = |(database, sum): (&str, Sum)| {
        let mut row = vec![database.into()];
        if which != Which::Averages {
            row.extend(sum.totals());
        }
        if which != Which::Totals {
            row.extend(sum.averages());
        }
        row
    };
    sums.into_iter().map(row).collect()
}

/// All databases in one, a number a row.
pub(super) fn totals(view: &View) -> Vec<Vec<Value>> {
    let mut sum = Sum::default();
    view.past.iter().for_each(|(_, tally)| sum.all += tally);
    view.pools.iter().filter(|pool| pool.is_home()).for_each(|pool| sum.add(pool));
    let names = |name: fn(&Counter) -> &'static str| COUNTERS.iter().map(move |it| name(it).into());
    let totals = names(|it| it.in_list).zip(sum.totals());
    let averages = names(|it| it.average_in_list).zip(sum.averages());
    totals.chain(averages).map(|(name, value)| vec![name, value]).collect()
}
