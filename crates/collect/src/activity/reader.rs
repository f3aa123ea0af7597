//! Reads all sessions, and keeps them so that unchanged data is not sent again.
//!
//! Most sessions idle, and most of their fields never change. Therefore the server usually sends
//!
//! - for a session idle since before the last sample: only its process id;
//! - a session's user, database, client and type: only in the first samples that include it;
//! - for a statement: its beginning, enough for one line of a screen, until it has run for a
//!   second, then its full text. Shorter statements end before a user could request their text.
//!
//! The server compares with its own timestamps in its own format. A sample that lacks its baseline
//! for a session, or that follows a clock set back, is repeated in full.

use std::{borrow::Cow, collections::HashMap, mem, sync::Arc, time::Duration, time::Instant};

use howdah_connect::Client;

use super::{
    Activity, BackendActivity, BackendState, BackendType, BackendWait,
    cursor::DeltaCursor,
    parse_blockers,
    statement::{self, CLOCK_PREFIX, PREFIX_BYTES, TRUNCATION_MARK},
};
use crate::{
    CollectError, ServerVersion, SqlText,
    prepared_query::PreparedQuery,
    record::{RecordFields, parse_integer},
    text::{LineBreaks, sanitized},
};

/// Default run time of a statement after which its full text is read.
const FULL_TEXT_AFTER: Duration = Duration::from_secs(1);

/// A reader of all sessions that requests only what has changed since the last sample.
#[derive(Debug)]
pub(crate) struct ActivityReader {
    statement: PreparedQuery,
    /// The server's limit for statement texts, if it reports one.
    query_bytes_max: Option<usize>,
    full_text_after: Duration,
    /// Sessions of the last sample by process id.
    previous: HashMap<i32, PreviousSession>,
    cursor: DeltaCursor,
    /// Whether the last sample included texts of idle sessions.
    had_idle_texts: bool,
    /// An `application_name` of the last sample, usually the most common, which the server sends as
    /// NULL in the next.
    common_application: Option<Arc<str>>,
    strings: InternedStrings,
}

/// A session of the last sample, to which the next sample refers.
#[derive(Clone, Debug)]
struct PreviousSession {
    backend: BackendActivity,
    encoding: Option<Arc<str>>,
}

/// The error for a row that refers to data of an earlier sample that was not received, or for a
/// server clock that was set back.
#[derive(Debug)]
struct StaleBaseline;

impl ActivityReader {
    pub(crate) fn new(version: ServerVersion, query_bytes_max: Option<usize>) -> Self {
        Self {
            statement: PreparedQuery::new("activity", statement::sql(version))
                .with_binary_results(),
            query_bytes_max,
            full_text_after: FULL_TEXT_AFTER,
            previous: HashMap::new(),
            cursor: DeltaCursor::full_read(0),
            had_idle_texts: false,
            common_application: None,
            strings: InternedStrings::default(),
        }
    }

    /// Makes later samples request the full text of statements, however briefly they have run.
    pub(crate) fn request_full_texts(&mut self) {
        self.full_text_after = Duration::ZERO;
    }

    /// Reads all sessions. With `idle_texts`, idle ones include their last statement.
    pub(crate) fn read(
        &mut self,
        client: &mut Client,
        idle_texts: bool,
    ) -> Result<Activity, CollectError> {
        if idle_texts && !self.had_idle_texts {
            self.cursor = DeltaCursor::full_read(self.cursor.taken_us);
        }
        self.had_idle_texts = idle_texts;
        let backends = match self.try_read(client, idle_texts)? {
            Ok(backends) => backends,
            Err(StaleBaseline) => {
                self.cursor = DeltaCursor::full_read(self.cursor.taken_us);
                self.try_read(client, idle_texts)?.unwrap_or_default()
            }
        };
        Ok(Activity { taken_us: self.cursor.taken_us, backends })
    }

