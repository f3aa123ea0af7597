//! Tests that write and read series, and read invalid files.

use std::{fs, os::unix::fs::PermissionsExt as _};

use proptest::{collection::vec, option, prelude::*};
use serde_json::{Value, json};

use super::*;
use crate::{ReplayRun, RunSettings, RunWriter};

fn series(buckets: Vec<MachineBucket>) -> MachineSeries {
    MachineSeries {
        bucket_us: MachineSeries::BUCKET_US,
        is_server_local: true,
        processors: Some(2),
        calibration: CalibrationInfo { interval_us: 250_000, end: None },
        buckets,
    }
}

fn any_bucket() -> impl Strategy<Value = MachineBucket> {
    vec(option::of(any::<u64>()), COLUMNS.len()).prop_map(|values| {
        let mut bucket = MachineBucket::default();
        for (column, value) in COLUMNS.iter().zip(values) {
            (column.set)(&mut bucket, value);
        }
        bucket
    })
}

/// Returns the error of reading a file with this content, including its causes.
fn read_error(text: &[u8]) -> String {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    fs::write(&path, text).unwrap();
    let error = MachineSeries::read(&path).unwrap_err();
    assert!(error.to_string().contains(&path.display().to_string()), "{error}");
    let mut text = String::new();
    let mut cause: Option<&dyn std::error::Error> = Some(&error);
    while let Some(error) = cause {
        text.push_str(&format!("{error}: "));
        cause = error.source();
    }
    text
}

/// Returns the error of reading a valid file after a change to it.
fn error_after(change: impl FnOnce(&mut Value)) -> String {
    let buckets = vec![MachineBucket::default(); 3];
    let mut document = serde_json::from_slice(&series(buckets).to_json().unwrap()).unwrap();
    change(&mut document);
    read_error(document.to_string().as_bytes())
}

#[test]
fn page_describes_every_column() {
    const PAGE: &str = include_str!("../../../../../docs/src/reference/capture-format.md");
    let (_, after) = PAGE.split_once("\n`buckets` in `machine.json`: ").unwrap();
    let rows = after.lines().skip_while(|line| !line.starts_with("|---")).skip(1);
    let described: Vec<_> = rows
        .take_while(|line| line.starts_with('|'))
        .map(|line| line.split('|').nth(1).unwrap().trim().trim_matches('`'))
        .collect();
    let declared: Vec<_> = COLUMNS.iter().map(|column| column.name).collect();
    assert_eq!(described, declared);
}

