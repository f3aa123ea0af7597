//! Writes a schedule as a capture.

use std::{path::Path, sync::Arc, time::Duration};

use howdah_dataset::{CaptureSettings, CaptureWriter};
use howdah_traffic::{
    Action, Bound, CapturedOutcome, Event, Parameter, SessionId, Source, Text, Timestamp,
};

use crate::{DATABASE, ROLE, STATEMENT, STATEMENT_NAME, schedule::StatementSchedule};

/// Captured time of the first login, since 1970.
const ORIGIN: Timestamp = Timestamp::from_micros(1_795_000_000_000_000);

/// Time between two logins: forking a session takes a server about a millisecond.
const LOGIN_INTERVAL: Duration = Duration::from_millis(2);

/// Time from a login to the session's first execution, which also prepares the statement.
const PREPARE_DELAY: Duration = Duration::from_millis(500);

/// Time from the last login to the start of the statements.
const START_DELAY: Duration = Duration::from_secs(1);

pub(crate) fn write(output: &Path, schedule: &StatementSchedule) -> anyhow::Result<()> {
    let settings = CaptureSettings { overwrite: true, ..CaptureSettings::default() };
    let mut writer = CaptureWriter::create(output, settings)?;
    let sessions: Vec<SessionId> =
        (0..schedule.sessions).map(|number| format!("{number:x}.1").into()).collect();
    let (user, database): (Arc<str>, Arc<str>) = (ROLE.into(), DATABASE.into());
    let event = |time, session: &SessionId, action| Event {
        time,
        session: session.clone(),
        user: user.clone(),
        database: database.clone(),
        application: "".into(),
        action,
        outcome: CapturedOutcome::default(),
        source: Source::Statement,
        vxid: None,
        query_id: None,
        pipeline: None,
        wire: None,
    };
    let execute = |account: u64| {
        Action::Execute(Bound {
            statement: STATEMENT_NAME.into(),
            portal: Text::default(),
            sql: STATEMENT.into(),
            parameters: Some(vec![Parameter::Value(account.to_string().into())]),
        })
    };
    let mut time = ORIGIN;
    for session in &sessions {
        writer.write(event(time, session, Action::Connect))?;
        writer.write(event(time + PREPARE_DELAY, session, execute(1)))?;
        time = time + LOGIN_INTERVAL;
    }
    let start = time + PREPARE_DELAY + START_DELAY;
    let mut end = start;
    for statement in schedule.statements() {
        end = start + statement.due;
        let session = &sessions[statement.session];
        writer.write(event(end, session, execute(statement.account)))?;
    }
    for session in &sessions {
        writer.write(event(end + START_DELAY, session, Action::Disconnect))?;
    }
    writer.finish(serde_json::Value::Null)?;
    Ok(())
}
