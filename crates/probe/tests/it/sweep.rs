//! The clock sweep beside what `pg_stat_bgwriter` says of it.

use std::{
    thread,
    time::{Duration, Instant},
};

use howdah_connect::Client;
use howdah_inspect::Server;
use howdah_lab::Cluster;
use howdah_probe::{
    SampleError,
    sweep::{SweepRow, SweepSampler},
};

use crate::support::{cluster, meanwhile, number, on_every_major_with, session};

/// Buffers of a test's server.
const BUFFERS: u32 = 256;

/// The background writer takes the count of allocations every two seconds: what is handed out between the last look
/// and then is not seen, and a machine busy with other tests may look tens of milliseconds late.
const SETTINGS: [(&str, &str); 3] =
    [("shared_buffers", "2MB"), ("bgwriter_delay", "2s"), ("autovacuum", "off")];

/// Longer than the background writer rests, and a little.
const SETTLED: Duration = Duration::from_millis(2500);

#[test]
fn allocations_are_those_of_pg_stat_bgwriter() {
    on_every_major_with(&SETTINGS, "sweep", |cluster, server| {
        let mut client = session(cluster);
        let fill =
            "CREATE TABLE filler AS SELECT repeat('x', 400) AS pad FROM generate_series(1, 20000)";
        client.query(fill).unwrap();
        client.query("UPDATE filler SET pad = pad || 'y'").unwrap();
        let before = settled(&mut client);
        let (sweep, rows) = followed(cluster, server);
        let told = f64::from(settled(&mut client) - before);
        let context = format!("PostgreSQL {}: {sweep:?}, told {told}", server.major());
        let summary = sweep.summary();
        assert!(told > 1000.0, "{context}");
        assert!((summary.allocations as f64 - told).abs() < 0.05 * told, "{context}");
        // No buffer is free any more, so each was looked for; and each victim was looked at.
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

/// Follows the sweep while a table far larger than the buffers is changed, and until the background writer
/// has taken the last count.
fn followed(cluster: &Cluster, server: &Server) -> (SweepSampler, Vec<SweepRow>) {
    let begin = Instant::now();
    let mut sweep = SweepSampler::open(server, begin, Duration::from_millis(500)).unwrap();
    let load =
        "DO $$ BEGIN FOR i IN 1..8 LOOP UPDATE filler SET pad = pad || 'z'; END LOOP; END $$";
    let (_, loading) = meanwhile(cluster, load);
    let mut rows = Vec::new();
    while !loading.is_finished() {
        thread::sleep(sweep.due().saturating_duration_since(Instant::now()));
        rows.extend(sweep.poll(Instant::now()).unwrap());
    }
    sweep.poll(Instant::now()).unwrap();
    (sweep, rows)
}

/// What `pg_stat_bgwriter` says once it has said the same for longer than the background writer rests.
fn settled(client: &mut Client) -> u32 {
    let mut told = number(client, "SELECT buffers_alloc FROM pg_stat_bgwriter");
    let mut since = Instant::now();
    while since.elapsed() < SETTLED {
        thread::sleep(Duration::from_millis(50));
        let now = number(client, "SELECT buffers_alloc FROM pg_stat_bgwriter");
        if now != told {
            (told, since) = (now, Instant::now());
        }
    }
    told
}

#[test]
fn a_server_that_ended_has_no_sweep() {
    let Some(mut cluster) = cluster("sweep of a stopped server") else { return };
    let server = Server::in_data_dir(cluster.data_dir()).unwrap();
    let begin = Instant::now();
    let mut sweep = SweepSampler::open(&server, begin, Duration::from_secs(1)).unwrap();
    assert_eq!(sweep.poll(begin).unwrap(), None);
    cluster.restart().unwrap();
    let error = sweep.poll(begin).unwrap_err();
    assert!(matches!(error, SampleError::Ended { .. }), "{error}");
}
