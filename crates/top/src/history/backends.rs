//! Sessions as rows of slots.

use std::{collections::HashMap, sync::Arc};

use howdah_collect::{Backend, Blocker, Kind, SqlText, State, Wait};

use super::{
    bytes::{Damage, In, Out},
    slots::{self, Slot},
    texts::{Read, Written},
};

/// Most sessions of a frame: what PostgreSQL can have (`MAX_BACKENDS` in `postmaster.h`).
const ROWS_MAX: usize = 0x3ffff;

/// The slots of a session. New ones are put at the end: a reader of today leaves them out.
const PID: usize = 0;
const STARTED: usize = 1;
const DATABASE: usize = 2;
const USER: usize = 3;
const APPLICATION: usize = 4;
const CLIENT: usize = 5;
const KIND: usize = 6;
const LEADER: usize = 7;
const STATE: usize = 8;
const WAIT_CLASS: usize = 9;
const WAIT_EVENT: usize = 10;
const XID_AGE: usize = 11;
const XMIN_AGE: usize = 12;
const TRANSACTION_STARTED: usize = 13;
const QUERY_STARTED: usize = 14;
const STATE_CHANGED: usize = 15;
const QUERY_ID: usize = 16;
const QUERY: usize = 17;
const FLAGS: usize = 18;
const BLOCKERS: usize = 19;
const BLOCKED_SINCE: usize = 20;
const CLIENT_PORT: usize = 21;
const SLOTS: usize = 22;

/// The slots that are moments by the server's clock.
const CLOCK: u64 =
    1 << TRANSACTION_STARTED | 1 << QUERY_STARTED | 1 << STATE_CHANGED | 1 << BLOCKED_SINCE;

const SUPERUSER: i64 = 1;
const READABLE: i64 = 2;
const TRUNCATED: i64 = 4;
const EXACT: i64 = 8;

pub(super) type Slots = [Slot; SLOTS];

/// The sessions of the frame before, for a writer.
#[derive(Debug, Default)]
pub(super) struct Before {
    rows: Vec<Slots>,
    places: HashMap<(i32, i64), usize>,
}

impl Before {
    /// Writes sessions, and remembers them.
    pub(super) fn put(
        &mut self,
        out: &mut Out,
        backends: &[Backend],
        taken_us: i64,
        texts: &mut Written,
        fresh: &mut Vec<Arc<str>>,
    ) {
        let backends = &backends[..backends.len().min(ROWS_MAX)];
        let mut now = Self::default();
        let mut expected = 0;
        out.count(backends.len());
        for (at, backend) in backends.iter().enumerate() {
            let row = slots_of(backend, &mut |text| texts.number(text, fresh));
            let place = self.places.get(&backend.key()).copied();
            slots::put_place(out, place, &mut expected);
            let before = place.map_or([None; SLOTS], |place| self.rows[place]);
            slots::put(out, &row, &before, CLOCK, taken_us);
            now.places.insert(backend.key(), at);
            now.rows.push(row);
        }
        *self = now;
    }
}

/// Reads what [`Before::put`] wrote; `rows` are those of the frame before, and become those of this one.
pub(super) fn take(
    input: &mut In<'_>,
    rows: &mut Vec<Slots>,
    taken_us: i64,
    texts: &Read,
) -> Result<Vec<Backend>, Damage> {
    let count = input.count(ROWS_MAX.min(input.0.len()))?;
    let mut now = Vec::with_capacity(count);
    let mut backends = Vec::with_capacity(count);
    let mut expected = 0;
    for _ in 0..count {
        let place = slots::take_place(input, rows.len(), &mut expected)?;
        let mut row = place.map_or([None; SLOTS], |place| rows[place]);
        slots::take(input, &mut row, CLOCK, taken_us)?;
        backends.push(backend_of(&row, texts)?);
        now.push(row);
    }
    *rows = now;
    Ok(backends)
}

