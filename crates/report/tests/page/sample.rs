//! A page as a rehearsal of an upgrade would make it: four runs, two on each server, in which a
//! dropped index makes one query slower.

use std::time::Duration;

use howdah_report::rehearsal::{
    RecoveryTarget, RehearsalSide, RehearsalVerdict,
    html::{
        CheckpointSpan, FactorInterval, LatencyHistogram, Page, PageDifference, PageQuery,
        PageQueryVerdict, PageRun, PanelUnit, PlanPair, QueryErrorCount, QueryMeasures,
        ServerFactRow, TimeLines, TimePanel, VerdictReason,
    },
};
use howdah_traffic::Timestamp;

/// Text that would run if any part of the page did not escape it.
pub(crate) const HOSTILE: &str = "select '</script><script>window.pwned = 1</script>', \"<img src=x \
                                  onerror=window.pwned=1>\" <!-- & from t where a = ?";

const RUNS: [(&str, RehearsalSide); 4] = [
    ("a1", RehearsalSide::Base),
    ("b1", RehearsalSide::Change),
    ("b2", RehearsalSide::Change),
    ("a2", RehearsalSide::Base),
];
const BUCKETS: usize = 180;

/// Calls, median in microseconds, and spread of the logarithms of latencies.
type LatencyShape = (u64, f64, f64);

fn measures((calls, p50_us, spread): LatencyShape) -> QueryMeasures {
    let quantile = |z: f64| p50_us * (spread * z).exp();
    let mean_us = p50_us * (spread * spread / 2.0).exp();
    QueryMeasures {
        calls,
        errors: 0,
        mean_us,
        p50_us,
        p90_us: quantile(1.2816),
        p95_us: quantile(1.6449),
        p99_us: quantile(2.3263),
        max_us: quantile(3.7),
        total_us: mean_us * calls as f64,
        rows_mean: Some(1.0),
    }
}

/// The same for one run: half of the calls, and a median that differs a little.
fn of_run((calls, p50_us, spread): LatencyShape, run: usize) -> QueryMeasures {
    measures((calls / 2, p50_us * (1.0 + 0.02 * (run as f64 - 1.5)), spread))
}

/// Bins of a quarter of a doubling, from both medians.
fn histogram(base: LatencyShape, change: LatencyShape) -> LatencyHistogram {
    let (low, high) = (base.1.min(change.1) / 8.0, base.1.max(change.1) * 16.0);
    let bins = ((high / low).log2() * 3.0).ceil() as usize;
    let edges: Vec<f64> = (0..=bins).map(|bin| low * 2_f64.powf(bin as f64 / 3.0)).collect();
    let counts = |(calls, p50, spread): LatencyShape| -> Vec<u64> {
        let density = |us: f64| (-((us / p50).ln() / spread).powi(2) / 2.0).exp();
        let bins: Vec<f64> =
            edges.windows(2).map(|bin| density((bin[0] * bin[1]).sqrt())).collect();
        let all: f64 = bins.iter().sum();
        bins.iter().map(|bin| (bin / all * calls as f64) as u64).collect()
    };
    LatencyHistogram { base: counts(base), change: counts(change), edges_us: edges }
}

fn query(
    number: u64,
    text: &str,
    verdict: PageQueryVerdict,
    base: LatencyShape,
    change: LatencyShape,
) -> PageQuery {
    let factor = change.1 / base.1;
    let width = 1.0 + 0.6 / (base.0 as f64).sqrt().max(1.0) * 10.0_f64.sqrt();
    let is_known = verdict != PageQueryVerdict::TooFew;
    PageQuery {
        fingerprint: format!("{:016x}", number.wrapping_mul(0x9e37_79b9_7f4a_7c15)),
        text: text.to_owned(),
        verdict,
        is_tail_only: false,
        base: Some(measures(base)),
        change: Some(measures(change)),
        runs: RUNS
            .iter()
            .enumerate()
            .map(|(run, (_, side))| match side {
                RehearsalSide::Base => Some(of_run(base, run)),
                RehearsalSide::Change => Some(of_run(change, run)),
            })
            .collect(),
        factor: is_known.then_some(FactorInterval {
            estimate: factor,
            low: factor / width,
            high: factor * width,
        }),
        mean_factor: None,
        detectable: is_known.then_some(1.08),
        impact_us: (change.1 - base.1) * base.0 as f64,
        latencies: Some(histogram(base, change)),
        errors: Vec::new(),
        plan_change: None,
        plans: None,
        plan_failure: None,
        causes: Vec::new(),
        example: None,
    }
}

