//! The events that a log must give: what was done, less what the format cannot show.

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_traffic::{Action, Event, Outcome, Source, SqlState, Timestamp};

use super::{
    plan::{Escape, Form, Item, Plan, Session},
    script::{Tell, Trait},
    write::Rec,
};

/// Which fields of a record the log shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shows<'a> {
    prefix: Option<&'a [Item]>,
    is_verbose: bool,
}

impl<'a> Shows<'a> {
    pub(super) fn of(plan: &'a Plan) -> Self {
        let prefix = match &plan.form {
            Form::Stderr(prefix) => Some(prefix.as_slice()),
            Form::Csv | Form::Json => None,
        };
        Self { prefix, is_verbose: plan.is_verbose }
    }

    fn has(self, escape: Escape) -> bool {
        let is = |item: &Item| matches!(item, Item::Field(one, _) if *one == escape);
        self.prefix.is_none_or(|prefix| prefix.iter().any(is))
    }

    fn time(self, rec: &Rec) -> Timestamp {
        let is_whole = self.prefix.is_some() && self.has(Escape::Seconds);
        let millis = if is_whole { rec.millis.div_euclid(1000) * 1000 } else { rec.millis };
        Timestamp::from_micros(millis * 1000)
    }

    /// Whether a bare duration tells of which step it is.
    fn tells_steps(self) -> bool {
        self.has(Escape::Tag) || self.is_verbose
    }

    fn sqlstate(self, rec: &Rec) -> Option<SqlState> {
        let is_shown = self.has(Escape::SqlState) || self.is_verbose;
        SqlState::new(rec.sqlstate.as_bytes()).filter(|_| is_shown)
    }

    fn query_id(self, rec: &Rec) -> Option<i64> {
        Some(rec.query_id).filter(|id| *id != 0 && self.has(Escape::QueryId))
    }
}

/// One session as its records tell it, one after another.
pub(super) struct Expected<'a> {
    shows: Shows<'a>,
    session: &'a Session,
    id: Option<Arc<str>>,
    user: Arc<str>,
    database: Arc<str>,
    application: Arc<str>,
    is_connected: bool,
    is_open: bool,
    /// Nothing began before this.
    floor: Timestamp,
    /// Bare durations that no action accounts for yet.
    steps: Vec<Step>,
    /// Statements whose text is known.
    prepared: HashSet<Vec<u8>>,
    pipelines: Pipelines,
    pub(super) events: Vec<Event>,
}

/// A bare duration.
#[derive(Clone, Copy)]
struct Step {
    /// Whether it is that of a parse, where the log tells.
    is_parse: Option<bool>,
    start: Timestamp,
    micros: u64,
    transaction: u32,
}

#[derive(Default)]
struct Pipelines {
    number: u32,
    last: u32,
    block: u32,
    has_all_statements: bool,
    has_all_texts: bool,
    has_all_durations: bool,
    /// The session's first transaction may be a block.
    is_doubtful: bool,
}

impl<'a> Expected<'a> {
    pub(super) fn new(shows: Shows<'a>, session: &'a Session) -> Self {
        Self {
            shows,
            session,
            id: None,
            user: "".into(),
            database: "".into(),
            application: "".into(),
            is_connected: false,
            is_open: false,
            floor: Timestamp::from_micros(i64::MIN),
            steps: Vec::new(),
            prepared: HashSet::new(),
            pipelines: Pipelines { is_doubtful: !session.is_connected, ..Pipelines::default() },
            events: Vec::new(),
        }
    }

