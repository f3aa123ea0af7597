//! [`Server`]: what the core knows of one server connection.

use howdah_wire::{backend::TransactionStatus, startup::CancelKey};

use crate::{
    again::RetryBuffer,
    dirt::{SessionStateFlags, SetKind},
    ids::{ClientId, PoolId},
    inlet::FrameCursor,
    limits::Permits,
    listen::PendingActions,
    owed::OutstandingRequests,
    parse_settings::{Change, Doubt, change_by, is_parse_setting, skip_comments},
    plain,
    prepared::ServerStatements,
    put_back::{self, ResettingPortal, SplicedQuery},
    settings::{ServerSettings, Setting, TrackedParameters},
    time::Time,
    writes::Writes,
};

/// Where a server connection is.
///
/// ```text
/// Opening ──► Idle ◄──────► Linked
///               ▲             │
///               └── Cleaning ◄┘
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServerState {
    /// The worker connects and logs in.
    Opening,
    /// In its pool, for the next client.
    Idle,
    /// Works for a client.
    Linked(ClientId),
    /// Ends, for nobody, what its last client left behind.
    Cleaning,
}

/// A server connection.
#[derive(Debug)]
pub(crate) struct Server {
    pub(crate) pool: PoolId,
    pub(crate) state: ServerState,
    /// When it came to be where it is.
    pub(crate) since: Time,
    pub(crate) opened: Time,
    /// Its pool's epoch when it was opened, see [`crate::Gate`].
    pub(crate) epoch: u32,
    pub(crate) inlet: FrameCursor,
    pub(crate) owed: OutstandingRequests,
    /// By the last ReadyForQuery.
    pub(crate) status: TransactionStatus,
    /// Messages of the extended protocol were sent and no Sync after them.
    pub(crate) batch_open: bool,
    /// A batch failed and its Sync was not sent yet: the server looks at nothing before it.
    pub(crate) skipping: bool,
    /// It was asked what may end prepared statements, and has not answered; looked at again when
    /// nothing is owed.
    pub(crate) forgets: bool,
    /// The server waits for COPY data, and answers no Sync.
    pub(crate) copying_in: bool,
    /// CancelRequests under way to it.
    pub(crate) cancels: u32,
    pub(crate) cancel_key: Option<CancelKey>,
    pub(crate) settings: ServerSettings,
    pub(crate) statements: ServerStatements,
    /// The reset query has to be run before the next client.
    pub(crate) reset_due: bool,
    /// It is asked whether it lives.
    pub(crate) is_checked: bool,
    /// It has just been: whoever waits gets it, however soon it would have to be asked again.
    pub(crate) is_proven: bool,
    /// When what it works on, a transaction or a request, began.
    pub(crate) began: Time,
    /// What has to be reset before the next client.
    pub(crate) dirt: SessionStateFlags,
    /// The worst SET that was bound since it was linked.
    pub(crate) set_kind: SetKind,
    /// The batch that it works on, should it have to be sent again.
    pub(crate) again: RetryBuffer,
    /// The request that it has been sent, as its client sent it, while no byte has come in answer: see
    /// [`crate::core`]'s `elsewhere`. Empty if it could not be asked of another.
    pub(crate) unanswered: Vec<u8>,
    /// Of the settings that its client began with, those that the last statement about settings puts
    /// back; whether it has succeeded, so that they have to be given again.
    pub(crate) put_back: Vec<Setting>,
    pub(crate) put_back_due: bool,
    /// The query string that was sent in the place of the client's.
    pub(crate) woven: Option<Box<SplicedQuery>>,
    /// What its client's transaction does to what that listens to.
    pub(crate) listening: Option<Box<PendingActions>>,
    /// A portal of the client's that puts settings back when it is run.
    pub(crate) resetting: Option<Box<ResettingPortal>>,
    /// Such a statement may be under way: what comes behind it has to wait.
    pub(crate) holds_back: bool,
    /// The name, its client's, that a prepared DEALLOCATE is about.
    pub(crate) deallocates: Option<Box<[u8]>>,
    /// What is seen of writes.
    pub(crate) writes: Writes,
    /// It has not taken all that was sent to it.
    pub(crate) backlogged: bool,
    /// The worker was told to read nothing from it.
    pub(crate) paused: bool,
    /// Given back with the connection.
    pub(crate) permits: Permits,
}

