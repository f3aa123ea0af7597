//! Filters and slices of events from any log.

use std::time::Duration;

use howdah_capture::{EventFilter, Filter, SampleRate, Slices};
use howdah_logs::{ImportOptions, Importer, ServerLogFormat};
use howdah_sql::grammar::{Effect, classify};
use howdah_traffic::{Event, Source, Timestamp};

use super::{Seeds, Shape};

/// Session commands that the filter remembers, and names of users and databases.
pub const WORDS: &[&[u8]] = &[
    b"2026-11-20 12:43:19.577 UTC [7] al@shop LOG:  ",
    b"2026-11-20 12:43:19.600 UTC [8] bo@crm LOG:  ",
    b"2026-11-20 12:43:20.001 UTC [7] al@shop LOG:  ",
    b"statement: ",
    b"execute S_1: select 1",
    b"duration: 1.5 ms  parse S_1: select 1",
    b"execute S_1: delete from t",
    b"prepare p as select 1",
    b"execute p",
    b"deallocate p",
    b"declare c cursor for select 1",
    b"fetch from c",
    b"set search_path = x",
    b"reset all",
    b"begin",
    b"commit",
    b"connection received: host=[local]",
    b"connection authorized: user=al database=shop application_name=psql",
    b"disconnection: session time: 0:00:01.200 user=al database=shop host=[local]",
    b"\n",
];

/// Bytes in front of the log that choose the filter.
const CHOICE_BYTES: usize = 4;

/// Filters the events of a log. The filter's values are taken from the events themselves.
pub fn run(input: &[u8]) -> Shape {
    let Some((&choice, log)) = input.split_first_chunk::<CHOICE_BYTES>() else {
        return Shape::of("too short");
    };
    let events = events(log);
    let (filter, sample) = wanted(choice, &events);
    let once = sift(&events, &filter, sample);
    let twice = sift(&once, &filter, sample);
    let changed = once.iter().zip(&twice).find(|(one, other)| one != other);
    assert!(changed.is_none(), "kept, then: {changed:?}");
    assert_eq!(once.len(), twice.len(), "kept again");
    keeps_what_is_wanted(&events, &once, &filter);
    slice(&events, Duration::from_millis(1 + u64::from(choice[3])));
    let inferred = once.iter().filter(|event| event.source == Source::Inferred).count();
    let kinds: Vec<_> = once.iter().map(|event| event.action.kind()).take(4).collect();
    Shape::of((choice[0], inferred.min(3))).and((choice[0] & 32, kinds)).and(once.len().min(9))
}

/// Imports a log and sorts its events by time.
fn events(log: &[u8]) -> Vec<Event> {
    let prefix = Some("%m [%p] %q%u@%d ".to_owned());
    let options =
        ImportOptions { format: Some(ServerLogFormat::Stderr), prefix, ..ImportOptions::default() };
    let mut importer = Importer::new(options).expect("options of ours");
    importer.start_file("fuzz.log");
    // A text that is not a log has no events.
    let _ = importer.feed(log).and_then(|()| importer.finish());
    let mut events: Vec<_> = std::iter::from_fn(|| importer.poll_event()).collect();
    events.sort_by_key(|event| event.time);
    events
}

/// Builds a filter: the bits of the first byte select its conditions, the others the events whose
/// values they take.
fn wanted(
    [by, first, second, _]: [u8; CHOICE_BYTES],
    events: &[Event],
) -> (Filter, Option<SampleRate>) {
    let at = |number: u8| events.get(usize::from(number) % events.len().max(1));
    let time = |number: u8| at(number).map(|event| event.time);
    let names = |bit: u8, name: fn(&Event) -> &str| match at(first) {
        Some(event) if by & bit != 0 => vec![name(event).to_owned()],
        _ => Vec::new(),
    };
    let filter = Filter {
        from: time(second).filter(|_| by & 1 != 0),
        until: time(first).filter(|_| by & 2 != 0),
        users: names(4, |event| &event.user),
        databases: names(8, |event| &event.database),
        applications: names(16, |event| &event.application),
        sessions: names(128, |event| &event.session),
        read_only: by & 32 != 0,
    };
    (filter, SampleRate::part(1 + u32::from(second) % 3, 3).filter(|_| by & 64 != 0))
}

/// Filters events, and checks that every event is either kept or counted as excluded.
fn sift(events: &[Event], filter: &Filter, sample: Option<SampleRate>) -> Vec<Event> {
    let mut sieve = EventFilter::new(filter.clone(), sample);
    let mut kept = Vec::new();
    for event in events {
        sieve.push(event.clone());
        kept.extend(std::iter::from_fn(|| sieve.poll()));
    }
    assert_eq!(sieve.kept_count(), kept.len() as u64);
    let left: u64 = sieve.excluded().values().sum();
    assert_eq!(sieve.kept_count() + left, events.len() as u64, "{:?}", sieve.excluded());
    kept
}

/// Checks that kept events are in the original order and meet the filter, unless they are inferred.
fn keeps_what_is_wanted(events: &[Event], kept: &[Event], filter: &Filter) {
    let mut rest = events.iter();
    for event in kept.iter().filter(|event| event.source != Source::Inferred) {
        assert!(rest.any(|other| other == event), "{event:?} is new");
    }
    for event in kept {
        assert!(filter.from.is_none_or(|from| from <= event.time), "{event:?}");
        assert!(filter.until.is_none_or(|until| event.time < until), "{event:?}");
        let is_one_of =
            |names: &[String], name: &str| names.is_empty() || names.iter().any(|n| n == name);
        assert!(is_one_of(&filter.sessions, &event.session), "{event:?}");
        assert!(is_one_of(&filter.users, &event.user), "{event:?}");
        assert!(is_one_of(&filter.databases, &event.database), "{event:?}");
        let sql = event.action.sql().filter(|_| filter.read_only);
        let effect = sql.map_or(Effect::ReadOnly, |sql| classify(sql.as_bytes()).effect);
        assert_eq!(effect, Effect::ReadOnly, "{event:?}");
    }
}

/// Checks that every event lies within the time range of its slice.
fn slice(events: &[Event], length: Duration) {
    let mut slices = Slices::new(length);
    let (mut number, mut repeated) = (0, 0);
    for event in events {
        let (own, before) = slices.push(event);
        assert!(own >= number);
        assert!(slices.start_time(own) <= event.time, "{event:?}");
        assert!(event.time < slices.start_time(own) + length, "{event:?}");
        assert!(before.iter().all(|one| one.session == event.session && one.time == event.time));
        number = own;
        repeated += before.len() as u64;
    }
    assert_eq!(slices.repeated(), repeated);
    assert!(
        number == 0
            || slices.start_time(0) == events.first().map_or(Timestamp::default(), |e| e.time)
    );
}

/// The stderr logs, each with several filters.
pub fn seeds() -> Vec<Vec<u8>> {
    let logs = Seeds::Folder("stderr").inputs();
    let of = |log: Vec<u8>| {
        let choices = [[1, 9, 5, 200], [3, 30, 4, 10], [4, 1, 1, 1], [16, 3, 7, 2], [33, 9, 9, 9]];
        choices.into_iter().map(move |choice| [&choice[..], &log].concat())
    };
    logs.into_iter().flat_map(of).collect()
}
