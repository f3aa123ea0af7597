//! Events for tests: arbitrary ones for property tests, simple ones for scenarios.

use std::{path::Path, sync::Arc};

use howdah_traffic::{
    Action, Bound, CapturedOutcome, CapturedResult, CopyDirection, CopyInData, Event, Parameter,
    Source, SqlState, Text, Timestamp, WireDetail,
};
use proptest::{collection::vec, option, prelude::*};

use super::super::{CaptureSettings, CaptureWriter};
use crate::{CaptureManifest, ReadError, buffer::BufferLimits};

/// Writes a finished capture of these events.
pub(super) fn write_all(dir: &Path, limits: BufferLimits, events: &[Event]) -> CaptureManifest {
    let mut writer = CaptureWriter::with_limits(dir, CaptureSettings::default(), limits).unwrap();
    for event in events {
        writer.write(event.clone()).unwrap();
    }
    writer.finish(serde_json::json!({ "said": "by the test" })).unwrap()
}

/// Collects the events of a stream that must not have errors.
pub(super) fn collect_events<T: Into<Box<Event>>>(
    stream: impl Iterator<Item = Result<T, ReadError>>,
) -> Vec<Event> {
    stream.map(|event| *event.unwrap().into()).collect()
}

/// Returns a query with a unique text.
pub(super) fn simple_at(micros: i64) -> Event {
    Event { action: Action::Simple { sql: format!("select {micros}").into() }, ..connect(micros) }
}

/// Returns a Connect event.
pub(super) fn connect(micros: i64) -> Event {
    Event {
        time: Timestamp::from_micros(micros),
        session: "656a1b2c.4d2".into(),
        user: "app".into(),
        database: "shop".into(),
        application: "".into(),
        action: Action::Connect,
        outcome: CapturedOutcome::default(),
        source: Source::Session,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    }
}

/// Generates any event that the model can express, with durations that fit into `i64`.
pub(super) fn any_event() -> impl Strategy<Value = Event> {
    let session = (any_time(), any_name(), any_name(), any_name(), any_name());
    let rest = (
        any_action(),
        any_outcome(),
        any_source(),
        option::of(any_name()),
        any::<Option<i64>>(),
        any::<Option<u32>>(),
        option::of(any_wire()),
    );
    (session, rest).prop_map(
        |(
            (time, session, user, database, application),
            (action, outcome, source, vxid, query_id, pipeline, wire),
        )| Event {
            time,
            session,
            user,
            database,
            application,
            action,
            outcome,
            source,
            vxid,
            query_id,
            pipeline,
            wire: wire.map(Box::new),
        },
    )
}

/// Generates times. Many are equal, so that the order of arrival matters; some are outside the
/// range of RFC 3339.
fn any_time() -> impl Strategy<Value = Timestamp> {
    prop_oneof![4 => 0_i64..10, 1 => any::<i64>()].prop_map(Timestamp::from_micros)
}

fn any_name() -> impl Strategy<Value = Arc<str>> {
    prop_oneof![Just(String::new()), "[a-c]", any::<String>()].prop_map(Arc::from)
}

fn any_text() -> impl Strategy<Value = Text> {
    prop_oneof![
        Just(Text::default()),
        "select [a-z]{0,9}".prop_map(Text::from),
        any::<String>().prop_map(Text::from),
        vec(any::<u8>(), 0..20).prop_map(Text::from),
    ]
}

fn any_parameter() -> impl Strategy<Value = Parameter> {
    prop_oneof![
        Just(Parameter::Null),
        any_text().prop_map(Parameter::Value),
        any_text().prop_map(Parameter::Truncated),
    ]
}

fn any_bound() -> impl Strategy<Value = Bound> {
    (any_text(), any_text(), any_text(), option::of(vec(any_parameter(), 0..5))).prop_map(
        |(statement, portal, sql, parameters)| Bound { statement, portal, sql, parameters },
    )
}

fn any_wire() -> impl Strategy<Value = WireDetail> {
    let codes = || vec(any::<u16>(), 0..4);
    let copy = (0..=i64::MAX.unsigned_abs(), vec(option::of(any_text()), 0..3), any::<bool>())
        .prop_map(|(bytes, data, failed)| CopyInData { bytes, data, failed });
    let result = (any::<u64>(), option::of(vec(option::of(any_text()), 0..3)))
        .prop_map(|(checksum, first_row)| CapturedResult { checksum, first_row });
    (
        option::of(0..=i64::MAX.unsigned_abs()),
        vec(any::<u32>(), 0..4),
        codes(),
        codes(),
        any::<u32>(),
        vec((any_text(), any_text()), 0..3),
        option::of(copy),
        option::of(vec(option::of(any_text()), 0..3)),
        option::of(any_text()),
        option::of(result),
    )
        .prop_map(|wire| {
            let (rows, types, formats, result_formats, rows_max, ..) = wire;
            let (.., settings, copy_in, arguments, messages, result) = wire;
            WireDetail {
                rows,
                types,
                formats,
                result_formats,
                rows_max,
                settings,
                copy_in,
                arguments,
                messages,
                result,
            }
        })
}

fn any_action() -> impl Strategy<Value = Action> {
    let direction = prop_oneof![Just(CopyDirection::In), Just(CopyDirection::Out)];
    prop_oneof![
        Just(Action::Connect),
        Just(Action::Disconnect),
        any_text().prop_map(|sql| Action::Simple { sql }),
        (any_text(), direction).prop_map(|(sql, direction)| Action::Copy { sql, direction }),
        (any_text(), any_text()).prop_map(|(statement, sql)| Action::Parse { statement, sql }),
        any_bound().prop_map(Action::Bind),
        any_bound().prop_map(Action::Execute),
        any_bound().prop_map(Action::Fetch),
        any_text().prop_map(|function| Action::Call { function }),
        Just(Action::Cancel),
    ]
}

fn any_outcome() -> impl Strategy<Value = CapturedOutcome> {
    let duration = option::of(0..=i64::MAX.unsigned_abs());
    let sqlstate =
        option::of("[0-9A-Z]{5}".prop_map(|code| SqlState::new(code.as_bytes()).unwrap()));
    (duration, sqlstate, option::of(any_text()))
        .prop_map(|(duration_us, sqlstate, error)| CapturedOutcome { duration_us, sqlstate, error })
}

fn any_source() -> impl Strategy<Value = Source> {
    proptest::sample::select(Source::ALL)
}