#[test]
fn every_field_is_a_column() {
    assert_eq!(size_of::<MachineBucket>(), COLUMNS.len() * size_of::<Option<u64>>());
    let mut bucket = MachineBucket::default();
    for column in COLUMNS {
        assert_eq!((column.get)(&bucket), None, "{} occurs twice", column.name);
        (column.set)(&mut bucket, Some(7));
        assert_eq!((column.get)(&bucket), Some(7), "{}", column.name);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    #[test]
    fn series_round_trips(
        buckets in vec(any_bucket(), 0..5),
        is_server_local: bool,
        processors: Option<u32>,
        end in option::of((any::<String>(), any::<Option<u64>>())),
    ) {
        let end = end.map(|(message, at_us)| CalibrationEnd {
            reason: CalibrationEndReason::NoFreeSlot, message, at_us,
        });
        let calibration = CalibrationInfo { interval_us: 1, end };
        let written = MachineSeries {
            is_server_local, processors, calibration, ..series(buckets)
        };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        fs::write(&path, written.to_json().unwrap()).unwrap();
        prop_assert_eq!(MachineSeries::read(&path).unwrap(), Some(written));
    }
}

#[test]
fn truncated_file_is_an_error_at_every_length() {
    let whole = series(vec![MachineBucket { interval_us: Some(17), ..MachineBucket::default() }]);
    let text = whole.to_json().unwrap();
    for length in 0..text.len() {
        assert!(read_error(&text[..length]).contains("damaged"), "{length}");
    }
}

#[test]
fn errors_name_the_key() {
    let cases: [(&str, Value, &str); 7] = [
        ("/format", json!("howdah-run"), "format is howdah-run, not howdah-machine"),
        ("/version", json!(2), "has format version 2; this howdah reads up to version 1"),
        ("/bucket_us", json!(0), "bucket_us contains 0"),
        ("/server_is_local", json!("yes"), "key server_is_local is invalid: invalid type: string"),
        (
            "/calibration/end",
            json!({ "reason": "tired" }),
            "key calibration is invalid: unknown variant",
        ),
        (
            "/buckets/io_some_us",
            json!([1, "2", 3]),
            "key buckets.io_some_us is invalid: invalid type",
        ),
        ("/buckets/interval_us", json!([1, 2]), "interval_us has 2 entries, but 3 are expected"),
    ];
    for (pointer, value, expected) in cases {
        let error = error_after(|document| *document.pointer_mut(pointer).unwrap() = value);
        assert!(error.contains(expected), "{pointer}: {error}");
    }
    let error = error_after(|document| {
        document["buckets"].as_object_mut().unwrap().remove("cpu_steal_us");
    });
    assert!(error.contains("key buckets.cpu_steal_us is missing"), "{error}");
    let error = error_after(|document| {
        document["buckets"]["cpu_some_us"] = vec![0; MachineSeries::BUCKETS_MAX + 1].into();
    });
    assert!(error.contains("key buckets.cpu_some_us has more than 172800 entries"), "{error}");
}

#[test]
fn longest_series_is_within_limit_and_larger_file_is_refused() {
    // Ten digits are the time of a thousand processors within ten seconds.
    let mut bucket = MachineBucket::default();
    for column in COLUMNS {
        (column.set)(&mut bucket, Some(9_999_999_999));
    }
    let longest = series(vec![bucket; MachineSeries::BUCKETS_MAX]).to_json().unwrap();
    assert!((longest.len() as u64) < FILE_BYTES_MAX, "{}", longest.len());
    let mut large = longest;
    large.resize(FILE_BYTES_MAX as usize + 1, b' ');
    assert!(read_error(&large).contains("larger than 67108864 bytes"));
}

#[test]
fn unknown_keys_are_ignored() {
    let written = series(vec![MachineBucket::default()]);
    let mut document: Value = serde_json::from_slice(&written.to_json().unwrap()).unwrap();
    document["later"] = json!([1]);
    document["buckets"]["later"] = json!("text");
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join(FILE_NAME);
    fs::write(&path, document.to_string()).unwrap();
    assert_eq!(MachineSeries::read(&path).unwrap(), Some(written));
}

#[test]
fn run_stores_series_privately_and_replaces_it() {
    let folder = tempfile::tempdir().unwrap();
    let dir = folder.path().join("run");
    let settings = RunSettings {
        capture: "monday".to_owned(),
        target: "localhost".to_owned(),
        rate: "1".to_owned(),
        server_version: "17.0".to_owned(),
        started: howdah_traffic::Timestamp::from_micros(0),
        overwrite: true,
        part: None,
    };
    let writer = RunWriter::create(&dir, settings.clone()).unwrap();
    let written = series(vec![MachineBucket::default(); 2]);
    writer.write_machine(&written).unwrap();
    writer.finish(Value::Null, true).unwrap();
    assert_eq!(ReplayRun::open(&dir).unwrap().machine().unwrap(), Some(written));
    let mode = fs::metadata(dir.join(FILE_NAME)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);

    fs::write(dir.join(".machine.json.tmp"), "left by a crash").unwrap();
    RunWriter::create(&dir, settings).unwrap().finish(Value::Null, true).unwrap();
    assert_eq!(ReplayRun::open(&dir).unwrap().machine().unwrap(), None);
    assert!(!dir.join(".machine.json.tmp").exists());
}

#[test]
fn summary_ignores_what_was_not_measured() {
    assert_eq!(series(Vec::new()).summary(), MachineSummary::default());
    let first = MachineBucket {
        calibration_p50_us: Some(1_100),
        calibration_count: Some(4),
        wakeup_delay_max_us: Some(60),
        interval_us: Some(1_000_000),
        cpu_some_us: Some(100_000),
        cpu_total_us: Some(2_000_000),
        cpu_busy_us: Some(1_000_000),
        cpu_steal_us: Some(0),
        ..MachineBucket::default()
    };
    let second = MachineBucket {
        calibration_p50_us: Some(3_400),
        calibration_count: Some(2),
        wakeup_delay_max_us: Some(4_000),
        // The counters were read late.
        interval_us: Some(3_000_000),
        cpu_some_us: Some(1_500_000),
        cpu_total_us: Some(6_000_000),
        cpu_busy_us: Some(5_000_000),
        cpu_steal_us: None,
        ..MachineBucket::default()
    };
    let third = MachineBucket { calibration_p50_us: Some(900), ..MachineBucket::default() };
    let summary = series(vec![first, second, third, MachineBucket::default()]).summary();
    assert_eq!(
        summary,
        MachineSummary {
            calibration_p50_us: Some(1_100),
            calibration_low_us: Some(900),
            calibration_high_us: Some(3_400),
            calibration_count: 6,
            wakeup_delay_p99_us: Some(4_000),
            wakeup_delay_max_us: Some(4_000),
            cpu_pressure: Some(0.4),
            steal: Some(0.0),
            busy: Some(0.75),
            ..MachineSummary::default()
        }
    );
}
