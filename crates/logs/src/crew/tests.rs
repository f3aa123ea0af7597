use howdah_traffic::{Event, EventRef, Text};
use proptest::{collection::vec, prelude::*, sample::Index};

use super::*;
use crate::{Options, Summary};

fn fixture(setting: &str, format: &str) -> Vec<u8> {
    let root = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/17");
    std::fs::read(format!("{root}/{setting}.{format}")).expect("a fixture")
}

/// Keeps the events it is shown.
#[derive(Default)]
struct Keeper(Vec<Event>);

impl Visit for Keeper {
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