fn queries() -> Vec<PageQuery> {
    use PageQueryVerdict::{Faster, NoChange, OnlyInChange, Slower, TooFew, Undecided};
    let mut slow = query(
        1,
        "select o.id, o.placed, o.state, sum(l.price * l.amount) from orders o join order_lines l on \
         l.order_id = o.id where o.customer = ? group by o.id order by o.placed desc limit ?",
        Slower,
        (18_240, 203.0, 0.35),
        (18_240, 2_910.0, 0.3),
    );
    slow.plan_change =
        Some("Index Scan using orders_customer_idx on orders became Seq Scan on orders".to_owned());
    slow.plans = Some(PlanPair {
        base: "Limit\n  ->  GroupAggregate\n        Group Key: o.id\n        ->  Nested Loop\n              ->  Index Scan using orders_customer_idx on orders o\n                    Index Cond: (customer = $1)\n              ->  Index Scan using order_lines_order_idx on order_lines l\n                    Index Cond: (order_id = o.id)".to_owned(),
        change: "Limit\n  ->  GroupAggregate\n        Group Key: o.id\n        ->  Nested Loop\n              ->  Seq Scan on orders o\n                    Filter: (customer = $1)\n              ->  Index Scan using order_lines_order_idx on order_lines l\n                    Index Cond: (order_id = o.id)".to_owned(),
    });
    slow.causes = vec!["index orders_customer_idx on orders is missing".to_owned()];
    let mut failing = query(
        2,
        "update stock set amount = amount - ? where article = ? and warehouse = ?",
        Slower,
        (9_120, 410.0, 0.5),
        (9_120, 560.0, 0.6),
    );
    failing.errors = vec![QueryErrorCount {
        sqlstate: "40001".to_owned(),
        message: String::new(),
        base: 0,
        change: 31,
    }];
    if let Some(change) = &mut failing.change {
        change.errors = 31;
    }
    let mut tail = query(
        3,
        "insert into events (session, kind, payload) values (?, ?, ?)",
        Slower,
        (40_300, 95.0, 0.25),
        (40_300, 96.0, 0.25),
    );
    tail.is_tail_only = true;
    tail.mean_factor = Some(FactorInterval { estimate: 1.31, low: 1.17, high: 1.46 });
    tail.impact_us = 1_260_000.0;
    let mut faster = query(
        4,
        "select count(*) from events where kind = ? and at > now() - interval ?",
        Faster,
        (640, 48_000.0, 0.2),
        (640, 29_000.0, 0.2),
    );
    faster.example = Some(
        "select count(*) from events where kind = 'visit' and at > now() - interval '1 hour'"
            .to_owned(),
    );
    let mut undecided = query(
        5,
        "select article, amount from stock where warehouse = any(?) order by article",
        Undecided,
        (310, 5_100.0, 0.9),
        (310, 5_900.0, 1.0),
    );
    undecided.detectable = Some(1.42);
    undecided.factor = Some(FactorInterval { estimate: 1.16, low: 0.88, high: 1.52 });
    let mut rows = query(
        6,
        "select name from articles where name like ? limit ?",
        NoChange,
        (7_400, 780.0, 0.4),
        (7_400, 775.0, 0.4),
    );
    if let Some(change) = &mut rows.change {
        change.rows_mean = Some(1.25);
    }
    let mut new =
        query(9, "select set_config(?, ?, false)", OnlyInChange, (1, 100.0, 0.1), (120, 80.0, 0.1));
    (new.base, new.factor, new.latencies, new.impact_us) = (None, None, None, 0.0);
    new.runs[0] = None;
    new.runs[3] = None;
    let same = [
        (7, "select balance from accounts where id = ?", (52_000, 64.0, 0.2), (52_000, 64.6, 0.2)),
        (8, HOSTILE, (2_100, 130.0, 0.3), (2_100, 131.0, 0.3)),
        (10, "begin", (61_000, 18.0, 0.2), (61_000, 18.0, 0.2)),
        (11, "commit", (61_000, 212.0, 0.5), (61_000, 209.0, 0.5)),
        (12, "", (900, 340.0, 0.3), (900, 338.0, 0.3)),
    ];
    let same = same.map(|(number, text, base, change)| query(number, text, NoChange, base, change));
    let rare = query(13, "vacuum analyze carts", TooFew, (4, 91_000.0, 0.2), (4, 88_000.0, 0.2));
    let mut queries = vec![slow, failing, tail, faster, undecided, rows, new, rare];
    queries.extend(same);
    queries.sort_by(|one, other| other.impact_us.total_cmp(&one.impact_us));
    queries
}