    /// Takes a record. `every_statement` is what the sessions together show of `log_statement = all`.
    pub(super) fn take(&mut self, rec: &Rec, tell: &Tell, every_statement: &mut bool) {
        let time = self.shows.time(rec);
        let ago = |micros: u64| time - Duration::from_micros(micros);
        match tell {
            Tell::Nothing => {}
            Tell::Received => self.begin(rec),
            Tell::Connected => {
                self.begin(rec);
                let text = |name: &[u8]| Arc::from(howdah_traffic::name_text(name));
                self.user = text(&self.session.user);
                self.database = text(&self.session.database);
                if !self.session.application.is_empty() {
                    self.application = text(&self.session.application);
                }
                (self.is_connected, self.floor) = (true, time);
                self.event(time, Action::Connect, Source::Session, 0);
            }
            Tell::Opens(action, kind) => {
                self.join(rec, time);
                self.pipelines.has_all_statements |= *every_statement;
                self.name_steps(rec, action);
                self.tell_block(rec, *kind, true);
                *every_statement |= self.pipelines.has_all_statements;
                self.event(time, action.clone(), Source::Statement, rec.transaction);
                self.last().query_id = self.shows.query_id(rec);
                (self.is_open, self.floor) = (true, time);
            }
            Tell::Whole(action, kind, micros) => {
                self.join(rec, ago(*micros));
                self.pipelines.has_all_texts |= *micros < 1000;
                self.tell_block(rec, *kind, false);
                let start = ago(*micros).max(self.floor).min(time);
                self.event(start, action.clone(), Source::Duration, rec.transaction);
                self.last().query_id = self.shows.query_id(rec);
                self.last().outcome.duration_us = Some(*micros);
                (self.is_open, self.floor) = (false, time);
            }
            // Before anything is known of a session, these tell nothing.
            Tell::Step(..) | Tell::Unlogged(_) if self.id.is_none() => {}
            Tell::Step(is_parse, micros) => self.step(Some(*is_parse), *micros, rec),
            Tell::Unlogged(_) if self.shows.tells_steps() => {
                let is_bound = self.steps.last().is_some_and(|step| step.is_parse == Some(false));
                let tag = if self.shows.has(Escape::Tag) { rec.tag } else { "" };
                let may_begin = !is_bound || ["", "BEGIN", "COMMIT"].contains(&tag);
                if may_begin && rec.transaction > 0 {
                    self.pipelines.block = rec.transaction;
                }
                self.pipelines.has_all_durations = true;
                self.steps.clear();
                self.floor = time;
            }
            Tell::Unlogged(micros) => self.step(None, *micros, rec),
            Tell::Ends(micros) => {
                let query_id = self.shows.query_id(rec);
                let event = self.last();
                event.query_id = event.query_id.or(query_id);
                event.outcome.duration_us = Some(*micros);
                (self.is_open, self.floor) = (false, time);
            }
            Tell::Fails(action, how) => {
                if !self.is_open {
                    self.join(rec, time);
                    self.event(time, action.clone(), Source::Error, rec.transaction);
                }
                let (query_id, sqlstate) = (self.shows.query_id(rec), self.shows.sqlstate(rec));
                let event = self.last();
                event.query_id = event.query_id.or(query_id);
                let error = Some(rec.message.as_slice().into());
                event.outcome = Outcome { duration_us: None, sqlstate, error };
                (self.is_open, self.floor) = (false, time);
                if *how == super::plan::How::Cancel {
                    self.event(time, Action::Cancel, Source::Session, rec.transaction);
                }
            }
            Tell::Disconnected => self.event(time, Action::Disconnect, Source::Session, 0),
        }
    }

    /// Takes over the names that a record shows, if its session is known or known by it.
    pub(super) fn learn(&mut self, rec: &Rec, tell: &Tell) {
        let acts =
            !matches!(tell, Tell::Nothing | Tell::Step(..) | Tell::Unlogged(_) | Tell::Ends(_));
        if self.id.is_none() && !acts || !rec.is_authorized {
            return;
        }
        let text = |name: &[u8]| Arc::from(howdah_traffic::name_text(name));
        if self.shows.has(Escape::User) {
            self.user = text(&self.session.user);
        }
        if self.shows.has(Escape::Database) {
            self.database = text(&self.session.database);
        }
        if self.shows.has(Escape::Application) && !rec.application.is_empty() {
            self.application = text(&rec.application);
        }
    }

    /// The session is known from this record on.
    fn begin(&mut self, rec: &Rec) {
        let Session { pid, start, .. } = self.session;
        let is_started = self.shows.has(Escape::SessionId) || self.shows.has(Escape::Start);
        let start = if is_started { *start } else { rec.millis.div_euclid(1000) };
        self.id.get_or_insert_with(|| format!("{start:x}.{pid:x}").into());
    }

    /// The session acts: it must have been connected.
    fn join(&mut self, rec: &Rec, start: Timestamp) {
        self.begin(rec);
        if !std::mem::replace(&mut self.is_connected, true) {
            self.event(start, Action::Connect, Source::Inferred, 0);
        }
    }

    fn tell_block(&mut self, rec: &Rec, kind: Trait, is_start: bool) {
        if !self.shows.has(Escape::Vxid) || rec.transaction == 0 {
            return;
        }
        self.doubt(rec.transaction);
        self.pipelines.has_all_statements |= is_start && kind != Trait::Other;
        if kind == Trait::Begins {
            self.pipelines.block = rec.transaction;
        }
    }

