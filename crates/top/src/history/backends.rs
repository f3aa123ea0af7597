//! Encodes sessions as rows of fields.

use std::{collections::HashMap, sync::Arc};

use howdah_codec::{ByteReader, ByteWriter as _};
use howdah_collect::{BackendActivity, BackendState, BackendType, BackendWait, Blocker, SqlText};

use super::{
    delta::{self, DeltaField},
    error::CorruptFrame,
    texts::{TextReader, TextWriter},
};
use crate::host::ProcessFigures;

/// Figures of sessions' processes, by process id.
type ProcessesByPid = HashMap<i32, ProcessFigures>;

/// Maximum number of sessions in a frame: PostgreSQL's own limit, `MAX_BACKENDS`.
const ROWS_MAX: usize = 0x3ffff;

/// Indexes of a session's fields. New ones are appended, so that older recordings stay readable.
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
/// The first of the figures of the session's process.
const PROCESS: usize = 22;
const FIELDS: usize = PROCESS + ProcessFigures::FIELDS;

/// Fields with timestamps of the server's clock that change during a session, as a bit mask.
const TIMESTAMP_FIELDS: u64 =
    1 << TRANSACTION_STARTED | 1 << QUERY_STARTED | 1 << STATE_CHANGED | 1 << BLOCKED_SINCE;

const SUPERUSER: i64 = 1;
const READABLE: i64 = 2;
const TRUNCATED: i64 = 4;
const EXACT: i64 = 8;

pub(super) type BackendFields = [DeltaField; FIELDS];

/// Encodes sessions. Keeps the sessions of the previous frame, to which the next are compared.
#[derive(Debug, Default)]
pub(super) struct BackendWriter {
    rows: Vec<BackendFields>,
    row_indexes: HashMap<(i32, i64), usize>,
}

impl BackendWriter {
    /// Encodes sessions as differences from the sessions of the previous frame.
    pub(super) fn encode(
        &mut self,
        out: &mut Vec<u8>,
        (backends, processes): (&[BackendActivity], Option<&ProcessesByPid>),
        taken_us: i64,
        texts: &mut TextWriter,
        new_texts: &mut Vec<Arc<str>>,
    ) {
        let backends = &backends[..backends.len().min(ROWS_MAX)];
        let mut now = Self::default();
        let mut expected = 0;
        out.write_count(backends.len());
        for (at, backend) in backends.iter().enumerate() {
            let mut row = to_fields(backend, &mut |text| texts.number(text, new_texts));
            if let Some(figures) = processes.and_then(|processes| processes.get(&backend.pid)) {
                row[PROCESS..].copy_from_slice(&figures.fields());
            }
            let row_index = self.row_indexes.get(&backend.key()).copied();
            delta::encode_row_index(out, row_index, &mut expected);
            let before = row_index.map_or([None; FIELDS], |row_index| self.rows[row_index]);
            delta::encode(out, &row, &before, TIMESTAMP_FIELDS, taken_us);
            now.row_indexes.insert(backend.key(), at);
            now.rows.push(row);
        }
        *self = now;
    }
}

/// Decodes the output of [`BackendWriter::encode`]. `rows` are the sessions of the previous frame,
/// and are replaced by those of this frame. Also returns the figures of their processes.
pub(super) fn decode(
    input: &mut ByteReader<'_>,
    rows: &mut Vec<BackendFields>,
    taken_us: i64,
    texts: &TextReader,
) -> Result<(Vec<BackendActivity>, ProcessesByPid), CorruptFrame> {
    let count = input.count_up_to(ROWS_MAX.min(input.remaining()))?;
    let mut now = Vec::with_capacity(count);
    let mut backends = Vec::with_capacity(count);
    let mut processes = ProcessesByPid::new();
    let mut expected = 0;
    for _ in 0..count {
        let row_index = delta::decode_row_index(input, rows.len(), &mut expected)?;
        let mut row = row_index.map_or([None; FIELDS], |row_index| rows[row_index]);
        delta::decode(input, &mut row, TIMESTAMP_FIELDS, taken_us)?;
        let backend = from_fields(&row, texts)?;
        let figures = row.last_chunk().and_then(ProcessFigures::from_fields);
        processes.extend(figures.map(|figures| (backend.pid, figures)));
        backends.push(backend);
        now.push(row);
    }
    *rows = now;
    Ok((backends, processes))
}

