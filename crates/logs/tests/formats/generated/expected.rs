//! The events expected from a log: the actions, without what the format cannot show.

use std::{collections::HashSet, sync::Arc, time::Duration};

use howdah_traffic::{Action, CapturedOutcome, Event, Source, SqlState, Timestamp};

use super::{
    plan::{Escape, LogPlan, PlannedFormat, PlannedPrefixItem, SessionPlan},
    script::{BlockEffect, RecordMeaning},
    writer::ServerRecord,
};

/// The fields of a record that the log shows.
#[derive(Clone, Copy, Debug)]
pub(super) struct ShownFields<'a> {
    prefix: Option<&'a [PlannedPrefixItem]>,
    is_verbose: bool,
}

impl<'a> ShownFields<'a> {
    pub(super) fn from_plan(plan: &'a LogPlan) -> Self {
        let prefix = match &plan.form {
            PlannedFormat::Stderr(prefix) => Some(prefix.as_slice()),
            PlannedFormat::Csv | PlannedFormat::Json => None,
        };
        Self { prefix, is_verbose: plan.is_verbose }
    }

    fn has(self, escape: Escape) -> bool {
        let is = |item: &PlannedPrefixItem| matches!(item, PlannedPrefixItem::Field(one, _) if *one == escape);
        self.prefix.is_none_or(|prefix| prefix.iter().any(is))
    }

    fn time(self, record: &ServerRecord) -> Timestamp {
        let is_whole = self.prefix.is_some() && self.has(Escape::Seconds);
        let millis = if is_whole { record.millis.div_euclid(1000) * 1000 } else { record.millis };
        Timestamp::from_micros(millis * 1000)
    }

    /// Whether the log shows the step of a bare duration.
    fn shows_steps(self) -> bool {
        self.has(Escape::Tag) || self.is_verbose
    }

    fn sqlstate(self, record: &ServerRecord) -> Option<SqlState> {
        let is_shown = self.has(Escape::SqlState) || self.is_verbose;
        SqlState::new(record.sqlstate.as_bytes()).filter(|_| is_shown)
    }

    fn query_id(self, record: &ServerRecord) -> Option<i64> {
        Some(record.query_id).filter(|id| *id != 0 && self.has(Escape::QueryId))
    }
}

/// One session, as derived from its records one after another.
pub(super) struct ExpectedSession<'a> {
    shows: ShownFields<'a>,
    session: &'a SessionPlan,
    id: Option<Arc<str>>,
    user: Arc<str>,
    database: Arc<str>,
    application: Arc<str>,
    is_connected: bool,
    is_open: bool,
    /// Lower limit for the start of later actions.
    earliest_start: Timestamp,
    /// Bare durations that no action accounts for yet.
    steps: Vec<BareDuration>,
    /// Statements whose text is known.
    prepared: HashSet<Vec<u8>>,
    pipelines: ExpectedPipelines,
    pub(super) events: Vec<Event>,
}

/// A bare duration.
#[derive(Clone, Copy)]
struct BareDuration {
    /// Whether it is that of a parse, if the log shows that.
    is_parse: Option<bool>,
    start: Timestamp,
    micros: u64,
    transaction: u32,
}

#[derive(Default)]
struct ExpectedPipelines {
    number: u32,
    last: u32,
    block: u32,
    has_all_statements: bool,
    has_all_texts: bool,
    has_all_durations: bool,
    /// The session's first transaction may be a block.
    is_uncertain: bool,
}

impl<'a> ExpectedSession<'a> {
    pub(super) fn new(shows: ShownFields<'a>, session: &'a SessionPlan) -> Self {
        Self {
            shows,
            session,
            id: None,
            user: "".into(),
            database: "".into(),
            application: "".into(),
            is_connected: false,
            is_open: false,
            earliest_start: Timestamp::from_micros(i64::MIN),
            steps: Vec::new(),
            prepared: HashSet::new(),
            pipelines: ExpectedPipelines {
                is_uncertain: !session.is_connected,
                ..ExpectedPipelines::default()
            },
            events: Vec::new(),
        }
    }

