//! Standbys become as warm as the primary, also after a failover.

use std::time::Duration;

use howdah_lab::Cluster;
use howdah_warm::daemon::FollowSettings;
use howdah_warm::{dump::DumpSource, load::LoadOptions};

use crate::support::{
    create_tables, read, resident, session, start, start_follow, target, wait_until,
    wait_until_cached,
};

fn settings(clusters: &[&Cluster]) -> FollowSettings {
    FollowSettings {
        servers: clusters.iter().map(|cluster| target(cluster)).collect(),
        interval: Duration::from_secs(2),
        source: DumpSource::Best,
        load: LoadOptions {
            evict: true,
            connect_timeout: Duration::from_secs(2),
            ..LoadOptions::default()
        },
        share: 0.75,
    }
}

#[test]
fn standbys_stay_warm_through_outage_restart_and_promotion() {
    for major in [14, 15, 17, 18] {
        let test = format!("follow on {major}");
        let Some(mut first) = start(&test, Cluster::builder().name("first").major(major)) else {
            continue;
        };
        create_tables(&first);
        // No page of the tables is cached now.
        first.restart().unwrap();
        let standby = |name: &str| {
            let builder = Cluster::builder().name(name).setting("hot_standby", "on");
            start(&test, builder.standby_of(&first))
        };
        let (Some(second), Some(mut third)) = (standby("second"), standby("third")) else {
            continue;
        };
        read(&first, "early");
        let daemon = start_follow(settings(&[&first, &second, &third]));
        wait_until_cached(&second, "early");
        wait_until_cached(&third, "early");

        // A stopped standby is skipped, and loaded again once it is back.
        third.stop().unwrap();
        wait_until("detection of the stopped standby", || {
            daemon.metric("howdah_warm_server_up", "") <= 2.0
        });
        third.start().unwrap();
        wait_until_cached(&third, "early");

        // The primary stops, and a standby is promoted.
        first.stop().unwrap();
        session(&second).query("SELECT pg_promote()").unwrap();
        wait_until("the promotion", || {
            session(&second).one_value("SELECT pg_is_in_recovery()").unwrap().as_deref()
                == Some("f")
        });
        let before = resident(&third, "late").unwrap();
        assert!(before.0 < before.1, "{major}: {before:?}");
        read(&second, "late");
        wait_until_cached(&third, "late");
        daemon.stop();
    }
}

#[test]
fn nothing_is_loaded_with_two_primaries() {
    let primary = |name: &str| start("follow two primaries", Cluster::builder().name(name));
    let (Some(one), Some(other)) = (primary("one"), primary("other")) else { return };
    create_tables(&one);
    create_tables(&other);
    read(&one, "early");
    let before = resident(&other, "late").unwrap();
    let daemon = start_follow(settings(&[&one, &other]));
    wait_until("connections to both", || daemon.metric("howdah_warm_server_up", "") == 2.0);
    daemon.stop();
    assert_eq!(resident(&other, "late").unwrap(), before);
}
