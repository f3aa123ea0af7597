//! [`conversation`]: reconstructs a session's client messages from its events.

use std::collections::{HashMap, VecDeque};

use crate::{Action, Bound, ClientMessage, Event, NamedObject, Text};

/// Returns lines that describe the client messages of one session, with their row counts and
/// SQLSTATEs.
///
/// `events` are those of the session, in order. The lines are for comparisons: two sessions with
/// equal lines sent the same messages with the same values, and got the same row counts and
/// SQLSTATEs (bytes that are not UTF-8 all look the same). The lines contain neither times nor
/// session names, nor cancels, whose arrival is a matter of timing. For events from logs, the lines
/// show only the executions, without bound values and, in the extended protocol, without SQL.
pub fn conversation(events: &[Event]) -> Vec<String> {
    let mut binds: HashMap<(Option<u32>, &[u8]), VecDeque<&Event>> = HashMap::new();
    for event in events {
        if let Action::Bind(bound) | Action::Execute(bound) = &event.action {
            let key = (event.pipeline, bound.portal.as_bytes());
            binds.entry(key).or_default().push_back(event);
        }
    }
    let mut lines = Vec::new();
    for event in events {
        let Some(messages) = event.messages() else {
            lines.extend(event.action.kind().is_execution().then(|| event_message(event)));
            continue;
        };
        for message in ClientMessage::all(messages.as_bytes()) {
            lines.push(match message {
                ClientMessage::EventMessage => event_message(event),
                ClientMessage::Bind(portal) => {
                    let bound = binds.get_mut(&(event.pipeline, portal));
                    let bound = bound.and_then(VecDeque::pop_front);
                    bound.map_or_else(|| "bind of no event".to_owned(), bind)
                }
                ClientMessage::Describe(named) => format!("describe {}", named_object(named)),
                ClientMessage::Close(named) => format!("close {}", named_object(named)),
                ClientMessage::Flush => "flush".to_owned(),
                ClientMessage::Sync => "sync".to_owned(),
            });
        }
        if let (Action::Bind(_), Some(code)) = (&event.action, event.outcome.sqlstate) {
            lines.push(format!("failed {code}"));
        }
    }
    lines
}

fn named_object(named: NamedObject<'_>) -> String {
    match named {
        NamedObject::Statement(name) => format!("statement {:?}", Text::from(name)),
        NamedObject::Portal(name) => format!("portal {:?}", Text::from(name)),
    }
}

/// Returns the line for an event's own message and its outcome.
fn event_message(event: &Event) -> String {
    let wire = event.wire.as_deref().cloned().unwrap_or_default();
    let line = match &event.action {
        Action::Parse { statement, sql } => format!("parse {statement:?} {sql:?} {:?}", wire.types),
        Action::Execute(bound) | Action::Fetch(bound) => {
            format!("execute {:?} {}", bound.portal, wire.rows_max)
        }
        Action::Call { function } => {
            format!(
                "call {function} {:?} {:?} {:?}",
                wire.formats, wire.arguments, wire.result_formats
            )
        }
        other => format!("query {:?} {:?}", other.sql(), wire.copy_in),
    };
    match (event.outcome.sqlstate, wire.rows) {
        (Some(code), _) => format!("{line} failed {code}"),
        (None, Some(rows)) => format!("{line} rows {rows}"),
        (None, None) => line,
    }
}

fn bind(event: &Event) -> String {
    let wire = event.wire.as_deref().cloned().unwrap_or_default();
    let (Action::Bind(bound) | Action::Execute(bound)) = &event.action else {
        return String::new();
    };
    let Bound { statement, portal, sql, parameters } = bound;
    format!(
        "bind {portal:?} {statement:?} {sql:?} {parameters:?} {:?} {:?}",
        wire.formats, wire.result_formats
    )
}

#[test]
fn messages_and_values_are_in_order_of_sending() {
    use std::sync::Arc;

    use crate::{CapturedOutcome, Parameter, Source, SqlState, Timestamp, WireDetail};

    let event = |action, messages: &str, rows, code: &[u8]| Event {
        time: Timestamp::from_micros(0),
        session: Arc::from("s"),
        user: Arc::default(),
        database: Arc::default(),
        application: Arc::default(),
        action,
        outcome: CapturedOutcome { sqlstate: SqlState::new(code), ..CapturedOutcome::default() },
        source: Source::Wire,
        vxid: None,
        query_id: None,
        pipeline: Some(1),
        wire: Some(Box::new(WireDetail {
            rows,
            messages: Some(messages.into()),
            ..WireDetail::default()
        })),
    };
    let bound = |value: &str| Bound {
        statement: "s".into(),
        portal: "p".into(),
        sql: "select $1".into(),
        parameters: Some(vec![Parameter::Value(value.into())]),
    };
    let parse = Action::Parse { statement: "s".into(), sql: "select $1".into() };
    let events = [
        event(parse, "P", None, b""),
        event(Action::Execute(bound("1")), "DSs\0Bp\0EHCPp\0Bp\0", Some(1), b""),
        event(Action::Execute(bound("2")), "ES", None, b"22012"),
    ];
    let values = |value: &str| {
        format!(
            r#"bind "p" "s" "select $1" {:?} [] []"#,
            Some(vec![Parameter::Value(value.into())])
        )
    };
    assert_eq!(
        conversation(&events),
        [
            r#"parse "s" "select $1" []"#,
            r#"describe statement "s""#,
            &values("1"),
            r#"execute "p" 0 rows 1"#,
            "flush",
            r#"close portal "p""#,
            &values("2"),
            r#"execute "p" 0 failed 22012"#,
            "sync",
        ]
    );
}
