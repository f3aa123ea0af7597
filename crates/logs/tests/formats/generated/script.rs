//! The records that a session's actions leave, and what each of them means.

use std::collections::HashMap;

use howdah_traffic::{Action, Bound, Parameter};

use super::{
    plan::{
        ExtendedQuery, FailureKind, LogPlan, LoggingStyle, PlannedAction, PlannedFailure,
        PlannedStep, SessionPlan,
    },
    writer::ServerRecord,
};

/// The meaning of a record.
#[derive(Clone, Debug)]
pub(super) enum RecordMeaning {
    Nothing,
    /// A connection arrived.
    Received,
    Connected,
    /// An action started.
    Opens(Action, BlockEffect),
    /// An action ended that no earlier record showed.
    Whole(Action, BlockEffect, u64),
    /// A parse or bind of the following action ended.
    Step(bool, u64),
    /// An action ended that no other record shows.
    Unlogged(u64),
    /// The open action ended.
    Ends(u64),
    /// The open action failed; or this one, if the log does not show starts.
    Fails(Action, FailureKind),
    Disconnected,
}

/// The effect of an action on pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BlockEffect {
    /// Only a server that logs everything logs its start.
    Plain,
    Begins,
    Other,
}

/// Writes a session's records, without their times.
pub(super) struct SessionScript<'a> {
    plan: &'a LogPlan,
    session: &'a SessionPlan,
    application: Vec<u8>,
    transaction: u32,
    /// Texts of the prepared statements.
    prepared: HashMap<Vec<u8>, Vec<u8>>,
    pub(super) records: Vec<(ServerRecord, RecordMeaning)>,
}

impl<'a> SessionScript<'a> {
    pub(super) fn new(plan: &'a LogPlan, session: &'a SessionPlan) -> Self {
        Self {
            plan,
            session,
            application: session.application.clone(),
            transaction: 1,
            prepared: HashMap::new(),
            records: Vec::new(),
        }
    }

    pub(super) fn write(mut self) -> Vec<(ServerRecord, RecordMeaning)> {
        let SessionPlan { user, database, application, is_connected, steps, .. } = self.session;
        if *is_connected {
            let received = ServerRecord {
                is_authorized: false,
                ..ServerRecord::log("connection received: host=[local]")
            };
            self.records.push((received, RecordMeaning::Received));
            let mut message =
                [&b"connection authorized: user="[..], user, b" database=", database].concat();
            if !application.is_empty() {
                message.extend([&b" application_name="[..], application].concat());
            }
            self.records.push((ServerRecord::log(message), RecordMeaning::Connected));
        }
        for step in steps {
            self.step(step);
        }
        if *is_connected {
            let message = b"disconnection: session time: 0:00:01.000 user=";
            let message = [&message[..], user, b" database=", database, b" host=[local]"].concat();
            self.push(ServerRecord::log(message), RecordMeaning::Disconnected);
        }
        self.records
    }

    fn push(&mut self, record: ServerRecord, meaning: RecordMeaning) {
        self.records
            .push((ServerRecord { application: self.application.clone(), ..record }, meaning));
    }

    fn style(&self) -> LoggingStyle {
        self.plan.style
    }

    fn step(&mut self, step: &PlannedStep) {
        self.transaction += 1;
        match &step.action {
            PlannedAction::Simple(sql) => self.simple(sql, BlockEffect::Other, step, false),
            PlannedAction::Plain(sql) => {
                self.simple(sql.as_bytes(), BlockEffect::Plain, step, false);
            }
            PlannedAction::Block(queries) => {
                let unfailing = PlannedStep { failure: None, ..step.clone() };
                self.simple(b"begin", BlockEffect::Begins, &unfailing, true);
                for query in queries {
                    self.extended(query, &unfailing, None);
                }
                self.simple(b"COMMIT", BlockEffect::Plain, &unfailing, false);
            }
            PlannedAction::Pipeline(queries) => {
                for (number, query) in (1..).zip(queries) {
                    let failure = step.failure.as_ref().filter(|_| number == queries.len());
                    self.extended(query, step, failure);
                }
            }
            PlannedAction::Call(function) => {
                let text =
                    [&b"fastpath function call: \""[..], function, b"\" (OID 1598)"].concat();
                let action = Action::Call { function: function.as_slice().into() };
                let unfailing = PlannedStep { failure: None, ..step.clone() };
                self.run(&text, None, action, BlockEffect::Plain, &unfailing, self.transaction);
            }
            PlannedAction::Rename(application) => {
                let unfailing = PlannedStep { failure: None, ..step.clone() };
                self.simple(b"set application_name = x", BlockEffect::Plain, &unfailing, false);
                self.application.clone_from(application);
            }
        }
    }

