//! Standbys become as warm as the primary, also after a failover.

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use howdah_lab::Cluster;
use howdah_warm::daemon::{DiscoverySettings, DiscoveryTemplate, FollowSettings, WarmState};
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
        discovery: DiscoverySettings::default(),
        hold_out: None,
        readiness: Arc::default(),
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

/// A primary and a standby that listen on TCP ports of the loopback address.
fn pair_on_tcp(test: &str) -> Option<(Cluster, Cluster)> {
    let first = start(test, Cluster::builder().name("first").trusted_tcp())?;
    create_tables(&first);
    let builder = Cluster::builder().name("second").trusted_tcp().setting("hot_standby", "on");
    let second = start(test, builder.standby_of(&first))?;
    Some((first, second))
}

#[test]
fn discovered_standby_joins_and_is_dropped_when_it_is_gone() {
    let Some((first, mut second)) = pair_on_tcp("follow with discovery") else { return };
    read(&first, "early");
    let mut settings = settings(&[&first]);
    settings.discovery.from_replication = true;
    settings.discovery.port = Some(second.port());
    settings.discovery.timeout = Duration::from_secs(3);
    let daemon = start_follow(settings);
    wait_until_cached(&second, "early");
    assert_eq!(daemon.metric("howdah_warm_discovered_servers_total", "joined"), 1.0);
    assert_eq!(daemon.metric("howdah_warm_followed_servers", ""), 2.0);

    second.stop().unwrap();
    wait_until("the end of the standby", || {
        daemon.metric("howdah_warm_discovered_servers_total", "left") == 1.0
    });
    assert_eq!(daemon.metric("howdah_warm_followed_servers", ""), 1.0);
    let name = format!("server=\"127.0.0.1:{}\"", second.port());
    assert!(!daemon.registry.prometheus().contains(&name));

    second.start().unwrap();
    wait_until_cached(&second, "early");
    daemon.stop();
}

#[test]
fn server_found_under_another_name_is_not_added() {
    let Some((first, second)) = pair_on_tcp("follow with aliases") else { return };
    let mut settings = settings(&[&first]);
    let uri = second.uri("postgres").replace("127.0.0.1", "localhost");
    let params = howdah_connect::ConnParams::from_conninfo(uri);
    let environment = howdah_connect::Environment::empty();
    settings.servers.push(howdah_connect::ConnectTarget::resolve(&params, &environment).unwrap());
    settings.interval = Duration::from_millis(200);
    settings.discovery.from_replication = true;
    settings.discovery.port = Some(second.port());
    let daemon = start_follow(settings);
    wait_until("some rounds", || daemon.metric("howdah_warm_dumps_total", "done") >= 5.0);
    assert_eq!(daemon.metric("howdah_warm_followed_servers", ""), 2.0);
    assert_eq!(daemon.metric("howdah_warm_discovered_servers_total", ""), 0.0);
    daemon.stop();
}

#[test]
fn template_describes_discovered_standbys() {
    let test = "follow with a template";
    let Some(first) = start(test, Cluster::builder().name("first")) else { return };
    create_tables(&first);
    let builder = Cluster::builder().name("second").setting("hot_standby", "on");
    let Some(second) = start(test, builder.standby_of(&first)) else { return };
    read(&first, "early");
    let mut settings = settings(&[&first]);
    settings.discovery.from_replication = true;
    let uri = format!("{}?application_name=to-{{name}}", second.uri("postgres"));
    settings.discovery.uri = Some(DiscoveryTemplate::new(&uri).unwrap());
    let board = Arc::clone(&settings.readiness);
    let daemon = start_follow(settings);
    wait_until_cached(&second, "early");
    wait_until("two warm servers", || {
        board.poll(None);
        let servers = board.query(None, None).unwrap();
        servers.len() == 2 && servers.iter().all(|server| server.state == WarmState::Warm)
    });
    // Readiness of a standby is that of its cache now.
    let name = howdah_warm::metrics::server_label(&target(&second));
    let mut second = second;
    second.restart().unwrap();
    let restarted = SystemTime::now();
    wait_until("a warm standby again", || {
        board.poll(Some(&name));
        let server = board.query(Some(&name), None).unwrap().remove(0);
        server.state == WarmState::Warm && server.measured_at.is_some_and(|at| at > restarted)
    });
    wait_until_cached(&second, "early");
    daemon.stop();
}
