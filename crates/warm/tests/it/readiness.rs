//! Warming before traffic starts ends in time, whatever the server does.

use std::{
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::{ConnParams, ConnectTarget, Environment};
use howdah_lab::Cluster;
use howdah_warm::{
    dump::{self, DumpSource},
    load::LoadOptions,
    ready::{ReadyTimeouts, warm_before},
};

use crate::support::{session, start, target};

#[test]
fn warming_stops_at_the_requested_share() {
    let Some(mut cluster) = start("readiness", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here)
        .query(
            "CREATE EXTENSION pg_prewarm;
             CREATE TABLE t AS SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n",
        )
        .unwrap();
    let image = Arc::new(dump::dump(&here, DumpSource::Memory).unwrap().image);
    let hour = Instant::now() + Duration::from_secs(3600);
    cluster.restart().unwrap();
    let whole = ReadyTimeouts { until: hour, enough: 1.0 };
    let first = warm_before(&here, &image, &LoadOptions::default(), whole).unwrap();
    assert!(first.has_ended && first.planned.unwrap() > 400, "{first:?}");
    assert!(first.share() > 0.99, "{first:?}");
    // Nothing is left to do.
    let second = warm_before(&here, &image, &LoadOptions::default(), whole).unwrap();
    assert!(second.planned.unwrap() < 50, "{second:?}");

    cluster.restart().unwrap();
    // At this rate the whole load would take more than a minute.
    let slow = LoadOptions { bytes_per_second: Some(64 << 10), ..LoadOptions::default() };
    let part = ReadyTimeouts { until: hour, enough: 0.02 };
    let some = warm_before(&here, &image, &slow, part).unwrap();
    assert!(some.has_ended && some.share() >= 0.02 && some.share() < 0.9, "{some:?}");
}

#[test]
fn warming_times_out_on_a_silent_server() {
    let Some(cluster) = start("readiness of a silent server", Cluster::builder()) else { return };
    let image =
        Arc::new(dump::dump(&target(&cluster, "postgres"), DumpSource::Memory).unwrap().image);
    // Accepts connections but never responds.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("postgresql://postgres@{}/postgres", silent.local_addr().unwrap());
    let target =
        ConnectTarget::resolve(&ConnParams::from_conninfo(uri), &Environment::empty()).unwrap();
    let until = Instant::now() + Duration::from_millis(100);
    let timeouts = ReadyTimeouts { until, enough: 1.0 };
    if let Ok(readiness) = warm_before(&target, &image, &LoadOptions::default(), timeouts) {
        assert_eq!((readiness.has_ended, readiness.share()), (false, 0.0));
    }
}
