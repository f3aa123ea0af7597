use howdah_traffic::{Event, EventRef, Text};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{
    Options, Summary,
    input::{Got, Input},
};

fn fixture(setting: &str, format: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/17");
    std::fs::read(format!("{root}/{setting}.{format}")).expect("a fixture")
}

/// Keeps the events it is shown.
#[derive(Default)]
struct Keeper(Vec<Event>);

impl EventSink for Keeper {
    fn event(&mut self, event: &EventRef<'_>) {
        self.0.push(event.to_event(&mut |text| Text::from(text.as_bytes())));
    }
}

/// What is made of a log that is fed in pieces, by a crew or without.
fn import(
    log: &[u8],
    pieces: impl IntoIterator<Item = usize>,
    workers: usize,
) -> Result<(Vec<Event>, Summary), ImportError> {
    let mut importer = Importer::new(Options::default()).expect("options");
    let mut crew = Crew::of(workers);
    importer.begin_file("test.log");
    let mut rest = log;
    let mut keeper = Keeper::default();
    for len in pieces.into_iter().chain([log.len()]) {
        let (piece, more) = rest.split_at(len.min(rest.len()));
        crew.feed(&mut importer, piece, &mut keeper)?;
        rest = more;
    }
    crew.flush(&mut importer, &mut keeper)?;
    importer.finish_to(&mut keeper)?;
    Ok((keeper.0, importer.summary().clone()))
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    /// Several fixtures one after another, with bytes struck out, on any number of threads, in pieces
    /// of any size: the events, facts and problems are those of one thread and one piece.
    #[test]
    fn a_crew_finds_what_one_thread_finds(
        format in prop::sample::select(&["log", "csv", "json"][..]),
        settings in vec(prop::sample::select(&["prod", "durationonly", "verbose"][..]), 1..4),
        holes in vec((any::<Index>(), 1..300_usize), 0..4),
        sizes in vec(1..20_000_usize, 1..40),
        workers in 0..4_usize,
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
        let got = import(&log, sizes.iter().copied().cycle().take(2000), workers);
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

/// Some MB, in a file.
fn long_log() -> (tempfile::NamedTempFile, Vec<u8>) {
    let log = fixture("prod", "csv").repeat(60);
    assert!(log.len() > 6 * PIECE_BYTES, "{}", log.len());
    let file = tempfile::NamedTempFile::new().expect("a temporary file");
    std::fs::write(file.path(), &log).expect("written");
    (file, log)
}

/// What is made of a file of which a crew reads what it may. `meddle` is done with the file once it is open.
fn import_file(file: &tempfile::NamedTempFile, meddle: impl FnOnce()) -> Vec<Event> {
    let mut importer = Importer::new(Options::default()).expect("options");
    let mut crew = Crew::of(2);
    importer.begin_file("test.log");
    let mut input = Input::open(file.path(), 1 << 20).expect("opened");
    let (mut keeper, mut stretches, mut meddle) = (Keeper::default(), 0, Some(meddle));
    loop {
        if crew.can_read(&importer)
            && let Some(stretch) = input.stretch()
        {
            stretches += 1;
            crew.feed_stretch(&mut importer, stretch, &mut keeper).expect("fed");
            continue;
        }
        if input.read().expect("read") != Got::Bytes {
            break;
        }
        crew.feed(&mut importer, input.bytes(), &mut keeper).expect("fed");
        if importer.framer().is_some()
            && let Some(meddle) = meddle.take()
        {
            meddle();
        }
    }
    assert!(stretches > 4, "{stretches}");
    crew.flush(&mut importer, &mut keeper).expect("flushed");
    assert!(crew.take_failure().is_none());
    importer.finish_to(&mut keeper).expect("finished");
    keeper.0
}

#[test]
fn a_file_that_the_crew_reads_is_the_log() {
    let (file, log) = long_log();
    let (expected, _) = import(&log, [], 0).expect("imported");
    assert!(import_file(&file, || ()) == expected);
}

#[test]
fn a_file_that_grows_is_read_to_its_new_end() {
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
fn a_file_that_is_cut_meanwhile_ends_there() {
    let (file, log) = long_log();
    let kept = log.len() / 2;
    let (expected, _) = import(&log[..kept], [], 0).expect("imported");
    let cut = || file.as_file().set_len(kept as u64).expect("cut");
    assert!(import_file(&file, cut) == expected);
}

#[test]
fn what_cannot_be_read_is_told() {
    let (file, _) = long_log();
    let open =
        std::fs::File::options().write(true).open(file.path()).expect("opened to be written");
    let mut importer = Importer::new(Options::default()).expect("options");
    let mut crew = Crew::of(1);
    importer.begin_file("test.log");
    let mut keeper = Keeper::default();
    crew.feed(&mut importer, &fixture("prod", "csv"), &mut keeper).expect("fed");
    assert!(crew.can_read(&importer));
    let stretch = FileRange::of(open, 0);
    crew.feed_stretch(&mut importer, stretch, &mut keeper).expect("nothing wrong with the log");
    crew.flush(&mut importer, &mut keeper).expect("flushed");
    let failure = crew.take_failure().expect("told");
    assert_eq!(failure.raw_os_error(), Some(9), "{failure}");
}