/// Values around `level` that repeat, differ from run to run, and rise during checkpoints.
fn values(run: usize, level: f64, noise: f64, checkpoint: f64) -> Vec<Option<f64>> {
    let mut state = 0x2545_f491_u64.wrapping_mul(run as u64 + 7);
    (0..BUCKETS)
        .map(|bucket| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040);
            let random = (state >> 33) as f64 / f64::from(1_u32 << 31) - 0.5;
            let wave = 1.0 + 0.12 * (bucket as f64 / 23.0).sin();
            let during = if (60..85).contains(&bucket) { checkpoint } else { 1.0 };
            Some(level * wave * during * (1.0 + noise * random))
        })
        .collect()
}

fn panel(
    group: &str,
    title: &str,
    unit: PanelUnit,
    levels: [f64; 2],
    checkpoint: f64,
) -> TimePanel {
    let values = RUNS.iter().enumerate().map(|(run, (_, side))| {
        let mut values = values(run, levels[*side as usize], 0.15, checkpoint);
        if unit == PanelUnit::Share {
            values.iter_mut().flatten().for_each(|value| *value = value.min(1.0));
        }
        values
    });
    TimePanel { group: group.to_owned(), title: title.to_owned(), unit, values: values.collect() }
}

fn time_lines() -> TimeLines {
    use PanelUnit::{BytesPerSecond, Micros, Number, PerSecond, Share};
    let mut hits = panel("Server", "Cache hits", Share, [0.991, 0.962], 1.0);
    for value in hits.values.iter_mut().flatten().flatten() {
        *value = 1.0 - (1.0 - *value).abs() / 20.0;
    }
    // The probe was not attached to the last run.
    let mut sweep = panel("Server", "Buffers examined per allocation", Number, [2.1, 3.4], 2.5);
    sweep.values[3] = Vec::new();
    let span = |run, from_s, sync_s, to_s| CheckpointSpan { run, from_s, sync_s, to_s };
    TimeLines {
        bucket_s: 1.0,
        panels: vec![
            panel("Workload", "Throughput", PerSecond, [1_412.0, 1_398.0], 0.9),
            panel("Workload", "Latency, median", Micros, [96.0, 104.0], 1.1),
            panel("Workload", "Latency, p99", Micros, [1_900.0, 4_400.0], 2.2),
            panel("Waits", "Sessions waiting, all events", Number, [0.9, 2.3], 2.0),
            panel("Waits", "Sessions waiting for IO:DataFileRead", Number, [0.3, 1.4], 2.0),
            panel("Waits", "Sessions waiting for LWLock:WALWrite", Number, [0.4, 0.42], 2.5),
            panel("Server", "Waits to extend relations, p99", Micros, [140.0, 160.0], 9.0),
            sweep,
            hits,
            panel("Host", "CPU busy", Share, [0.31, 0.52], 1.2),
            panel("Host", "Waiting for disks", Share, [0.04, 0.06], 3.0),
            panel("Host", "Bytes read", BytesPerSecond, [11e6, 64e6], 1.4),
        ],
        checkpoints: vec![
            span(0, 60.0, Some(81.5), 84.0),
            span(1, 58.0, Some(80.0), 86.5),
            span(2, 61.0, Some(82.0), 85.0),
            span(3, 60.0, None, 84.5),
        ],
        notes: vec![
            "The clock sweep was not measured in run a2: the probe lacked the privilege \
                     to read the server's memory."
                .to_owned(),
        ],
    }
}

