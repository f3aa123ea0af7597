//! Reads all sessions, and remembers what was told, so that it need not be told again.
//!
//! Most sessions idle, and most of what is known of one never changes. So the server sends
//!
//! - of a session that has idled since before the last reading: its process id;
//! - its user, database, client and kind: in the first readings that have it;
//! - of a statement: its beginning, enough for a line of a screen, when it is first seen; its whole text once,
//!   when it has run for a second. What is shorter has gone before anybody asks.
//!
//! What the server is asked to compare with are its own words for its own clock. A reading that meets a session that
//! it should know and does not, or a clock that was set back, is made again without all that.

use std::{borrow::Cow, collections::HashMap, mem, sync::Arc, time::Duration, time::Instant};

use howdah_connect::Client;

use super::{
    Activity, Backend, Kind, State, Wait, blockers,
    statement::{self, BEGINNING_BYTES, CLOCK, CUT},
    told::Told,
};
use crate::{
    CollectError, SqlText, Version,
    prepared::Prepared,
    record::{RecordFields, number},
    text::{Lines, shown},
};

/// How long a statement has to run for its whole text, if nobody says otherwise.
const WHOLE_AFTER: Duration = Duration::from_secs(1);

/// Reads activity, and remembers what was told.
#[derive(Debug)]
pub(crate) struct Reader {
    statement: Prepared,
    /// The most bytes of a text that the server keeps, if it says.
    query_bytes_max: Option<usize>,
    whole_after: Duration,
    /// The sessions of the last reading by process id.
    known: HashMap<i32, Known>,
    told: Told,
    /// Whether the last reading had the texts of idle sessions, too.
    had_idle: bool,
    /// What most sessions of the last reading call themselves. It need not be sent for each of them.
    commonest: Option<Arc<str>>,
    words: Words,
}

/// A session as the last reading had it.
#[derive(Clone, Debug)]
struct Known {
    backend: Backend,
    encoding: Option<Arc<str>>,
}

/// The rows of a reading cannot be understood, since what they stand on is not known.
#[derive(Debug)]
struct StaleBaseline;

impl Reader {
    pub(crate) fn new(version: Version, query_bytes_max: Option<usize>) -> Self {
        Self {
            statement: Prepared::new("activity", statement::sql(version)).in_binary(),
            query_bytes_max,
            whole_after: WHOLE_AFTER,
            known: HashMap::new(),
            told: Told::nothing(0),
            had_idle: false,
            commonest: None,
            words: Words::default(),
        }
    }

    /// Wants the whole texts of all statements from now on, however short they run.
    pub(crate) fn want_whole_texts(&mut self) {
        self.whole_after = Duration::ZERO;
    }

    /// Reads all sessions. `idle_texts`: also what idle ones ran last.
    pub(crate) fn read(
        &mut self,
        client: &mut Client,
        idle_texts: bool,
    ) -> Result<Activity, CollectError> {
        if idle_texts && !self.had_idle {
            self.told = Told::nothing(self.told.taken_us);
        }
        self.had_idle = idle_texts;
        let backends = match self.try_read(client, idle_texts)? {
            Ok(backends) => backends,
            Err(StaleBaseline) => {
                self.told = Told::nothing(self.told.taken_us);
                self.try_read(client, idle_texts)?.unwrap_or_default()
            }
        };
        Ok(Activity { taken_us: self.told.taken_us, backends })
    }