fn slots_of(backend: &Backend, number: &mut impl FnMut(&Arc<str>) -> i64) -> Slots {
    let mut word = |word: &Option<Arc<str>>| word.as_ref().map(&mut *number);
    let mut slots = [None; SLOTS];
    slots[PID] = Some(backend.pid.into());
    slots[STARTED] = Some(backend.started_us);
    slots[DATABASE] = word(&backend.database);
    slots[USER] = word(&backend.user);
    slots[APPLICATION] = word(&backend.application);
    slots[CLIENT] = word(&backend.client);
    slots[CLIENT_PORT] = backend.client_port.map(i64::from);
    slots[WAIT_CLASS] = word(&backend.wait.as_ref().map(|wait| Arc::clone(&wait.class)));
    slots[WAIT_EVENT] = word(&backend.wait.as_ref().map(|wait| Arc::clone(&wait.event)));
    slots[QUERY] = word(&backend.query.as_ref().map(SqlText::to_shared));
    slots[KIND] = word(&backend.kind.as_ref().map(|kind| kind.as_str().into()));
    slots[STATE] = word(&backend.state.map(|state| state.as_str().into()));
    slots[BLOCKERS] = word(&blockers_text(&backend.blockers));
    slots[LEADER] = backend.leader.map(i64::from);
    slots[XID_AGE] = backend.xid_age;
    slots[XMIN_AGE] = backend.xmin_age;
    slots[TRANSACTION_STARTED] = backend.transaction_started_us;
    slots[QUERY_STARTED] = backend.query_started_us;
    slots[STATE_CHANGED] = backend.state_changed_us;
    slots[QUERY_ID] = backend.query_id;
    slots[BLOCKED_SINCE] = backend.blocked_since_us;
    let flag = |is_so, flag| if is_so { flag } else { 0 };
    let query = backend.query.as_ref();
    slots[FLAGS] = Some(
        flag(backend.is_superuser, SUPERUSER)
            | flag(backend.is_readable, READABLE)
            | flag(query.is_some_and(|query| query.is_truncated), TRUNCATED)
            | flag(query.is_some_and(|query| query.is_exact), EXACT),
    );
    slots
}

fn backend_of(slots: &Slots, texts: &Read) -> Result<Backend, Damage> {
    let flags = slots[FLAGS].unwrap_or(0);
    let has = |flag| flags & flag != 0;
    let word = |slot: usize| texts.slot(slots[slot]);
    let small = |slot: usize| {
        slots[slot].map(|number| number.try_into().map_err(|_| Damage::Reference)).transpose()
    };
    let wait = word(WAIT_CLASS)?.zip(word(WAIT_EVENT)?);
    let query = slots[QUERY].map(|number| {
        texts.raw(number).map(|text| SqlText::restored(text, has(TRUNCATED), has(EXACT)))
    });
    Ok(Backend {
        pid: small(PID)?.ok_or(Damage::Reference)?,
        started_us: slots[STARTED].unwrap_or(0),
        database: word(DATABASE)?,
        user: word(USER)?,
        application: word(APPLICATION)?,
        client: word(CLIENT)?,
        client_port: small(CLIENT_PORT)?,
        kind: word(KIND)?.map(|kind| Kind::parse(&kind)),
        leader: small(LEADER)?,
        state: word(STATE)?.and_then(|state| State::parse(&state)),
        wait: wait.map(|(class, event)| Wait { class, event }),
        xid_age: slots[XID_AGE],
        xmin_age: slots[XMIN_AGE],
        transaction_started_us: slots[TRANSACTION_STARTED],
        query_started_us: slots[QUERY_STARTED],
        state_changed_us: slots[STATE_CHANGED],
        query_id: slots[QUERY_ID],
        query: query.transpose()?,
        blockers: word(BLOCKERS)?.map_or_else(Vec::new, |text| blockers_of(&text)),
        blocked_since_us: slots[BLOCKED_SINCE],
        is_superuser: has(SUPERUSER),
        is_readable: has(READABLE),
    })
}

/// `12 7 0`, with 0 for a prepared transaction, as the server has it.
fn blockers_text(blockers: &[Blocker]) -> Option<Arc<str>> {
    let pid = |blocker: &Blocker| match blocker {
        Blocker::Process(pid) => pid.to_string(),
        Blocker::Prepared => "0".to_owned(),
    };
    let pids: Vec<_> = blockers.iter().map(pid).collect();
    (!pids.is_empty()).then(|| pids.join(" ").into())
}

fn blockers_of(text: &str) -> Vec<Blocker> {
    let pids = text.split(' ').filter_map(|pid| pid.parse().ok());
    pids.map(|pid| if pid == 0 { Blocker::Prepared } else { Blocker::Process(pid) }).collect()
}
