//! Compares the sampled clock sweep with `pg_stat_bgwriter`.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_inspect::RunningServer;
use howdah_lab::{Cluster, wait_until};
use howdah_probe::{
    SampleError,
    sweep::{SweepRow, SweepSampler},
};

use crate::support::{TIMEOUT, cluster, number, on_every_major_with, run_in_background, session};

/// Number of buffers of the test server.
const BUFFERS: u32 = 256;

/// The background writer resets the allocation counter every two seconds: allocations between the
/// last sample and the reset are not seen, and a machine busy with other tests may sample tens of
/// milliseconds late.
const SETTINGS: [(&str, &str); 3] =
    [("shared_buffers", "2MB"), ("bgwriter_delay", "2s"), ("autovacuum", "off")];

/// Slightly longer than `bgwriter_delay`.
const QUIET_PERIOD: Duration = Duration::from_millis(2500);

#[test]
fn allocations_agree_with_pg_stat_bgwriter() {
    on_every_major_with(&SETTINGS, "sweep", |cluster, server| {
        let mut client = session(cluster);
        let fill =
            "CREATE TABLE filler AS SELECT repeat('x', 400) AS pad FROM generate_series(1, 20000)";
        client.query(fill).unwrap();
        client.query("UPDATE filler SET pad = pad || 'y'").unwrap();
        let before = settled_allocations(&mut client);
        let (sweep, rows) = follow_sweep(cluster, server);
        let reported = f64::from(settled_allocations(&mut client) - before);
        let context = format!("PostgreSQL {}: {sweep:?}, reported {reported}", server.major());
        let summary = sweep.summary();
        assert!(reported > 1000.0, "{context}");
        assert!((summary.allocations as f64 - reported).abs() < 0.05 * reported, "{context}");
        // No buffer is free any more, so each allocation took a sweep, and each victim was
        // examined.
        assert_eq!(summary.swept, summary.allocations, "{context}");
        assert_eq!(summary.buffers, BUFFERS, "{context}");
        assert!(summary.examined >= summary.allocations && summary.passes() > 2.0, "{context}");
        let per = summary.per_allocation.unwrap();
        assert!(per.min <= per.avg && per.avg <= per.max, "{context}");
        let sum = |of: fn(&SweepRow) -> u64| rows.iter().map(of).sum::<u64>();
        assert!(sum(|row| row.examined) <= summary.examined, "{context}");
        assert!(sum(|row| row.allocations) <= summary.allocations, "{context}");
        assert!(!sweep.cpu().is_zero());
    });
}

/// Samples the sweep while a table far larger than the buffer pool is updated.
fn follow_sweep(cluster: &Cluster, server: &RunningServer) -> (SweepSampler, Vec<SweepRow>) {
    let begin = Instant::now();
    let mut sweep = SweepSampler::open(server, begin, Duration::from_millis(500)).unwrap();
    let load =
        "DO $$ BEGIN FOR i IN 1..8 LOOP UPDATE filler SET pad = pad || 'z'; END LOOP; END $$";
    let (_, loading) = run_in_background(cluster, load);
    let mut rows = Vec::new();
    while !loading.is_finished() {
        thread::sleep(sweep.next_poll_at().saturating_duration_since(Instant::now()));
        rows.extend(sweep.poll(Instant::now()).unwrap());
    }
    sweep.poll(Instant::now()).unwrap();
    (sweep, rows)
}

/// The value of `pg_stat_bgwriter` once it has been stable for longer than `bgwriter_delay`.
fn settled_allocations(client: &mut Client) -> u32 {
    let mut reported = number(client, "SELECT buffers_alloc FROM pg_stat_bgwriter");
    let mut since = Instant::now();
    wait_until("stable allocations", TIMEOUT, || {
        let now = number(client, "SELECT buffers_alloc FROM pg_stat_bgwriter");
        if now != reported {
            (reported, since) = (now, Instant::now());
        }
        since.elapsed() >= QUIET_PERIOD
    });
    reported
}

#[test]
fn sweep_of_restarted_server_is_an_error() {
    let Some(mut cluster) = cluster("sweep of a stopped server") else { return };
    let server = RunningServer::in_data_dir(cluster.data_dir()).unwrap();
    let begin = Instant::now();
    let mut sweep = SweepSampler::open(&server, begin, Duration::from_secs(1)).unwrap();
    assert_eq!(sweep.poll(begin).unwrap(), None);
    cluster.restart().unwrap();
    let error = sweep.poll(begin).unwrap_err();
    assert!(matches!(error, SampleError::ServerStopped { .. }), "{error}");
}