    fn try_read(
        &mut self,
        client: &mut Client,
        idle_texts: bool,
    ) -> Result<Result<Vec<BackendActivity>, StaleBaseline>, CollectError> {
        let full_read = DeltaCursor::full_read(self.cursor.taken_us);
        // If the statement fails, the next one must request everything, because it is unknown what
        // was received.
        let cursor = mem::replace(&mut self.cursor, full_read);
        let full_text_after = format!("{} us", self.full_text_after.as_micros());
        let since_us = cursor.taken_us.to_string();
        let values = [
            Some(cursor.idle.as_str()),
            Some(if idle_texts { "t" } else { "f" }),
            Some(cursor.sessions.as_str()),
            Some(cursor.texts.as_str()),
            Some(full_text_after.as_str()),
            Some(since_us.as_str()),
            self.common_application.as_deref(),
        ];
        let requested_at = Instant::now();
        let result = self.statement.run(client, &values)?;
        let clock = result.rows.iter().find_map(|row| row.bytes(0)?.strip_prefix(CLOCK_PREFIX));
        if let Some(now) = clock.and_then(|clock| DeltaCursor::parse(clock, requested_at)) {
            self.cursor = now;
        }
        if self.cursor.clock_regressed_since(&cursor) {
            return Ok(Err(StaleBaseline));
        }
        let rows = result.rows.iter().map(|row| (row.bytes(0).unwrap_or_default(), row.bytes(1)));
        Ok(self.decode_rows(rows, &cursor))
    }

    /// Decodes the sessions of a result, by process id. `rows` has the result's two columns;
    /// `cursor` is the one that the statement used.
    fn decode_rows<'a>(
        &mut self,
        rows: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        cursor: &DeltaCursor,
    ) -> Result<Vec<BackendActivity>, StaleBaseline> {
        let before = mem::take(&mut self.previous);
        let mut backends = Vec::with_capacity(before.len());
        for (now, text) in rows {
            if now.starts_with(CLOCK_PREFIX) {
                continue;
            }
            let is_quiet = !now.starts_with(b"(");
            let pid = if is_quiet { parse_integer(now) } else { RecordFields::new(now).integer() };
            let pid = pid.and_then(|pid| pid.try_into().ok()).unwrap_or(0);
            let previous = before.get(&pid).filter(|_| !cursor.is_full_read());
            let previous = match previous {
                // A session that was not idle in the last sample has become idle since then, even
                // if its timestamp is older.
                _ if is_quiet => {
                    let is_idle = |previous: &&PreviousSession| {
                        previous.backend.state == Some(BackendState::Idle)
                    };
                    previous.filter(is_idle).ok_or(StaleBaseline)?.clone()
                }
                previous => self.decode_session(now, text, previous, cursor.taken_us)?,
            };
            backends.push(previous.backend.clone());
            self.previous.insert(pid, previous);
        }
        backends.sort_unstable_by_key(|backend| backend.pid);
        self.common_application = most_common_application(&backends);
        Ok(backends)
    }

    /// Decodes a session of which the server sent more than the process id. `now` and `text` are
    /// the row's columns, `previous` has the same process id in the last sample, and times are
    /// relative to `since_us`.
    fn decode_session(
        &mut self,
        now: &[u8],
        text: Option<&[u8]>,
        previous: Option<&PreviousSession>,
        since_us: i64,
    ) -> Result<PreviousSession, StaleBaseline> {
        let mut now = RecordFields::new(now);
        let pid = now.integer().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
        let application = match now.value() {
            Some(name) => Some(self.strings.get(&name)),
            None => self.common_application.clone(),
        };
        let leader = now.integer().and_then(|pid| pid.try_into().ok());
        let state = now.value().and_then(|word| state(&word));
        let wait = self.decode_wait(&mut now);
        let (xid_age, xmin_age) = (now.integer(), now.integer());
        let since = |us: i64| us.saturating_add(since_us);
        let query_started_us = now.integer().map(since);
        let transaction_started_us = match now.value().as_deref() {
            Some(b"=") => query_started_us,
            other => other.and_then(parse_integer).map(since),
        };
        let state_changed_us = match (state, query_started_us, now.integer()) {
            (Some(BackendState::Active), Some(query_us), Some(us)) => {
                Some(query_us.saturating_add(us))
            }
            (_, _, us) => us.map(since),
        };
        let query_id = now.integer();
        let blockers = now
            .value()
            .map_or_else(Vec::new, |pids| parse_blockers(&String::from_utf8_lossy(&pids)));
        let blocked_since_us = now.integer();
        let (fixed, encoding) = match (now.value(), previous) {
            (Some(fixed), _) => self.decode_fixed_fields(pid, &fixed),
            (None, Some(previous)) => (previous.backend.clone(), previous.encoding.clone()),
            (None, None) => return Err(StaleBaseline),
        };
        let is_same = |previous: &&PreviousSession| {
            previous.backend.started_us == fixed.started_us
                && previous.backend.query_started_us == query_started_us
        };
        let query = match text {
            Some(bytes) => Some(self.decode_text(bytes, encoding.as_deref())),
            None => previous.filter(is_same).and_then(|previous| previous.backend.query.clone()),
        };
        let backend = BackendActivity {
            application: application.filter(|name| !name.is_empty()),
            leader,
            state,
            wait,
            xid_age,
            xmin_age,
            transaction_started_us,
            query_started_us,
            state_changed_us,
            query_id,
            query,
            blockers,
            blocked_since_us,
            ..fixed
        };
        Ok(PreviousSession { backend, encoding })
    }

    fn decode_wait(&mut self, now: &mut RecordFields<'_>) -> Option<BackendWait> {
        let mut word = |word: Cow<'_, [u8]>| self.strings.get(&word);
        match (now.value(), now.value()) {
            (Some(class), None) if *class == *b"r" => Some(BackendWait {
                class: word(b"Client"[..].into()),
                event: word(b"ClientRead"[..].into()),
            }),
            (class, event) => class
                .zip(event)
                .map(|(class, event)| BackendWait { class: word(class), event: word(event) }),
        }
    }

    /// Decodes the fields that are not sent again, and the encoding of the session's database.
    fn decode_fixed_fields(
        &mut self,
        pid: i32,
        record: &[u8],
    ) -> (BackendActivity, Option<Arc<str>>) {
        let mut fields = RecordFields::new(record);
        let started_us = fields.integer();
        let mut word =
            |fields: &mut RecordFields<'_>| fields.value().map(|word| self.strings.get(&word));
        let database = word(&mut fields);
        let user = word(&mut fields);
        let client = word(&mut fields);
        let client_port = fields.integer().and_then(|port| port.try_into().ok());
        let kind = word(&mut fields).map(|kind| BackendType::parse(&kind));
        let is_superuser = word(&mut fields).is_some_and(|truth| &*truth == "t");
        let encoding = word(&mut fields);
        let backend = BackendActivity {
            pid,
            started_us: started_us.unwrap_or(0),
            database,
            user,
            client,
            client_port,
            kind,
            is_superuser,
            // If the role may not see the session, its start time is hidden with everything else.
            is_readable: started_us.is_some(),
            ..BackendActivity::default()
        };
        (backend, encoding)
    }

    fn decode_text(&self, bytes: &[u8], encoding: Option<&str>) -> SqlText {
        match bytes.split_last() {
            // The prefix has the full length, so the text may be longer.
            Some((&TRUNCATION_MARK, beginning)) if beginning.len() >= PREFIX_BYTES => {
                SqlText::new(without_partial_char(beginning), encoding, Some(0))
            }
            Some((&TRUNCATION_MARK, whole)) => SqlText::new(whole, encoding, self.query_bytes_max),
            _ => SqlText::new(bytes, encoding, self.query_bytes_max),
        }
    }
}

