//! Tests parsing of `/proc` files that are complete, missing or garbled.

use std::fs;

use super::*;

const PRESSURE: &str = "\
some avg10=4.62 avg60=21.15 avg300=14.47 total=91857157
full avg10=0.00 avg60=0.00 avg300=0.00 total=3632263
";

const STAT: &str = "\
cpu  74866 12 6630 145910 596 7 154 42 5 1
cpu0 37575 12 3235 72862 383 7 47 20 5 1
cpu1 37291 0 3394 73048 213 0 106 22 0 0
intr 537673 0 0
ctxt 1990473
btime 1795178599
";

#[test]
fn totals_of_pressure_are_read() {
    let expected = Pressure { some: Some(91_857_157), full: Some(3_632_263) };
    assert_eq!(parse_pressure(PRESSURE), expected);
    // Kernels before 5.13 have no `full` line for processors.
    let some = PRESSURE.lines().next().unwrap();
    assert_eq!(parse_pressure(some), Pressure { full: None, ..expected });
    // The order of fields and further ones do not matter.
    assert_eq!(parse_pressure("full total=5 later=1\n").full, Some(5));
}

#[test]
fn garbled_pressure_is_absent() {
    for text in [
        "",
        "\n\n",
        "some",
        "some avg10=1.00\n",
        "some total=",
        "some total=-1",
        "some total=1.5",
        "some total=99999999999999999999",
        "someone total=1",
        "total=1",
    ] {
        assert_eq!(parse_pressure(text), Pressure::default(), "{text:?}");
    }
    for length in 0..PRESSURE.len() {
        let Pressure { some, full } = parse_pressure(&PRESSURE[..length]);
        // A number that is cut within its digits cannot be recognized.
        assert!(some <= Some(91_857_157) && full <= Some(3_632_263), "{length}");
    }
}

#[test]
fn processor_time_is_split_by_use() {
    let time = parse_processor_time(STAT).unwrap();
    let busy = 74_866 + 12 + 6_630 + 7 + 154;
    assert_eq!(
        time,
        ProcessorTime {
            busy: busy * TICK_US,
            total: (busy + 145_910 + 596 + 42) * TICK_US,
            steal: Some(42 * TICK_US),
            iowait: Some(596 * TICK_US),
        }
    );
    let old = parse_processor_time("cpu  1 2 3 4\n").unwrap();
    assert_eq!((old.steal, old.iowait, old.total), (None, None, 10 * TICK_US));
    assert_eq!(count_processors(STAT), Some(2));
}

#[test]
fn garbled_stat_is_absent() {
    for text in [
        "",
        "cpu",
        "cpu  1 2 3",
        "cpu  1 2 x 4 5 6 7 8",
        "cpu  1 2 -3 4 5 6 7 8",
        "cpu0 1 2 3 4 5 6 7 8",
        "intr 1 2 3 4 5 6 7 8",
        "cpu  18446744073709551615 1 0 0",
        "cpu  18446744073709551615 0 0 0",
    ] {
        assert_eq!(parse_processor_time(text), None, "{text:?}");
    }
    assert_eq!(count_processors("cpu  1 2 3 4\ncpufreq 1\n"), None);
}

/// Creates a folder like `/proc` with these files.
fn proc_folder(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::create_dir(folder.path().join("pressure")).unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn sample_is_the_difference_of_two_readings() {
    let folder = proc_folder(&[("stat", STAT), ("pressure/io", PRESSURE)]);
    let mut sampler = HostSampler::new(folder.path());
    assert_eq!(sampler.processors(), Some(2));
    sampler.start();
    let later = PRESSURE.replace("91857157", "91857257").replace("3632263", "3632264");
    fs::write(folder.path().join("pressure/io"), later).unwrap();
    fs::write(folder.path().join("stat"), "cpu  74876 12 6630 146000 590 7 154 43 5 1\n").unwrap();
    let mut bucket = MachineBucket { wakeup_count: Some(100), ..MachineBucket::default() };
    sampler.sample(&mut bucket);
    assert!(bucket.interval_us.is_some() && bucket.replay_cpu_us.is_some());
    assert_eq!((bucket.io_some_us, bucket.io_full_us), (Some(100), Some(1)));
    assert_eq!(bucket.cpu_busy_us, Some(10 * TICK_US));
    assert_eq!(bucket.cpu_total_us, Some(95 * TICK_US));
    assert_eq!(bucket.cpu_steal_us, Some(TICK_US));
    // It has decreased.
    assert_eq!(bucket.cpu_iowait_us, None);
    // The files of the others are missing.
    assert_eq!([bucket.cpu_some_us, bucket.cpu_full_us], [None; 2]);
    assert_eq!([bucket.memory_some_us, bucket.memory_full_us], [None; 2]);
    assert_eq!(bucket.wakeup_count, Some(100));
}

#[test]
fn without_proc_only_own_figures_are_measured() {
    let folder = tempfile::tempdir().unwrap();
    let mut sampler = HostSampler::new(folder.path().join("missing"));
    assert_eq!(sampler.processors(), None);
    sampler.start();
    let mut bucket = MachineBucket::default();
    sampler.sample(&mut bucket);
    let MachineBucket { interval_us, replay_cpu_us, .. } = bucket;
    assert!(interval_us.is_some() && replay_cpu_us.is_some());
    assert_eq!(bucket, MachineBucket { interval_us, replay_cpu_us, ..MachineBucket::default() });
}