    /// Processes a record. `every_statement` is what the sessions together show of `log_statement =
    /// all`.
    pub(super) fn handle_record(
        &mut self,
        record: &ServerRecord,
        meaning: &RecordMeaning,
        every_statement: &mut bool,
    ) {
        let time = self.shows.time(record);
        let ago = |micros: u64| time - Duration::from_micros(micros);
        match meaning {
            RecordMeaning::Nothing => {}
            RecordMeaning::Received => self.set_id(record),
            RecordMeaning::Connected => {
                self.set_id(record);
                let text = |name: &[u8]| Arc::from(howdah_traffic::name_text(name));
                self.user = text(&self.session.user);
                self.database = text(&self.session.database);
                if !self.session.application.is_empty() {
                    self.application = text(&self.session.application);
                }
                (self.is_connected, self.earliest_start) = (true, time);
                self.event(time, Action::Connect, Source::Session, 0);
            }
            RecordMeaning::Opens(action, kind) => {
                self.join(record, time);
                self.pipelines.has_all_statements |= *every_statement;
                self.name_steps(record, action);
                self.observe_block(record, *kind, true);
                *every_statement |= self.pipelines.has_all_statements;
                self.event(time, action.clone(), Source::Statement, record.transaction);
                self.last().query_id = self.shows.query_id(record);
                (self.is_open, self.earliest_start) = (true, time);
            }
            RecordMeaning::Whole(action, kind, micros) => {
                self.join(record, ago(*micros));
                self.pipelines.has_all_texts |= *micros < 1000;
                self.observe_block(record, *kind, false);
                let start = ago(*micros).max(self.earliest_start).min(time);
                self.event(start, action.clone(), Source::Duration, record.transaction);
                self.last().query_id = self.shows.query_id(record);
                self.last().outcome.duration_us = Some(*micros);
                (self.is_open, self.earliest_start) = (false, time);
            }
            // Before anything is known of a session, these show nothing.
            RecordMeaning::Step(..) | RecordMeaning::Unlogged(_) if self.id.is_none() => {}
            RecordMeaning::Step(is_parse, micros) => self.step(Some(*is_parse), *micros, record),
            RecordMeaning::Unlogged(_) if self.shows.shows_steps() => {
                let is_bound = self.steps.last().is_some_and(|step| step.is_parse == Some(false));
                let tag = if self.shows.has(Escape::Tag) { record.tag } else { "" };
                let may_begin = !is_bound || ["", "BEGIN", "COMMIT"].contains(&tag);
                if may_begin && record.transaction > 0 {
                    self.pipelines.block = record.transaction;
                }
                self.pipelines.has_all_durations = true;
                self.steps.clear();
                self.earliest_start = time;
            }
            RecordMeaning::Unlogged(micros) => self.step(None, *micros, record),
            RecordMeaning::Ends(micros) => {
                let query_id = self.shows.query_id(record);
                let event = self.last();
                event.query_id = event.query_id.or(query_id);
                event.outcome.duration_us = Some(*micros);
                (self.is_open, self.earliest_start) = (false, time);
            }
            RecordMeaning::Fails(action, kind) => {
                if !self.is_open {
                    self.join(record, time);
                    self.event(time, action.clone(), Source::Error, record.transaction);
                }
                let (query_id, sqlstate) =
                    (self.shows.query_id(record), self.shows.sqlstate(record));
                let event = self.last();
                event.query_id = event.query_id.or(query_id);
                let error = Some(record.message.as_slice().into());
                event.outcome = CapturedOutcome { duration_us: None, sqlstate, error };
                (self.is_open, self.earliest_start) = (false, time);
                if *kind == super::plan::FailureKind::Cancel {
                    self.event(time, Action::Cancel, Source::Session, record.transaction);
                }
            }
            RecordMeaning::Disconnected => self.event(time, Action::Disconnect, Source::Session, 0),
        }
    }

    /// Stores the names in a record, if its session is known already or from this record.
    pub(super) fn update_names(&mut self, record: &ServerRecord, meaning: &RecordMeaning) {
        let acts = !matches!(
            meaning,
            RecordMeaning::Nothing
                | RecordMeaning::Step(..)
                | RecordMeaning::Unlogged(_)
                | RecordMeaning::Ends(_)
        );
        if self.id.is_none() && !acts || !record.is_authorized {
            return;
        }
        let text = |name: &[u8]| Arc::from(howdah_traffic::name_text(name));
        if self.shows.has(Escape::User) {
            self.user = text(&self.session.user);
        }
        if self.shows.has(Escape::Database) {
            self.database = text(&self.session.database);
        }
        if self.shows.has(Escape::Application) && !record.application.is_empty() {
            self.application = text(&record.application);
        }
    }

