//! Warming before traffic comes: it ends in time, whatever the server does.

use std::{
    net::TcpListener,
    sync::Arc,
    time::{Duration, Instant},
};

use howdah_connect::{Environment, Target, Words};
use howdah_lab::Cluster;
use howdah_warm::{
    dump::{self, Choice},
    load::Options,
    ready::{ReadyTimeouts, warm_before},
};

use crate::support::{session, start, target};

#[test]
fn what_is_missing_is_loaded_up_to_what_is_enough() {
    let Some(mut cluster) = start("readiness", Cluster::builder()) else { return };
    let here = target(&cluster, "postgres");
    session(&here)
        .query(
            "CREATE EXTENSION pg_prewarm;
             CREATE TABLE t AS SELECT n, repeat('x', 200) FROM generate_series(1, 20000) n",
        )
        .unwrap();
    let image = Arc::new(dump::dump(&here, Choice::Memory).unwrap().image);
    let hour = Instant::now() + Duration::from_secs(3600);
    cluster.restart().unwrap();
    let whole = ReadyTimeouts { until: hour, enough: 1.0 };
    let first = warm_before(&here, &image, &Options::default(), whole).unwrap();
    assert!(first.has_ended && first.planned.unwrap() > 400, "{first:?}");
    assert!(first.share() > 0.99, "{first:?}");
    // Nothing is left to do.
    let second = warm_before(&here, &image, &Options::default(), whole).unwrap();
    assert!(second.planned.unwrap() < 50, "{second:?}");

    cluster.restart().unwrap();
    // At this rate all of it would take a minute and more.
    let slow = Options { bytes_per_second: Some(64 << 10), ..Options::default() };
    let part = ReadyTimeouts { until: hour, enough: 0.02 };
    let some = warm_before(&here, &image, &slow, part).unwrap();
    assert!(some.has_ended && some.share() >= 0.02 && some.share() < 0.9, "{some:?}");
}

#[test]
fn time_is_up_even_if_nobody_answers() {
    let Some(cluster) = start("readiness of nobody", Cluster::builder()) else { return };
    let image = Arc::new(dump::dump(&target(&cluster, "postgres"), Choice::Memory).unwrap().image);
    // It takes connections, and never says a word.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let uri = format!("postgresql://postgres@{}/postgres", silent.local_addr().unwrap());
    let target = Target::resolve(&Words::from_conninfo(uri), &Environment::empty()).unwrap();
    let until = Instant::now() + Duration::from_millis(100);
    let patience = ReadyTimeouts { until, enough: 1.0 };
    if let Ok(readiness) = warm_before(&target, &image, &Options::default(), patience) {
        assert_eq!((readiness.has_ended, readiness.share()), (false, 0.0));
    }
}