fn to_fields(
    backend: &BackendActivity,
    number: &mut impl FnMut(&Arc<str>) -> i64,
) -> BackendFields {
    let mut word = |word: &Option<Arc<str>>| word.as_ref().map(&mut *number);
    let mut fields = [None; FIELDS];
    fields[PID] = Some(backend.pid.into());
    fields[STARTED] = Some(backend.started_us);
    fields[DATABASE] = word(&backend.database);
    fields[USER] = word(&backend.user);
    fields[APPLICATION] = word(&backend.application);
    fields[CLIENT] = word(&backend.client);
    fields[CLIENT_PORT] = backend.client_port.map(i64::from);
    fields[WAIT_CLASS] = word(&backend.wait.as_ref().map(|wait| Arc::clone(&wait.class)));
    fields[WAIT_EVENT] = word(&backend.wait.as_ref().map(|wait| Arc::clone(&wait.event)));
    fields[QUERY] = word(&backend.query.as_ref().map(SqlText::to_shared));
    fields[KIND] = word(&backend.kind.as_ref().map(|kind| kind.as_str().into()));
    fields[STATE] = word(&backend.state.map(|state| state.as_str().into()));
    fields[BLOCKERS] = word(&format_blockers(&backend.blockers));
    fields[LEADER] = backend.leader.map(i64::from);
    fields[XID_AGE] = backend.xid_age;
    fields[XMIN_AGE] = backend.xmin_age;
    fields[TRANSACTION_STARTED] = backend.transaction_started_us;
    fields[QUERY_STARTED] = backend.query_started_us;
    fields[STATE_CHANGED] = backend.state_changed_us;
    fields[QUERY_ID] = backend.query_id;
    fields[BLOCKED_SINCE] = backend.blocked_since_us;
    let flag = |is_so, flag| if is_so { flag } else { 0 };
    let query = backend.query.as_ref();
    fields[FLAGS] = Some(
        flag(backend.is_superuser, SUPERUSER)
            | flag(backend.is_readable, READABLE)
            | flag(query.is_some_and(|query| query.is_truncated), TRUNCATED)
            | flag(query.is_some_and(|query| query.is_exact), EXACT),
    );
    fields
}

fn from_fields(
    fields: &BackendFields,
    texts: &TextReader,
) -> Result<BackendActivity, CorruptFrame> {
    let flags = fields[FLAGS].unwrap_or(0);
    let has = |flag| flags & flag != 0;
    let word = |field: usize| texts.optional_line(fields[field]);
    let small = |field: usize| {
        fields[field]
            .map(|number| number.try_into().map_err(|_| CorruptFrame::Reference))
            .transpose()
    };
    let wait = word(WAIT_CLASS)?.zip(word(WAIT_EVENT)?);
    let query = fields[QUERY].map(|number| {
        texts.raw(number).map(|text| SqlText::from_recording(text, has(TRUNCATED), has(EXACT)))
    });
    Ok(BackendActivity {
        pid: small(PID)?.ok_or(CorruptFrame::Reference)?,
        started_us: fields[STARTED].unwrap_or(0),
        database: word(DATABASE)?,
        user: word(USER)?,
        application: word(APPLICATION)?,
        client: word(CLIENT)?,
        client_port: small(CLIENT_PORT)?,
        kind: word(KIND)?.map(|kind| BackendType::parse(&kind)),
        leader: small(LEADER)?,
        state: word(STATE)?.and_then(|state| BackendState::parse(&state)),
        wait: wait.map(|(class, event)| BackendWait { class, event }),
        xid_age: fields[XID_AGE],
        xmin_age: fields[XMIN_AGE],
        transaction_started_us: fields[TRANSACTION_STARTED],
        query_started_us: fields[QUERY_STARTED],
        state_changed_us: fields[STATE_CHANGED],
        query_id: fields[QUERY_ID],
        query: query.transpose()?,
        blockers: word(BLOCKERS)?.map_or_else(Vec::new, |text| parse_blockers(&text)),
        blocked_since_us: fields[BLOCKED_SINCE],
        is_superuser: has(SUPERUSER),
        is_readable: has(READABLE),
    })
}

/// Formats blockers as `12 7 0`, with 0 for a prepared transaction, as the server does.
fn format_blockers(blockers: &[Blocker]) -> Option<Arc<str>> {
    let pid = |blocker: &Blocker| match blocker {
        Blocker::Process(pid) => pid.to_string(),
        Blocker::Prepared => "0".to_owned(),
    };
    let pids: Vec<_> = blockers.iter().map(pid).collect();
    (!pids.is_empty()).then(|| pids.join(" ").into())
}

fn parse_blockers(text: &str) -> Vec<Blocker> {
    let pids = text.split(' ').filter_map(|pid| pid.parse().ok());
    pids.map(|pid| if pid == 0 { Blocker::Prepared } else { Blocker::Process(pid) }).collect()
}