    fn simple(&mut self, sql: &[u8], kind: BlockEffect, step: &PlannedStep, stays_open: bool) {
        let text = [b"statement: ", sql].concat();
        let step = PlannedStep {
            failure: step.failure.clone().filter(|_| !sql.is_empty()),
            ..step.clone()
        };
        // The transaction of a message is over when its duration is logged.
        let after = if stays_open { self.transaction } else { 0 };
        self.run(&text, None, Action::Simple { sql: sql.into() }, kind, &step, after);
    }

    /// Writes the records of an execution.
    fn run(
        &mut self,
        text: &[u8],
        detail: Option<Vec<u8>>,
        action: Action,
        kind: BlockEffect,
        step: &PlannedStep,
        after: u32,
    ) {
        let is_simple = matches!(action, Action::Simple { .. });
        let micros = u64::from(step.micros);
        let is_logged = self.is_logged(&action);
        if self.style().logs_starts() && is_logged {
            let query_id = if is_simple { 0 } else { step.query_id };
            let tag = if is_simple { "idle" } else { "INSERT" };
            let transaction = self.transaction;
            let detail = detail.clone();
            let record =
                ServerRecord { tag, transaction, query_id, detail, ..ServerRecord::log(text) };
            self.push(record, RecordMeaning::Opens(action.clone(), kind));
        }
        if step.is_noisy {
            let record = ServerRecord {
                severity: "WARNING",
                hint: detail.clone(),
                ..ServerRecord::log(text)
            };
            self.push(record, RecordMeaning::Nothing);
        }
        if let Some(failure) = step.failure.as_ref().filter(|_| is_logged) {
            return self.fail(action, failure, step.query_id);
        }
        let sql = action.sql().map_or(&b""[..], |sql| sql.as_bytes());
        let tag = match sql {
            b"begin" => "BEGIN",
            b"COMMIT" => "COMMIT",
            _ => "INSERT",
        };
        let record = ServerRecord {
            tag,
            transaction: after,
            query_id: step.query_id,
            ..ServerRecord::log("")
        };
        let duration = format!("duration: {}.{:03} ms", micros / 1000, micros % 1000);
        if self.style().logs_durations() {
            let meaning = if is_logged {
                RecordMeaning::Ends(micros)
            } else {
                RecordMeaning::Unlogged(micros)
            };
            self.push(ServerRecord { message: duration.into(), ..record }, meaning);
        } else if self.style() == LoggingStyle::Ends {
            let message = [duration.as_bytes(), b"  ", text].concat();
            self.push(
                ServerRecord { message, detail, ..record },
                RecordMeaning::Whole(action, kind, micros),
            );
        }
    }

    /// Whether the text of an action is in the log.
    fn is_logged(&self, action: &Action) -> bool {
        let sql = action.sql().map_or(&b""[..], |sql| sql.as_bytes());
        let is_change = ["insert into ", "UPDATE ", "delete from "]
            .iter()
            .any(|verb| sql.starts_with(verb.as_bytes()));
        self.style() == LoggingStyle::Ends || self.style().logs_start(is_change)
    }

    fn fail(&mut self, action: Action, failure: &PlannedFailure, query_id: i64) {
        let (message, sqlstate) = match failure.kind {
            FailureKind::Error => (failure.message.clone(), "22012"),
            FailureKind::Cancel => (b"canceling statement due to user request".to_vec(), "57014"),
            FailureKind::Timeout => {
                (b"canceling statement due to statement timeout".to_vec(), "57014")
            }
        };
        let record = ServerRecord {
            severity: "ERROR",
            tag: "INSERT",
            transaction: self.transaction,
            query_id,
            sqlstate,
            hint: failure.hint.clone(),
            statement: action.sql().map(|sql| sql.as_bytes().to_vec()),
            position: failure.position.filter(|_| failure.kind == FailureKind::Error),
            ..ServerRecord::log(message)
        };
        self.push(record, RecordMeaning::Fails(action, failure.kind));
    }

