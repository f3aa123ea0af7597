//! The records that a session's doings leave, and what each of them tells.

use std::collections::HashMap;

use howdah_traffic::{Action, Bound, Parameter};

use super::{
    plan::{Act, Extended, Failure, How, Plan, Session, Style, What},
    write::Rec,
};

/// What a record tells.
#[derive(Clone, Debug)]
pub(super) enum Tell {
    Nothing,
    /// A connection came in.
    Received,
    Connected,
    /// An action began.
    Opens(Action, Trait),
    /// An action ended that nothing told of before.
    Whole(Action, Trait, u64),
    /// A parse or a bind of the action to come ended.
    Step(bool, u64),
    /// An action ended of which the log has nothing else.
    Unlogged(u64),
    /// The open action ended.
    Ends(u64),
    /// The open action failed; or this one, if the log does not tell of beginnings.
    Fails(Action, How),
    Disconnected,
}

/// What an action is to pipelines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trait {
    /// Only a server that logs everything logs its start.
    Plain,
    Begins,
    Other,
}

/// Writes a session's records, without their times.
pub(super) struct Script<'a> {
    plan: &'a Plan,
    session: &'a Session,
    application: Vec<u8>,
    transaction: u32,
    /// Texts of the prepared statements.
    prepared: HashMap<Vec<u8>, Vec<u8>>,
    pub(super) records: Vec<(Rec, Tell)>,
}

impl<'a> Script<'a> {
    pub(super) fn new(plan: &'a Plan, session: &'a Session) -> Self {
        Self {
            plan,
            session,
            application: session.application.clone(),
            transaction: 1,
            prepared: HashMap::new(),
            records: Vec::new(),
        }
    }

    pub(super) fn write(mut self) -> Vec<(Rec, Tell)> {
        let Session { user, database, application, is_connected, acts, .. } = self.session;
        if *is_connected {
            let received =
                Rec { is_authorized: false, ..Rec::log("connection received: host=[local]") };
            self.records.push((received, Tell::Received));
            let mut message =
                [&b"connection authorized: user="[..], user, b" database=", database].concat();
            if !application.is_empty() {
                message.extend([&b" application_name="[..], application].concat());
            }
            self.records.push((Rec::log(message), Tell::Connected));
        }
        for act in acts {
            self.act(act);
        }
        if *is_connected {
            let message = b"disconnection: session time: 0:00:01.000 user=";
            let message = [&message[..], user, b" database=", database, b" host=[local]"].concat();
            self.push(Rec::log(message), Tell::Disconnected);
        }
        self.records
    }

    fn push(&mut self, rec: Rec, tell: Tell) {
        self.records.push((Rec { application: self.application.clone(), ..rec }, tell));
    }

    fn style(&self) -> Style {
        self.plan.style
    }

    fn act(&mut self, act: &Act) {
        self.transaction += 1;
        match &act.what {
            What::Simple(sql) => self.simple(sql, Trait::Other, act, false),
            What::Plain(sql) => self.simple(sql.as_bytes(), Trait::Plain, act, false),
            What::Block(queries) => {
                let well = Act { failure: None, ..act.clone() };
                self.simple(b"begin", Trait::Begins, &well, true);
                for query in queries {
                    self.extended(query, &well, None);
                }
                self.simple(b"COMMIT", Trait::Plain, &well, false);
            }
            What::Pipeline(queries) => {
                for (number, query) in (1..).zip(queries) {
                    let failure = act.failure.as_ref().filter(|_| number == queries.len());
                    self.extended(query, act, failure);
                }
            }
            What::Call(function) => {
                let text =
                    [&b"fastpath function call: \""[..], function, b"\" (OID 1598)"].concat();
                let action = Action::Call { function: function.as_slice().into() };
                let well = Act { failure: None, ..act.clone() };
                self.run(&text, None, action, Trait::Plain, &well, self.transaction);
            }
            What::Rename(application) => {
                let well = Act { failure: None, ..act.clone() };
                self.simple(b"set application_name = x", Trait::Plain, &well, false);
                self.application.clone_from(application);
            }
        }
    }

    fn simple(&mut self, sql: &[u8], kind: Trait, act: &Act, stays_open: bool) {
        let text = [b"statement: ", sql].concat();
        let act = Act { failure: act.failure.clone().filter(|_| !sql.is_empty()), ..act.clone() };
        // The transaction of a message is over when its duration is logged.
        let after = if stays_open { self.transaction } else { 0 };
        self.run(&text, None, Action::Simple { sql: sql.into() }, kind, &act, after);
    }

