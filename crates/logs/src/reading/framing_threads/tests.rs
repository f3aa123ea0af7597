use howdah_log_input::{LogInput, ReadResult};
use howdah_traffic::{Event, EventRef, Text};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{ImportOptions, ImportSummary};

fn fixture(setting: &str, format: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/17");
    std::fs::read(format!("{root}/{setting}.{format}")).expect("a fixture")
}

/// A sink that collects events.
#[derive(Default)]
struct EventCollector(Vec<Event>);

impl EventSink for EventCollector {
    fn event(&mut self, event: &EventRef<'_>) {
        self.0.push(event.to_event(&mut |text| Text::from(text.as_bytes())));
    }
}

/// Imports a log that is fed in chunks, with framing threads or without.
fn import(
    log: &[u8],
    chunks: impl IntoIterator<Item = usize>,
    threads_max: usize,
) -> Result<(Vec<Event>, ImportSummary), ImportError> {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    let mut threads = FramingThreads::with_threads(threads_max);
    importer.start_file("test.log");
    let mut rest = log;
    let mut collector = EventCollector::default();
    for len in chunks.into_iter().chain([log.len()]) {
        let (chunk, more) = rest.split_at(len.min(rest.len()));
        threads.feed(&mut importer, chunk, &mut collector)?;
        rest = more;
    }
    threads.flush(&mut importer, &mut collector)?;
    importer.finish_to(&mut collector)?;
    Ok((collector.0, importer.summary().clone()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Several fixtures one after another with bytes removed, on any number of threads, in chunks
    /// of any size: events, facts and problems equal those of one thread and one chunk.
    #[test]
    fn framing_threads_find_what_one_thread_finds(
        format in prop::sample::select(&["log", "csv", "json"][..]),
        settings in vec(prop::sample::select(&["prod", "durationonly", "verbose"][..]), 1..4),
        holes in vec((any::<Index>(), 1..300_usize), 0..4),
        sizes in vec(1..20_000_usize, 1..40),
        threads_max in 0..4_usize,
    ) {
        let mut log = Vec::new();
        for setting in &settings {
            let own = if format == "log" { settings[0] } else { setting };
            log.extend(fixture(own, format));
        }
        for (at, len) in &holes {
            let from = at.index(log.len());
            log.drain(from..(from + len).min(log.len()));
        }
        let expected = import(&log, [], 0);
        let got = import(&log, sizes.iter().copied().cycle().take(2000), threads_max);
        match (expected, got) {
            (Ok(expected), Ok(got)) => {
                prop_assert_eq!(expected.0, got.0);
                prop_assert_eq!(expected.1.facts, got.1.facts);
                prop_assert_eq!(expected.1.problems, got.1.problems);
                prop_assert_eq!(expected.1.records, got.1.records);
            }
            (expected, got) => prop_assert_eq!(expected.map(|_| ()), got.map(|_| ())),
        }
    }
}

/// A file of some MB.
fn long_log() -> (tempfile::NamedTempFile, Vec<u8>) {
    let log = fixture("prod", "csv").repeat(60);
    assert!(log.len() > 6 * CHUNK_BYTES, "{}", log.len());
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &log).expect("written");
    (file, log)
}

/// Imports a file whose ranges the threads read. `meddle` changes the file once it is open.
fn import_file(file: &tempfile::NamedTempFile, meddle: impl FnOnce()) -> Vec<Event> {
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    let mut threads = FramingThreads::with_threads(2);
    importer.start_file("test.log");
    let mut input = LogInput::open(file.path(), 1 << 20).expect("opened");
    let (mut collector, mut ranges, mut meddle) = (EventCollector::default(), 0, Some(meddle));
    loop {
        if threads.is_active(&importer)
            && let Some(range) = input.next_range()
        {
            ranges += 1;
            threads.feed_range(&mut importer, range, &mut collector).expect("fed");
            continue;
        }
        if input.read().expect("read") != ReadResult::Bytes {
            break;
        }
        threads.feed(&mut importer, input.bytes(), &mut collector).expect("fed");
        if importer.framer().is_some()
            && let Some(meddle) = meddle.take()
        {
            meddle();
        }
    }
    assert!(ranges > 4, "{ranges}");
    threads.flush(&mut importer, &mut collector).expect("flushed");
    assert!(threads.take_failure().is_none());
    importer.finish_to(&mut collector).expect("finished");
    collector.0
}

#[test]
fn file_read_by_threads_equals_its_bytes() {
    let (file, log) = long_log();
    let (expected, _) = import(&log, [], 0).expect("imported");
    assert!(import_file(&file, || ()) == expected);
}

#[test]
fn growing_file_is_read_to_its_new_end() {
    let (file, log) = long_log();
    let more = fixture("verbose", "csv").repeat(20);
    let (expected, _) = import(&[&log[..], &more].concat(), [], 0).expect("imported");
    let grow = || {
        let mut end = std::fs::File::options().append(true).open(file.path()).expect("opened");
        io::Write::write_all(&mut end, &more).expect("written");
    };
    assert!(import_file(&file, grow) == expected);
}

#[test]
fn file_truncated_meanwhile_ends_early() {
    let (file, log) = long_log();
    let remaining = log.len() / 2;
    let (expected, _) = import(&log[..remaining], [], 0).expect("imported");
    let cut = || file.as_file().set_len(remaining as u64).expect("cut");
    assert!(import_file(&file, cut) == expected);
}

#[test]
fn read_error_is_reported() {
    let (file, _) = long_log();
    let open =
        std::fs::File::options().write(true).open(file.path()).expect("opened to be written");
    let mut importer = Importer::new(ImportOptions::default()).expect("options");
    let mut threads = FramingThreads::with_threads(1);
    importer.start_file("test.log");
    let mut collector = EventCollector::default();
    threads.feed(&mut importer, &fixture("prod", "csv"), &mut collector).expect("fed");
    assert!(threads.is_active(&importer));
    let range = FileRange::new(open, 0);
    threads.feed_range(&mut importer, range, &mut collector).expect("nothing wrong with the log");
    threads.flush(&mut importer, &mut collector).expect("flushed");
    let failure = threads.take_failure().expect("told");
    assert_eq!(failure.raw_os_error(), Some(9), "{failure}");
}
