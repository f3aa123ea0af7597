//! Standbys are as warm as the primary, whoever that is.

use std::time::Duration;

use howdah_keeper::FollowSettings;
use howdah_lab::Cluster;
use howdah_warm::{dump::Choice, load::Options};

use crate::support::{
    fill, keep_following, read, resident, session, start, target, wait_until, wait_until_whole,
};

fn settings(clusters: &[&Cluster]) -> FollowSettings {
    FollowSettings {
        servers: clusters.iter().map(|cluster| target(cluster)).collect(),
        interval: Duration::from_secs(2),
        choice: Choice::Best,
        load: Options { evict: true, patience: Duration::from_secs(2), ..Options::default() },
        share: 0.75,
    }
}

#[test]
fn standbys_follow_through_loss_restart_and_promotion() {
    for major in [14, 15, 17, 18] {
        let test = format!("follow on {major}");
        let Some(mut first) = start(&test, Cluster::builder().name("first").major(major)) else {
            continue;
        };
        fill(&first);
        // Nothing of the tables is cached now.
        first.restart().unwrap();
        let standby = |name: &str| {
            let builder = Cluster::builder().name(name).setting("hot_standby", "on");
            start(&test, builder.standby_of(&first))
        };
        let (Some(second), Some(mut third)) = (standby("second"), standby("third")) else {
            continue;
        };
        read(&first, "early");
        let keeper = keep_following(settings(&[&first, &second, &third]));
        wait_until_whole(&second, "early");
        wait_until_whole(&third, "early");

        // A standby that is away is passed over, and filled again when it is back.
        third.stop().unwrap();
        wait_until("the loss to be seen", || keeper.metric("howdah_warm_server_up", "") <= 2.0);
        third.start().unwrap();
        wait_until_whole(&third, "early");

        // The primary is gone, and another takes its place.
        first.stop().unwrap();
        session(&second).query("SELECT pg_promote()").unwrap();
        wait_until("the promotion", || {
            session(&second).one_value("SELECT pg_is_in_recovery()").unwrap().as_deref()
                == Some("f")
        });
        let before = resident(&third, "late").unwrap();
        assert!(before.0 < before.1, "{major}: {before:?}");
        read(&second, "late");
        wait_until_whole(&third, "late");
        keeper.stop();
    }
}

#[test]
fn two_primaries_are_left_alone() {
    let how = |name: &str| start("follow two primaries", Cluster::builder().name(name));
    let (Some(one), Some(other)) = (how("one"), how("other")) else { return };
    fill(&one);
    fill(&other);
    read(&one, "early");
    let before = resident(&other, "late").unwrap();
    let keeper = keep_following(settings(&[&one, &other]));
    wait_until("both to be seen", || keeper.metric("howdah_warm_server_up", "") == 2.0);
    keeper.stop();
    assert_eq!(resident(&other, "late").unwrap(), before);
}