    /// The records of an execution.
    fn run(
        &mut self,
        text: &[u8],
        detail: Option<Vec<u8>>,
        action: Action,
        kind: Trait,
        act: &Act,
        after: u32,
    ) {
        let is_simple = matches!(action, Action::Simple { .. });
        let micros = u64::from(act.micros);
        let is_logged = self.is_logged(&action);
        if self.style().has_starts() && is_logged {
            let query_id = if is_simple { 0 } else { act.query_id };
            let tag = if is_simple { "idle" } else { "INSERT" };
            let transaction = self.transaction;
            let detail = detail.clone();
            let rec = Rec { tag, transaction, query_id, detail, ..Rec::log(text) };
            self.push(rec, Tell::Opens(action.clone(), kind));
        }
        if act.is_noisy {
            let rec = Rec { severity: "WARNING", hint: detail.clone(), ..Rec::log(text) };
            self.push(rec, Tell::Nothing);
        }
        if let Some(failure) = act.failure.as_ref().filter(|_| is_logged) {
            return self.fail(action, failure, act.query_id);
        }
        let sql = action.sql().map_or(&b""[..], |sql| sql.as_bytes());
        let tag = match sql {
            b"begin" => "BEGIN",
            b"COMMIT" => "COMMIT",
            _ => "INSERT",
        };
        let rec = Rec { tag, transaction: after, query_id: act.query_id, ..Rec::log("") };
        let duration = format!("duration: {}.{:03} ms", micros / 1000, micros % 1000);
        if self.style().has_durations() {
            let tell = if is_logged { Tell::Ends(micros) } else { Tell::Unlogged(micros) };
            self.push(Rec { message: duration.into(), ..rec }, tell);
        } else if self.style() == Style::Ends {
            let message = [duration.as_bytes(), b"  ", text].concat();
            self.push(Rec { message, detail, ..rec }, Tell::Whole(action, kind, micros));
        }
    }

    /// Whether the text of an action is in the log.
    fn is_logged(&self, action: &Action) -> bool {
        let sql = action.sql().map_or(&b""[..], |sql| sql.as_bytes());
        let is_change = ["insert into ", "UPDATE ", "delete from "]
            .iter()
            .any(|verb| sql.starts_with(verb.as_bytes()));
        self.style() == Style::Ends || self.style().logs_start(is_change)
    }

    fn fail(&mut self, action: Action, failure: &Failure, query_id: i64) {
        let (message, sqlstate) = match failure.how {
            How::Error => (failure.message.clone(), "22012"),
            How::Cancel => (b"canceling statement due to user request".to_vec(), "57014"),
            How::Timeout => (b"canceling statement due to statement timeout".to_vec(), "57014"),
        };
        let rec = Rec {
            severity: "ERROR",
            tag: "INSERT",
            transaction: self.transaction,
            query_id,
            sqlstate,
            hint: failure.hint.clone(),
            statement: action.sql().map(|sql| sql.as_bytes().to_vec()),
            position: failure.position.filter(|_| failure.how == How::Error),
            ..Rec::log(message)
        };
        self.push(rec, Tell::Fails(action, failure.how));
    }

    fn extended(&mut self, query: &Extended, act: &Act, failure: Option<&Failure>) {
        let Extended { portal, values, sql, fetches, .. } = query;
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
            self.step("parse", &shown_name, sql, None, parse, act);
        }
        self.step("bind", &shown, sql, detail.clone(), Action::Bind(bound.clone()), act);
        let text = |word: &[u8]| [word, b" ", &shown, b": ", sql].concat();
        let mut act = Act { failure: failure.cloned(), ..act.clone() };
        let (execute, fetch) = (Action::Execute(bound.clone()), Action::Fetch(bound));
        let now = self.transaction;
        self.run(&text(b"execute"), detail.clone(), execute.clone(), Trait::Other, &act, now);
        if act.failure.take().is_none() || !self.is_logged(&execute) {
            for _ in 0..*fetches {
                let (text, fetch) = (text(b"execute fetch from"), fetch.clone());
                self.run(&text, detail.clone(), fetch, Trait::Other, &act, now);
            }
        }
    }

    /// The record of a parse or a bind, which are logged when they are done.
    fn step(
        &mut self,
        word: &str,
        shown: &[u8],
        sql: &[u8],
        detail: Option<Vec<u8>>,
        action: Action,
        act: &Act,
    ) {
        let (tag, is_parse) = if word == "parse" { ("PARSE", true) } else { ("BIND", false) };
        let micros = u64::from(act.micros / 100);
        let duration = format!("duration: {}.{:03} ms", micros / 1000, micros % 1000);
        let rec = Rec { tag, transaction: self.transaction, ..Rec::log(duration) };
        if self.style().has_ends() {
            let text = [b"  ", word.as_bytes(), b" ", shown, b": ", sql].concat();
            let message = [rec.message.clone(), text].concat();
            let rec = Rec { message, detail, query_id: act.query_id, ..rec };
            self.push(rec, Tell::Whole(action, Trait::Other, micros));
        } else if self.style().has_steps() {
            self.push(rec, Tell::Step(is_parse, micros));
        }
    }

    /// Source: `BuildParamLogString` in `params.c`.
    fn detail(&self, values: &[Option<Vec<u8>>]) -> Option<Vec<u8>> {
        let word = if self.plan.is_capital { "Parameters" } else { "parameters" };
        let one = |(number, value): (usize, &Option<Vec<u8>>)| {
            let shown = match value {
                None => b"NULL".to_vec(),
                Some(value) => {
                    let kept = self.kept(value);
                    let dots: &[u8] = if kept.len() < value.len() { b"..." } else { b"" };
                    let doubled = kept.iter().flat_map(|byte| match byte {
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
            Some(value) if self.kept(value).len() < value.len() => {
                Parameter::Truncated(self.kept(value).into())
            }
            Some(value) => Parameter::Value(value.into()),
        }
    }

    /// What is shown of a value: never a part of a character. Source: `pg_mbcliplen`.
    fn kept<'v>(&self, value: &'v [u8]) -> &'v [u8] {
        let mut end = self.plan.limit.map_or(value.len(), |limit| limit.min(value.len()));
        while end < value.len() && matches!(value[end], 0x80..=0xbf) {
            end -= 1;
        }
        &value[..end]
    }
}