    fn extended(
        &mut self,
        query: &ExtendedQuery,
        step: &PlannedStep,
        failure: Option<&PlannedFailure>,
    ) {
        let ExtendedQuery { portal, values, sql, fetches, .. } = query;
        let mut name = query.name.clone();
        if !name.is_empty() {
            // A name stands for one text.
            while self.prepared.get(&name).is_some_and(|known| known != sql) {
                name.push(b'_');
            }
        }
        let parses = name.is_empty() || self.prepared.insert(name.clone(), sql.clone()).is_none();
        let shown_name = if name.is_empty() { b"<unnamed>".to_vec() } else { name.clone() };
        let mut shown = shown_name.clone();
        if !portal.is_empty() {
            shown.extend([b"/", portal.as_slice()].concat());
        }
        let bound = Bound {
            statement: name.as_slice().into(),
            portal: portal.as_slice().into(),
            sql: sql.as_slice().into(),
            parameters: Some(values.iter().map(|value| self.parameter(value.as_deref())).collect()),
        };
        let detail = self.detail(values);
        if parses {
            let parse =
                Action::Parse { statement: bound.statement.clone(), sql: bound.sql.clone() };
            self.protocol_step("parse", &shown_name, sql, None, parse, step);
        }
        self.protocol_step("bind", &shown, sql, detail.clone(), Action::Bind(bound.clone()), step);
        let text = |word: &[u8]| [word, b" ", &shown, b": ", sql].concat();
        let mut step = PlannedStep { failure: failure.cloned(), ..step.clone() };
        let (execute, fetch) = (Action::Execute(bound.clone()), Action::Fetch(bound));
        let now = self.transaction;
        self.run(
            &text(b"execute"),
            detail.clone(),
            execute.clone(),
            BlockEffect::Other,
            &step,
            now,
        );
        if step.failure.take().is_none() || !self.is_logged(&execute) {
            for _ in 0..*fetches {
                let (text, fetch) = (text(b"execute fetch from"), fetch.clone());
                self.run(&text, detail.clone(), fetch, BlockEffect::Other, &step, now);
            }
        }
    }

    /// Writes the record of a parse or a bind, which are logged when they are done.
    fn protocol_step(
        &mut self,
        word: &str,
        shown: &[u8],
        sql: &[u8],
        detail: Option<Vec<u8>>,
        action: Action,
        step: &PlannedStep,
    ) {
        let (tag, is_parse) = if word == "parse" { ("PARSE", true) } else { ("BIND", false) };
        let micros = u64::from(step.micros / 100);
        let duration = format!("duration: {}.{:03} ms", micros / 1000, micros % 1000);
        let record =
            ServerRecord { tag, transaction: self.transaction, ..ServerRecord::log(duration) };
        if self.style().logs_ends() {
            let text = [b"  ", word.as_bytes(), b" ", shown, b": ", sql].concat();
            let message = [record.message.clone(), text].concat();
            let record = ServerRecord { message, detail, query_id: step.query_id, ..record };
            self.push(record, RecordMeaning::Whole(action, BlockEffect::Other, micros));
        } else if self.style().logs_bare_durations() {
            self.push(record, RecordMeaning::Step(is_parse, micros));
        }
    }

    /// Source: `BuildParamLogString` in `params.c`.
    fn detail(&self, values: &[Option<Vec<u8>>]) -> Option<Vec<u8>> {
        let word = if self.plan.is_capital { "Parameters" } else { "parameters" };
        let one = |(number, value): (usize, &Option<Vec<u8>>)| {
            let shown = match value {
                None => b"NULL".to_vec(),
                Some(value) => {
                    let visible_part = self.visible_part(value);
                    let dots: &[u8] = if visible_part.len() < value.len() { b"..." } else { b"" };
                    let doubled = visible_part.iter().flat_map(|byte| match byte {
                        b'\'' => vec![b'\''; 2],
                        byte => vec![*byte],
                    });
                    [&b"'"[..], &doubled.collect::<Vec<_>>(), dots, b"'"].concat()
                }
            };
            [format!("${} = ", number + 1).into_bytes(), shown].concat()
        };
        let list: Vec<_> = values.iter().enumerate().map(one).collect();
        let list = list.join(&b", "[..]);
        (!values.is_empty()).then(|| [word.as_bytes(), b": ", &list].concat())
    }

    fn parameter(&self, value: Option<&[u8]>) -> Parameter {
        match value {
            None => Parameter::Null,
            Some(value) if self.visible_part(value).len() < value.len() => {
                Parameter::Truncated(self.visible_part(value).into())
            }
            Some(value) => Parameter::Value(value.into()),
        }
    }

    /// The part of a value that is shown: never part of a character. Source: `pg_mbcliplen`.
    fn visible_part<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        let mut end = self.plan.limit.map_or(value.len(), |limit| limit.min(value.len()));
        while end < value.len() && matches!(value[end], 0x80..=0xbf) {
            end -= 1;
        }
        &value[..end]
    }
}