fn runs() -> Vec<PageRun> {
    let runs = RUNS.iter().enumerate().map(|(index, (name, side))| PageRun {
        name: (*name).to_owned(),
        side: *side,
        started: Duration::from_secs(20 + 196 * index as u64),
        elapsed: Duration::from_millis(180_400 + 300 * index as u64),
        executions: 126_007,
        failed: if *side == RehearsalSide::Change { 19 } else { 4 },
        skipped: 0,
        schedule_error_p99_us: Some(310 + 20 * index as u64),
        calibration_p50_us: Some(41 + index as u64 % 2),
        cpu_busy: Some(0.31 + 0.02 * index as f64),
        cpu_steal: Some(0.001),
        io_wait: (index != 3).then_some(0.02),
    });
    runs.collect()
}

/// The page.
pub(crate) fn page() -> Page {
    let queries = queries();
    let position = |text: &str| queries.iter().position(|query| query.text.starts_with(text));
    let reason = |label: &str, text: &str, query| VerdictReason {
        label: label.to_owned(),
        text: text.to_owned(),
        query,
    };
    let pair = |name: &str, base: &str, change: &str| ServerFactRow {
        name: name.to_owned(),
        base: base.to_owned(),
        change: change.to_owned(),
    };
    let difference =
        |table: &str, text: &str| PageDifference { table: table.to_owned(), text: text.to_owned() };
    let option = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let target = RecoveryTarget {
        lsn: Some("2F/7C0012A8".to_owned()),
        timeline: Some(3),
        time: Some(Timestamp::from_micros(1_795_178_599_577_000)),
    };
    Page {
        title: "Rehearsal of shop: PostgreSQL 15.4 to 17.2".to_owned(),
        verdict: RehearsalVerdict::Failed,
        headline: "3 of 11 queries are slower, 1 is faster".to_owned(),
        reasons: vec![
            reason(
                "slower",
                "14.3× (median 0.20 ms → 2.91 ms), probably because index orders_customer_idx on \
                 orders is missing:",
                position("select o.id"),
            ),
            reason("new errors", "31 × 40001 (serialization failure):", position("update stock")),
            reason("violated", "--fail-on 'p99 > 2x':", position("select o.id")),
        ],
        notes: vec![
            "Parameter types of 2 queries were deduced from values, since logs do not contain them."
                .to_owned(),
        ],
        confidence: 0.95,
        change_min: 1.1,
        runs: runs(),
        time_lines: time_lines(),
        fidelity: vec![
            "Each run sent all 126,007 statements of the capture, 99 % of them within 0.4 ms of \
             their time. The machines did not change: the calibration statement took as long in \
             all runs."
                .to_owned(),
        ],
        recovery: target.lines(),
        servers: vec![
            pair("PostgreSQL", "15.4", "17.2"),
            pair("address", "10.0.3.11:5432", "10.0.3.12:5432"),
            pair("database", "shop", "shop"),
            pair("size of the database", "38.2 GiB", "37.9 GiB"),
            pair("shared_buffers", "8GB", "8GB"),
            pair("random_page_cost", "1.1", "4"),
        ],
        differences: vec![
            difference("", "PostgreSQL 15.4 → 17.2"),
            difference("", "setting random_page_cost: 1.1 → 4"),
            difference("orders", "index orders_customer_idx on orders is missing"),
            difference("events", "dead rows of events: 12 % → 0 %"),
        ],
        options: vec![
            option("capture", "captures/2026-11-20"),
            option("--rate", "1"),
            option("--runs", "2"),
            option("--reset", "command: ./reset-snapshot.sh"),
            option("--fail-on", "p99 > 2x"),
        ],
        howdah: "0.1.0".to_owned(),
        started: "2026-11-20 12:43:19 UTC".to_owned(),
        finished: "2026-11-20 12:57:02 UTC".to_owned(),
        queries,
    }
}