impl Server {
    pub(crate) fn opening(pool: PoolId, epoch: u32, permits: Permits, now: Time) -> Self {
        Self {
            pool,
            state: ServerState::Opening,
            since: now,
            opened: now,
            epoch,
            inlet: FrameCursor::default(),
            owed: OutstandingRequests::default(),
            status: TransactionStatus::Idle,
            batch_open: false,
            skipping: false,
            forgets: false,
            copying_in: false,
            cancels: 0,
            cancel_key: None,
            settings: ServerSettings::default(),
            statements: ServerStatements::default(),
            reset_due: false,
            is_checked: false,
            is_proven: false,
            began: now,
            dirt: SessionStateFlags::NONE,
            set_kind: SetKind::NotSet,
            again: RetryBuffer::default(),
            unanswered: Vec::new(),
            put_back: Vec::new(),
            put_back_due: false,
            woven: None,
            listening: None,
            resetting: None,
            holds_back: false,
            deallocates: None,
            writes: Writes::Unwatched,
            backlogged: false,
            paused: false,
            permits,
        }
    }

    /// It begins to work for a client.
    pub(crate) fn link(&mut self, client: ClientId, now: Time) {
        self.state = ServerState::Linked(client);
        self.since = now;
        self.unanswered.clear();
        self.statements.unnamed_is_ours = false;
        self.set_kind = SetKind::NotSet;
        self.put_back.clear();
        self.put_back_due = false;
        self.woven = None;
        self.listening = None;
        self.resetting = None;
        self.holds_back = false;
        self.deallocates = None;
        self.settings.parsing.link();
    }

    /// Notes which of the settings that its client began with a text puts back.
    #[inline]
    pub(crate) fn note_put_back(&mut self, sql: &[u8], startup: &TrackedParameters) {
        if !startup.list().is_empty()
            && let Some(back) = put_back::put_back(sql, startup.list())
        {
            self.put_back = back;
        }
    }

    /// Notes what a query string that is sent does to the settings that matter to parsing.
    pub(crate) fn note_parse_settings(&mut self, sql: &[u8]) {
        let doubt = self.change_by(sql, || Doubt::Unreported);
        self.settings.parsing.change(doubt);
    }

    /// What a text does to the settings that matter to parsing, when it is run; `by_parameter` tells if the
    /// name of the setting is a parameter.
    pub(crate) fn change_by(&self, sql: &[u8], by_parameter: impl FnOnce() -> Doubt) -> Doubt {
        let settings = &self.settings;
        let doubt = match change_by(sql, |name| settings.reports(name)) {
            Change::Known(doubt) => doubt,
            Change::ByParameter => by_parameter(),
        };
        if plain::is_query(skip_comments(sql)) {
            return doubt;
        }
        // It may end the transaction, or reset everything.
        let touched = settings.parsing.touched();
        match doubt == Doubt::Reported && settings.gave_any(is_parse_setting) {
            true => Doubt::Unreported,
            false => doubt.max(touched),
        }
    }

    /// A statement has done something to settings. The one that puts them back is the last that was
    /// sent.
    pub(crate) fn has_put_back(&mut self) {
        self.put_back_due |= !self.put_back.is_empty() && self.owed.is_at_last();
    }

    /// Whether everything it was asked is answered, and nothing of a transaction or a batch is open:
    /// then it is as good for anybody else.
    pub(crate) fn is_settled(&self) -> bool {
        self.owed.is_empty()
            && !self.batch_open
            && !self.skipping
            && self.status == TransactionStatus::Idle
    }
}
