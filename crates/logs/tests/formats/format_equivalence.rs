//! One run of a server, logged in three formats, gives the same events.

use std::collections::HashMap;

use howdah_logs::PrefixOrigin;
use howdah_traffic::{Event, Kind};

use crate::support::{FORMATS, MAJORS, SETTINGS, describe, descriptions, error, fixture, import};

/// Information that a stderr log lacks because its prefix has no escape for it: setting, field,
/// reason.
const DIFFERENCES: &[(&str, &str, &str)] = &[
    (
        "durationonly",
        "session",
        "the prefix has no %c: ids are rebuilt from %p, so sessions are compared by order",
    ),
    ("durationonly", "sqlstate", "the prefix has no %e"),
    ("durationonly", "vxid", "the prefix has no %v"),
    ("prod", "sqlstate", "the prefix has no %e"),
    ("prod", "vxid", "the prefix has no %v"),
];

fn differs(setting: &str, field: &str) -> bool {
    DIFFERENCES.iter().any(|(s, f, _)| *s == setting && *f == field)
}

/// All properties of the events, except for the listed differences.
fn comparable(setting: &str, events: &[Event]) -> Vec<String> {
    let mut ordinals: HashMap<&str, usize> = HashMap::new();
    events
        .iter()
        .map(|event| {
            let next = ordinals.len();
            let ordinal = *ordinals.entry(&event.session).or_insert(next);
            let mut text = format!(
                "{} {} {}@{}/{} {} {} {:?} {} {:?}",
                event.time,
                if differs(setting, "session") {
                    ordinal.to_string()
                } else {
                    event.session.to_string()
                },
                event.user,
                event.database,
                event.application,
                event.source,
                describe(event),
                event.outcome.duration_us,
                error(event),
                event.query_id,
            );
            if !differs(setting, "sqlstate") {
                text += &format!(" {:?}", event.outcome.sqlstate);
            }
            if !differs(setting, "vxid") {
                text += &format!(" {:?}", event.vxid);
            }
            text
        })
        .collect()
}

#[test]
fn three_formats_of_one_run_give_the_same_events() {
    for major in MAJORS {
        for setting in SETTINGS {
            let [stderr, csv, json] = FORMATS.map(|format| import(fixture(major, setting, format)));
            let expected = comparable(setting, &csv.0);
            assert!(expected.len() > 80, "{major} {setting}");
            for (name, (events, summary)) in [("stderr", &stderr), ("json", &json)] {
                let got = comparable(setting, events);
                for (number, (got, expected)) in got.iter().zip(&expected).enumerate() {
                    assert_eq!(got, expected, "{major} {setting} {name}, event {number}");
                }
                assert_eq!(got.len(), expected.len(), "{major} {setting} {name}");
                assert_eq!(summary.rejected(), 0, "{major} {setting} {name}");
                assert_eq!(summary.records, csv.1.records, "{major} {setting} {name}");
            }
            assert_eq!(
                csv.1.facts.lost_lines + json.1.facts.lost_lines + stderr.1.facts.lost_lines,
                0
            );
        }
    }
}

#[test]
fn csv_and_json_agree_in_every_field() {
    for major in MAJORS {
        for setting in SETTINGS {
            let (csv, _) = import(fixture(major, setting, "csv"));
            let (json, _) = import(fixture(major, setting, "json"));
            assert_eq!(csv, json, "{major} {setting}");
        }
    }
}

#[test]
fn listed_differences_exist() {
    for (setting, field, why) in DIFFERENCES.iter().filter(|(_, field, _)| *field != "session") {
        let has = |format: &str| {
            let (events, _) = import(fixture("17", setting, format));
            events.iter().any(|event| match *field {
                "vxid" => event.vxid.is_some(),
                _ => event.outcome.sqlstate.is_some(),
            })
        };
        assert!(has("csv") && !has("log"), "{setting}: {why}");
    }
}

#[test]
fn both_majors_give_the_same_actions() {
    for setting in SETTINGS {
        // Concurrent sessions may end in either order.
        let [old, new] = MAJORS.map(|major| {
            let (mut events, _) = import(fixture(major, setting, "csv"));
            events.sort_by(|a, b| a.session.cmp(&b.session));
            descriptions(&events)
        });
        assert_eq!(old, new, "{setting}");
    }
}

#[test]
fn prefixes_of_the_fixtures_are_guessed() {
    let prefixes = [
        ("prod", "%m|%u|%d|%c|"),
        ("durationonly", "%m [%p] %q%u@%d/%a "),
        ("verbose", "%n %-12u %8p %l %e %i %s %v %x %r %h %b %P %Q %% |%c| "),
    ];
    for (setting, expected) in prefixes {
        let (_, summary) = import(fixture("17", setting, "log"));
        let prefix = summary.prefix.expect("a prefix");
        assert_eq!((prefix.text.as_str(), prefix.origin), (expected, PrefixOrigin::Guessed));
    }
}

/// The expected numbers are those of the workload's own list.
#[test]
fn every_execution_of_the_workload_is_read_once() {
    // Setting; number of failed statements without a text in the log; number of failed binds.
    for (setting, unknown, binds) in [("prod", 1, 2), ("durationonly", 0, 1), ("verbose", 0, 2)] {
        let (events, summary) = import(fixture("17", setting, "csv"));
        let executions = events.iter().filter(|e| e.action.kind().is_execution()).count();
        let failed_binds =
            events.iter().filter(|e| e.action.kind() == Kind::Bind && e.outcome.failed()).count();
        assert_eq!(failed_binds, binds, "{setting}");
        assert_eq!(summary.facts.errors_without_statement, unknown, "{setting}");
        // 24 simple, 2 copies, 1 call, 19 executes that reached the executor or failed before, 2
        // fetches; the server skipped the pipeline's third execute, after the failed one.
        let all = executions + failed_binds + usize::try_from(unknown).expect("small");
        assert_eq!(all, 45, "{setting}: {:#?}", descriptions(&events));
    }
}