    /// The session is known from this record on.
    fn set_id(&mut self, record: &ServerRecord) {
        let SessionPlan { pid, start, .. } = self.session;
        let is_started = self.shows.has(Escape::SessionId) || self.shows.has(Escape::Start);
        let start = if is_started { *start } else { record.millis.div_euclid(1000) };
        self.id.get_or_insert_with(|| format!("{start:x}.{pid:x}").into());
    }

    /// The session acts, so it must be connected.
    fn join(&mut self, record: &ServerRecord, start: Timestamp) {
        self.set_id(record);
        if !std::mem::replace(&mut self.is_connected, true) {
            self.event(start, Action::Connect, Source::Inferred, 0);
        }
    }

    fn observe_block(&mut self, record: &ServerRecord, kind: BlockEffect, is_start: bool) {
        if !self.shows.has(Escape::Vxid) || record.transaction == 0 {
            return;
        }
        self.mark_uncertain(record.transaction);
        self.pipelines.has_all_statements |= is_start && kind != BlockEffect::Other;
        if kind == BlockEffect::Begins {
            self.pipelines.block = record.transaction;
        }
    }

    fn mark_uncertain(&mut self, transaction: u32) {
        if std::mem::take(&mut self.pipelines.is_uncertain) {
            self.pipelines.block = transaction;
        }
    }

    /// Handles a bare duration while no action is open.
    fn step(&mut self, is_parse: Option<bool>, micros: u64, record: &ServerRecord) {
        let time = self.shows.time(record);
        let start = (time - Duration::from_micros(micros)).max(self.earliest_start).min(time);
        let is_parse = is_parse.filter(|_| self.shows.shows_steps());
        self.steps.push(BareDuration { is_parse, start, micros, transaction: record.transaction });
        self.pipelines.has_all_durations = true;
        self.earliest_start = time;
    }

    /// Emits the parse and the bind of an action that is known now.
    fn name_steps(&mut self, record: &ServerRecord, action: &Action) {
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
        if !self.shows.shows_steps() {
            let own = if bound.is_some() { 1 + usize::from(may_parse) } else { 0 };
            let same = |step: &&BareDuration| step.transaction == record.transaction;
            let is_beyond = steps.iter().rev().take_while(same).count() > own;
            if is_beyond && self.shows.has(Escape::Vxid) && record.transaction > 0 {
                self.pipelines.block = record.transaction;
            }
        }
        let Some(bound) = bound else { return };
        for (is_parse, step) in assign_steps(&steps, may_parse) {
            let (statement, sql) = (bound.statement.clone(), bound.sql.clone());
            let action = if is_parse {
                Action::Parse { statement, sql }
            } else {
                Action::Bind(bound.clone())
            };
            self.event(step.start, action, Source::Duration, step.transaction);
            self.last().query_id = self.shows.query_id(record);
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
            outcome: CapturedOutcome::default(),
            source,
            vxid,
            query_id: None,
            pipeline,
            wire: None,
        });
    }

    fn pipeline(&mut self, action: &Action, transaction: u32) -> Option<u32> {
        if matches!(action, Action::Cancel | Action::Call { .. }) && !self.pipelines.is_uncertain {
            return None;
        }
        self.mark_uncertain(transaction);
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

/// The bare durations that are the parse and the bind before an execution. If the log does not show
/// their kinds, more than two cannot be assigned.
fn assign_steps(steps: &[BareDuration], may_parse: bool) -> Vec<(bool, BareDuration)> {
    match steps {
        [
            ..,
            BareDuration { is_parse: Some(true), .. },
            BareDuration { is_parse: Some(false), .. },
        ] => {
            vec![(true, steps[steps.len() - 2]), (false, steps[steps.len() - 1])]
        }
        [.., last @ BareDuration { is_parse: Some(is_parse), .. }] => vec![(*is_parse, *last)],
        [first, last] if may_parse => vec![(true, *first), (false, *last)],
        [last] | [_, last] => vec![(false, *last)],
        _ => Vec::new(),
    }
}