    fn doubt(&mut self, transaction: u32) {
        if std::mem::take(&mut self.pipelines.is_doubtful) {
            self.pipelines.block = transaction;
        }
    }

    /// A bare duration while no action is open.
    fn step(&mut self, is_parse: Option<bool>, micros: u64, rec: &Rec) {
        let time = self.shows.time(rec);
        let start = (time - Duration::from_micros(micros)).max(self.floor).min(time);
        let is_parse = is_parse.filter(|_| self.shows.tells_steps());
        self.steps.push(Step { is_parse, start, micros, transaction: rec.transaction });
        self.pipelines.has_all_durations = true;
        self.floor = time;
    }

    /// The parse and the bind of an action that is known now.
    fn name_steps(&mut self, rec: &Rec, action: &Action) {
        let steps = std::mem::take(&mut self.steps);
        let bound = match action {
            Action::Execute(bound) => Some(bound),
            _ => None,
        };
        let is_new = match action {
            Action::Execute(bound) | Action::Fetch(bound) => {
                self.prepared.insert(bound.statement.as_bytes().to_vec())
            }
            _ => false,
        };
        let may_parse = bound.is_some_and(|bound| bound.statement.is_empty()) || is_new;
        if !self.shows.tells_steps() {
            let own = if bound.is_some() { 1 + usize::from(may_parse) } else { 0 };
            let same = |step: &&Step| step.transaction == rec.transaction;
            let is_beyond = steps.iter().rev().take_while(same).count() > own;
            if is_beyond && self.shows.has(Escape::Vxid) && rec.transaction > 0 {
                self.pipelines.block = rec.transaction;
            }
        }
        let Some(bound) = bound else { return };
        for (is_parse, step) in own_steps(&steps, may_parse) {
            let (statement, sql) = (bound.statement.clone(), bound.sql.clone());
            let action = match is_parse {
                true => Action::Parse { statement, sql },
                false => Action::Bind(bound.clone()),
            };
            self.event(step.start, action, Source::Duration, step.transaction);
            self.last().query_id = self.shows.query_id(rec);
            self.last().outcome.duration_us = Some(step.micros);
        }
    }

    fn event(&mut self, time: Timestamp, action: Action, source: Source, transaction: u32) {
        let shown = self.shows.has(Escape::Vxid) && transaction > 0;
        let vxid = shown.then(|| Arc::from(self.session.vxid(transaction)));
        let pipeline = if shown { self.pipeline(&action, transaction) } else { None };
        self.events.push(Event {
            time,
            session: self.id.clone().expect("a session that acts is known"),
            user: self.user.clone(),
            database: self.database.clone(),
            application: self.application.clone(),
            action,
            outcome: Outcome::default(),
            source,
            vxid,
            query_id: None,
            pipeline,
            wire: None,
        });
    }

    fn pipeline(&mut self, action: &Action, transaction: u32) -> Option<u32> {
        if matches!(action, Action::Cancel | Action::Call { .. }) && !self.pipelines.is_doubtful {
            return None;
        }
        self.doubt(transaction);
        let is_extended = matches!(
            action,
            Action::Parse { .. } | Action::Bind(_) | Action::Execute(_) | Action::Fetch(_)
        );
        let pipelines = &mut self.pipelines;
        let has_begin =
            pipelines.has_all_statements || pipelines.has_all_texts || pipelines.has_all_durations;
        if !is_extended || !has_begin || pipelines.block == transaction {
            return None;
        }
        if pipelines.last != transaction {
            pipelines.last = transaction;
            pipelines.number += 1;
        }
        Some(pipelines.number)
    }

    fn last(&mut self) -> &mut Event {
        self.events.last_mut().expect("an action was told of")
    }
}

/// Which bare durations are those of the parse and the bind before an execution. Where the log does not say,
/// more than two are not told apart.
fn own_steps(steps: &[Step], may_parse: bool) -> Vec<(bool, Step)> {
    match steps {
        [.., Step { is_parse: Some(true), .. }, Step { is_parse: Some(false), .. }] => {
            vec![(true, steps[steps.len() - 2]), (false, steps[steps.len() - 1])]
        }
        [.., last @ Step { is_parse: Some(is_parse), .. }] => vec![(*is_parse, *last)],
        [first, last] if may_parse => vec![(true, *first), (false, *last)],
        [last] | [_, last] => vec![(false, *last)],
        _ => Vec::new(),
    }
}