/// Decodes a state, including the abbreviations used by our statement.
fn state(word: &[u8]) -> Option<BackendState> {
    match word {
        b"a" => Some(BackendState::Active),
        b"i" => Some(BackendState::Idle),
        word => BackendState::parse(&String::from_utf8_lossy(word)),
    }
}

/// Returns the `application_name` that more than half of the sessions have, or an arbitrary one
/// without such a majority; `None` if all are empty.
fn most_common_application(backends: &[BackendActivity]) -> Option<Arc<str>> {
    // Boyer-Moore majority vote.
    let (mut name, mut votes) = (None, 0_usize);
    for application in backends.iter().filter_map(|backend| backend.application.as_ref()) {
        match votes.checked_sub(1) {
            None => (name, votes) = (Some(application), 1),
            Some(fewer) => votes = if Some(application) == name { votes + 1 } else { fewer },
        }
    }
    name.cloned()
}

/// Removes an incomplete UTF-8 character at the end of otherwise valid bytes.
fn without_partial_char(bytes: &[u8]) -> &[u8] {
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Maximum number of interned strings. Clients can invent any number of application names.
const INTERNED_STRINGS_MAX: usize = 10_000;

/// Strings that recur in every sample, each stored once.
#[derive(Debug, Default)]
struct InternedStrings(HashMap<Box<[u8]>, Arc<str>>);

impl InternedStrings {
    fn get(&mut self, bytes: &[u8]) -> Arc<str> {
        if let Some(word) = self.0.get(bytes) {
            return Arc::clone(word);
        }
        if self.0.len() >= INTERNED_STRINGS_MAX {
            self.0.clear();
        }
        let word: Arc<str> = sanitized(&String::from_utf8_lossy(bytes), LineBreaks::Join).into();
        self.0.insert(bytes.into(), Arc::clone(&word));
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_prefix_is_truncated_only_at_full_length() {
        let reader = ActivityReader::new(ServerVersion::from_major(15), Some(1024));
        let text = |bytes: &[u8]| reader.decode_text(&[bytes, &[TRUNCATION_MARK]].concat(), None);
        assert!(text(&[b'x'; PREFIX_BYTES]).is_truncated);
        let short = text(b"select '\\', '\xc3\xa4'");
        let decoded = (short.as_str(), short.is_truncated, short.is_exact);
        assert_eq!(decoded, ("select '\\', 'ä'", false, true));
        let torn = [&[b'x'; PREFIX_BYTES - 1][..], b"\xc3"].concat();
        assert_eq!(text(&torn).as_str(), "x".repeat(PREFIX_BYTES - 1));
        assert!(!reader.decode_text(&[b'x'; PREFIX_BYTES], None).is_truncated);
    }

    const ANNA: &[u8] =
        br#"(7,shop,,a,,,,1,5,=,2,,,,"(100,sales,anna,10.0.0.7,5000,""client backend"",f,UTF8)")"#;

    fn reader() -> ActivityReader {
        ActivityReader::new(ServerVersion::from_major(15), Some(1024))
    }

    /// Reads rows with a cursor that has sent everything up to `taken_us`.
    fn read(
        reader: &mut ActivityReader,
        lines: &[(&[u8], Option<&[u8]>)],
    ) -> Result<Vec<BackendActivity>, StaleBaseline> {
        let mut cursor = DeltaCursor::full_read(1000);
        cursor.sessions = "now".to_owned();
        reader.decode_rows(lines.iter().copied(), &cursor)
    }

    #[test]
    fn times_are_relative_to_previous_sample_and_statement() {
        let backend = read(&mut reader(), &[(ANNA, Some(b"select 1"))]).unwrap().remove(0);
        assert_eq!((backend.pid, backend.started_us, backend.xmin_age), (7, 100, Some(1)));
        assert_eq!(backend.query_started_us, Some(1005));
        assert_eq!(backend.transaction_started_us, Some(1005));
        assert_eq!(backend.state_changed_us, Some(1007));
        assert_eq!(backend.user.as_deref(), Some("anna"));
        let idle = br"(7,shop,,i,r,,,,-50,,30,,,,)";
        let mut reader = reader();
        read(&mut reader, &[(ANNA, None)]).unwrap();
        let backend = read(&mut reader, &[(idle, None)]).unwrap().remove(0);
        assert_eq!(backend.wait.unwrap().to_string(), "Client:ClientRead");
        let times = (backend.query_started_us, backend.state_changed_us);
        assert_eq!(times, (Some(950), Some(1030)));
    }

    #[test]
    fn reused_process_id_inherits_nothing() {
        let mut reader = reader();
        read(&mut reader, &[(ANNA, Some(b"select 'of anna'"))]).unwrap();
        // It even runs a statement started at the same moment, whose text is not sent.
        let bert = br#"(7,cart,,a,,,,,5,=,2,,,,"(900,stock,bert,,,""client backend"",t,LATIN1)")"#;
        let backend = read(&mut reader, &[(bert, None)]).unwrap().remove(0);
        assert_eq!((backend.pid, backend.started_us), (7, 900));
        assert_eq!(backend.user.as_deref(), Some("bert"));
        assert_eq!((backend.client, backend.query), (None, None));
        assert_eq!(backend.application.as_deref(), Some("cart"));
        assert!(backend.is_superuser);
        assert_eq!(reader.previous[&7].encoding.as_deref(), Some("LATIN1"));
    }

    #[test]
    fn row_without_baseline_is_stale() {
        let mut reader = reader();
        assert!(read(&mut reader, &[(b"7", None)]).is_err());
        assert!(read(&mut reader, &[(br"(7,shop,,a,,,,1,5,=,2,,,,)", None)]).is_err());
        read(&mut reader, &[(ANNA, None)]).unwrap();
        // It was active before, so its idle state is new.
        assert!(read(&mut reader, &[(b"7", None)]).is_err());
    }

    #[test]
    fn most_common_application_has_the_majority() {
        let backends = |names: &[&str]| -> Vec<BackendActivity> {
            let backend = |name: &&str| {
                let application = (!name.is_empty()).then(|| (*name).into());
                BackendActivity { application, ..BackendActivity::default() }
            };
            names.iter().map(backend).collect()
        };
        let name =
            |names: &[&str]| most_common_application(&backends(names)).map(|name| name.to_string());
        assert_eq!(name(&["a", "b", "b", "", "c", "b", "b"]).as_deref(), Some("b"));
        assert_eq!(name(&["", ""]), None);
        assert_eq!(name(&[]), None);
    }
}