    fn try_read(
        &mut self,
        client: &mut Client,
        idle_texts: bool,
    ) -> Result<Result<Vec<Backend>, StaleBaseline>, CollectError> {
        let nothing = Told::nothing(self.told.taken_us);
        // If the statement fails, what it would have told is told by the next.
        let told = mem::replace(&mut self.told, nothing);
        let whole_after = format!("{} us", self.whole_after.as_micros());
        let since_us = told.taken_us.to_string();
        let values = [
            Some(told.idle.as_str()),
            Some(if idle_texts { "t" } else { "f" }),
            Some(told.sessions.as_str()),
            Some(told.texts.as_str()),
            Some(whole_after.as_str()),
            Some(since_us.as_str()),
            self.commonest.as_deref(),
        ];
        let asked = Instant::now();
        let result = self.statement.run(client, &values)?;
        let clock = result.rows.iter().find_map(|row| row.bytes(0)?.strip_prefix(CLOCK));
        if let Some(now) = clock.and_then(|clock| Told::parse(clock, asked)) {
            self.told = now;
        }
        if self.told.is_set_back(&told) {
            return Ok(Err(StaleBaseline));
        }
        let lines = result.rows.iter().map(|row| (row.bytes(0).unwrap_or_default(), row.bytes(1)));
        Ok(self.backends(lines, &told))
    }

    /// The sessions of a result, by process id. `lines`: its two columns; `told`: what had been told before it.
    fn backends<'a>(
        &mut self,
        lines: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
        told: &Told,
    ) -> Result<Vec<Backend>, StaleBaseline> {
        let before = mem::take(&mut self.known);
        let mut backends = Vec::with_capacity(before.len());
        for (now, text) in lines {
            if now.starts_with(CLOCK) {
                continue;
            }
            let is_quiet = !now.starts_with(b"(");
            let pid = if is_quiet { number(now) } else { RecordFields::of(now).integer() };
            let pid = pid.and_then(|pid| pid.try_into().ok()).unwrap_or(0);
            let known = before.get(&pid).filter(|_| !told.is_nothing());
            let known = match known {
                // One that was not idle has become it since, whatever the moment it gives for that.
                _ if is_quiet => {
                    let is_idle = |known: &&Known| known.backend.state == Some(State::Idle);
                    known.filter(is_idle).ok_or(StaleBaseline)?.clone()
                }
                known => self.session(now, text, known, told.taken_us)?,
            };
            backends.push(known.backend.clone());
            self.known.insert(pid, known);
        }
        backends.sort_unstable_by_key(|backend| backend.pid);
        self.commonest = commonest(&backends);
        Ok(backends)
    }

    /// A session that does something, or whose idling is news. `now` and `text`: its columns; `known`: the same process
    /// in the last reading; `since_us`: the moment that times are told from.
    fn session(
        &mut self,
        now: &[u8],
        text: Option<&[u8]>,
        known: Option<&Known>,
        since_us: i64,
    ) -> Result<Known, StaleBaseline> {
        let mut now = RecordFields::of(now);
        let pid = now.integer().and_then(|pid| pid.try_into().ok()).unwrap_or(0);
        let application = match now.word() {
            Some(name) => Some(self.words.get(&name)),
            None => self.commonest.clone(),
        };
        let leader = now.integer().and_then(|pid| pid.try_into().ok());
        let state = now.word().and_then(|word| state(&word));
        let wait = self.wait(&mut now);
        let (xid_age, xmin_age) = (now.integer(), now.integer());
        let since = |us: i64| us.saturating_add(since_us);
        let query_started_us = now.integer().map(since);
        let transaction_started_us = match now.word().as_deref() {
            Some(b"=") => query_started_us,
            other => other.and_then(number).map(since),
        };
        let state_changed_us = match (state, query_started_us, now.integer()) {
            (Some(State::Active), Some(begun_us), Some(us)) => Some(begun_us.saturating_add(us)),
            (_, _, us) => us.map(since),
        };
        let query_id = now.integer();
        let blockers =
            now.word().map_or_else(Vec::new, |pids| blockers(&String::from_utf8_lossy(&pids)));
        let blocked_since_us = now.integer();
        let (fixed, encoding) = match (now.word(), known) {
            (Some(fixed), _) => self.fixed(pid, &fixed),
            (None, Some(known)) => (known.backend.clone(), known.encoding.clone()),
            (None, None) => return Err(StaleBaseline),
        };
        let is_same = |known: &&Known| {
            known.backend.started_us == fixed.started_us
                && known.backend.query_started_us == query_started_us
        };
        let query = match text {
            Some(bytes) => Some(self.text(bytes, encoding.as_deref())),
            None => known.filter(is_same).and_then(|known| known.backend.query.clone()),
        };
        let backend = Backend {
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
        Ok(Known { backend, encoding })
    }

    fn wait(&mut self, now: &mut RecordFields<'_>) -> Option<Wait> {
        let mut word = |word: Cow<'_, [u8]>| self.words.get(&word);
        match (now.word(), now.word()) {
            (Some(class), None) if *class == *b"r" => Some(Wait {
                class: word(b"Client"[..].into()),
                event: word(b"ClientRead"[..].into()),
            }),
            (class, event) => class
                .zip(event)
                .map(|(class, event)| Wait { class: word(class), event: word(event) }),
        }
    }

    /// What never changes of a session, and its encoding.
    fn fixed(&mut self, pid: i32, record: &[u8]) -> (Backend, Option<Arc<str>>) {
        let mut fields = RecordFields::of(record);
        let started_us = fields.integer();
        let mut word =
            |fields: &mut RecordFields<'_>| fields.word().map(|word| self.words.get(&word));
        let database = word(&mut fields);
        let user = word(&mut fields);
        let client = word(&mut fields);
        let client_port = fields.integer().and_then(|port| port.try_into().ok());
        let kind = word(&mut fields).map(|kind| Kind::parse(&kind));
        let is_superuser = word(&mut fields).is_some_and(|truth| &*truth == "t");
        let encoding = word(&mut fields);
        let backend = Backend {
            pid,
            started_us: started_us.unwrap_or(0),
            database,
            user,
            client,
            client_port,
            kind,
            is_superuser,
            // Where the role may not look, the start is hidden with all else.
            is_readable: started_us.is_some(),
            ..Backend::default()
        };
        (backend, encoding)
    }

    fn text(&self, bytes: &[u8], encoding: Option<&str>) -> SqlText {
        match bytes.split_last() {
            // Whatever it is, more than that may have been there.
            Some((&CUT, beginning)) if beginning.len() >= BEGINNING_BYTES => {
                SqlText::new(without_torn_end(beginning), encoding, Some(0))
            }
            Some((&CUT, whole)) => SqlText::new(whole, encoding, self.query_bytes_max),
            _ => SqlText::new(bytes, encoding, self.query_bytes_max),
        }
    }
}

/// The state that the server was asked to have this word for.
fn state(word: &[u8]) -> Option<State> {
    match word {
        b"a" => Some(State::Active),
        b"i" => Some(State::Idle),
        word => State::parse(&String::from_utf8_lossy(word)),
    }
}

/// What more than half of the sessions call themselves, or some of them if there is no such name.
fn commonest(backends: &[Backend]) -> Option<Arc<str>> {
    // The majority vote of Boyer and Moore.
    let (mut name, mut votes) = (None, 0_usize);
    for own in backends.iter().filter_map(|backend| backend.application.as_ref()) {
        match votes.checked_sub(1) {
            None => (name, votes) = (Some(own), 1),
            Some(fewer) => votes = if Some(own) == name { votes + 1 } else { fewer },
        }
    }
    name.cloned()
}

/// A text of UTF-8 without the first bytes of a character whose others were cut off.
fn without_torn_end(bytes: &[u8]) -> &[u8] {
    match str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
    }
}

/// Most different words that are kept. Names of applications can be as many as somebody likes.
const WORDS_MAX: usize = 10_000;

/// Words that come again in every reading, each held once.
#[derive(Debug, Default)]
struct Words(HashMap<Box<[u8]>, Arc<str>>);

impl Words {
    fn get(&mut self, bytes: &[u8]) -> Arc<str> {
        if let Some(word) = self.0.get(bytes) {
            return Arc::clone(word);
        }
        if self.0.len() >= WORDS_MAX {
            self.0.clear();
        }
        let word: Arc<str> = shown(&String::from_utf8_lossy(bytes), Lines::Join).into();
        self.0.insert(bytes.into(), Arc::clone(&word));
        word
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_beginning_is_cut_only_if_there_was_more() {
        let reader = Reader::new(Version::of_major(15), Some(1024));
        let text = |bytes: &[u8]| reader.text(&[bytes, &[CUT]].concat(), None);
        assert!(text(&[b'x'; BEGINNING_BYTES]).is_truncated);
        let short = text(b"select '\\', '\xc3\xa4'");
        let told = (short.as_str(), short.is_truncated, short.is_exact);
        assert_eq!(told, ("select '\\', 'ä'", false, true));
        let torn = [&[b'x'; BEGINNING_BYTES - 1][..], b"\xc3"].concat();
        assert_eq!(text(&torn).as_str(), "x".repeat(BEGINNING_BYTES - 1));
        assert!(!reader.text(&[b'x'; BEGINNING_BYTES], None).is_truncated);
    }

    const ANNA: &[u8] =
        br#"(7,shop,,a,,,,1,5,=,2,,,,"(100,sales,anna,10.0.0.7,5000,""client backend"",f,UTF8)")"#;

    fn reader() -> Reader {
        Reader::new(Version::of_major(15), Some(1024))
    }

    /// A reading behind which all is told up to `taken_us`.
    fn read(
        reader: &mut Reader,
        lines: &[(&[u8], Option<&[u8]>)],
    ) -> Result<Vec<Backend>, StaleBaseline> {
        let mut told = Told::nothing(1000);
        told.sessions = "now".to_owned();
        reader.backends(lines.iter().copied(), &told)
    }

    #[test]
    fn times_are_told_from_the_last_reading_and_from_the_statement() {
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
    fn a_process_id_that_another_session_got_has_nothing_of_the_one_before() {
        let mut reader = reader();
        read(&mut reader, &[(ANNA, Some(b"select 'of anna'"))]).unwrap();
        // It even runs a statement that began at the same moment, and does not say what.
        let bert = br#"(7,cart,,a,,,,,5,=,2,,,,"(900,stock,bert,,,""client backend"",t,LATIN1)")"#;
        let backend = read(&mut reader, &[(bert, None)]).unwrap().remove(0);
        assert_eq!((backend.pid, backend.started_us), (7, 900));
        assert_eq!(backend.user.as_deref(), Some("bert"));
        assert_eq!((backend.client, backend.query), (None, None));
        assert_eq!(backend.application.as_deref(), Some("cart"));
        assert!(backend.is_superuser);
        assert_eq!(reader.known[&7].encoding.as_deref(), Some("LATIN1"));
    }

    #[test]
    fn what_stands_on_something_forgotten_is_asked_again() {
        let mut reader = reader();
        assert!(read(&mut reader, &[(b"7", None)]).is_err());
        assert!(read(&mut reader, &[(br"(7,shop,,a,,,,1,5,=,2,,,,)", None)]).is_err());
        read(&mut reader, &[(ANNA, None)]).unwrap();
        // It was at work, so that it idles is news.
        assert!(read(&mut reader, &[(b"7", None)]).is_err());
    }

    #[test]
    fn the_commonest_name_is_that_of_most() {
        let backends = |names: &[&str]| -> Vec<Backend> {
            let backend = |name: &&str| {
                let application = (!name.is_empty()).then(|| (*name).into());
                Backend { application, ..Backend::default() }
            };
            names.iter().map(backend).collect()
        };
        let name = |names: &[&str]| commonest(&backends(names)).map(|name| name.to_string());
        assert_eq!(name(&["a", "b", "b", "", "c", "b", "b"]).as_deref(), Some("b"));
        assert_eq!(name(&["", ""]), None);
        assert_eq!(name(&[]), None);
    }
}
