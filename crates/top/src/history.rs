//! The past: everything that was read, packed, for a while in memory and for longer in a file.
//!
//! ```text
//! standing ──► frame (what changed) ──► zstd, flushed ──► ring of segments ──► look(moment)
//!                                              └────────► recording (a file)
//! ```
//!
//! A *frame* is what one reading gave, as its difference to the one before; texts are written once. Frames of
//! some minutes are a *segment*, which stands by itself: the oldest is dropped as a whole, and a moment is
//! found by reading its segment from the beginning. What sessions waited for is kept by itself, a second at
//! a time, so that a chart of an hour needs no frames.
//!
//! What is not here: what a person sees of it (that is the model), and when to read (the sampler).

mod backends;
mod bytes;
mod frame;
mod pack;
mod pooled;
mod recorder;
mod recording;
mod slots;
mod texts;
mod track;
mod views;
mod wire;

use std::{
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use self::track::{FrameEncoder, Track};
pub use self::{
    bytes::Damage,
    recorder::{RecordError, Recorder},
    recording::{Gap, ReadRecordError, Recording},
    track::Look,
};
use crate::Standing;

/// How much of the past is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// How long.
    pub age: Duration,
    /// How many bytes: of memory for all servers together, or of a file.
    pub bytes: u64,
}

impl Limits {
    /// What is kept in memory unless somebody says otherwise.
    pub const MEMORY: Self = Self { age: Duration::from_secs(3600), bytes: 64 << 20 };

    /// What a recording keeps unless somebody says otherwise.
    pub const FILE: Self = Self { age: Duration::from_secs(7 * 86400), bytes: 1 << 30 };
}

/// The past of several servers. Readers and writers are on several threads.
#[derive(Debug)]
pub struct History {
    names: Vec<String>,
    limits: Limits,
    servers: Vec<Mutex<Kept>>,
}

#[derive(Debug)]
struct Kept {
    cutter: FrameEncoder,
    track: Track,
    /// The last standing was none: it is not told again at each attempt.
    is_away: bool,
    /// The last second of waits that was given to a recording.
    waits_told: i64,
}

impl History {
    /// A history without anything in it, of servers of these names.
    ///
    /// # Errors
    ///
    /// There is no memory to pack in.
    pub fn new(names: impl IntoIterator<Item = String>, limits: Limits) -> io::Result<Self> {
        let names: Vec<String> = names.into_iter().collect();
        let servers = names.iter().map(|_| Kept::new(Track::default()));
        let servers = servers.collect::<io::Result<_>>()?;
        Ok(Self { names, limits, servers })
    }

    /// The history that a file has.
    fn of_tracks(tracks: Vec<(String, Track)>) -> io::Result<Self> {
        let (names, tracks): (Vec<_>, Vec<_>) = tracks.into_iter().unzip();
        let servers = tracks.into_iter().map(Kept::new).collect::<io::Result<_>>()?;
        Ok(Self { names, limits: Limits::FILE, servers })
    }

    /// The names of its servers.
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Keeps how it stands with a server, and gives it to a recording, too.
    ///
    /// # Errors
    ///
    /// The recording's; what is kept in memory is there all the same.
    pub fn keep(
        &self,
        server: usize,
        standing: &Standing,
        recorder: Option<&Mutex<Recorder>>,
    ) -> Result<(), RecordError> {
        let Some((mut kept, name)) = self.kept(server).zip(self.names.get(server)) else {
            return Ok(());
        };
        let is_away = !matches!(standing, Standing::Read(_));
        if std::mem::replace(&mut kept.is_away, is_away) && is_away {
            return Ok(());
        }
        let at_us = match standing {
            Standing::Read(snapshot) => snapshot.seen_us,
            _ => crate::sampler::now_us(),
        };
        // A clock that was set back does not reorder what was seen.
        let at_us = kept.track.range().map_or(at_us, |(_, last_us)| last_us.max(at_us));
        let frame = kept.cutter.cut(at_us, standing).map_err(RecordError::Pack)?;
        kept.track.push(&frame);
        let bytes = usize::try_from(self.limits.bytes).unwrap_or(usize::MAX);
        kept.track.trim(at_us, self.limits.age, bytes / self.servers.len().max(1));
        let told = kept.waits_told;
        if let Standing::Read(snapshot) = standing {
            kept.track.waits = (*snapshot.waits).clone();
            // The last second may not be over.
            let whole = snapshot.waits.seconds().rev().nth(1).map(|second| second.second);
            kept.waits_told = whole.unwrap_or(told).max(told);
        }
        let Some(recorder) = recorder else { return Ok(()) };
        let until = kept.waits_told;
        let seconds: Vec<_> = kept
            .track
            .waits
            .after(told)
            .take_while(|second| second.second <= until)
            .cloned()
            .collect();
        let mut recorder = recorder.lock().unwrap_or_else(PoisonError::into_inner);
        recorder.frame(name, &frame)?;
        recorder.waits(name, at_us, &seconds)
    }

    /// How it stood with a server at `at_us`, microseconds since 1970 by our clock. `view`: the name of the
    /// view that is looked at; the last reading of it before that moment is there, if it is not too old.
    /// `None` if the history begins later.
    ///
    /// # Errors
    ///
    /// What is kept is damaged there.
    pub fn look(
        &self,
        server: usize,
        at_us: i64,
        view: Option<&str>,
    ) -> Result<Option<Look>, Damage> {
        self.kept(server).map_or(Ok(None), |kept| kept.track.look(at_us, view))
    }

    /// The moment so many readings before or behind another.
    pub fn step(&self, server: usize, from_us: i64, by: isize) -> Option<i64> {
        self.kept(server)?.track.step(from_us, by)
    }

    /// The first and the last moment of a server.
    pub fn range(&self, server: usize) -> Option<(i64, i64)> {
        self.kept(server)?.track.range()
    }

    /// The earliest and the latest moment of all servers: the clock of a recording. A server that was never read has a
    /// single moment, at which it could not be.
    pub fn whole_range(&self) -> Option<(i64, i64)> {
        let ranges = (0..self.servers.len()).filter_map(|server| self.range(server));
        ranges.reduce(|one, other| (one.0.min(other.0), one.1.max(other.1)))
    }

    /// When a server was read for the first time; `None` if it never was, or if what is kept is damaged before
    /// that.
    pub fn first_read(&self, server: usize) -> Option<i64> {
        let mut first_us = None;
        let played = self.play(server, None, |at_us, standing| {
            first_us = matches!(standing, Standing::Read(_)).then_some(at_us);
            first_us.is_none()
        });
        if let Err(damage) = played {
            tracing::warn!(%damage, server, "the recording is damaged");
        }
        first_us
    }

    /// Tells all that there is of a server, in order, until `tell` says that it is enough.
    ///
    /// # Errors
    ///
    /// What is kept is damaged somewhere; what was before that has been told.
    pub fn play(
        &self,
        server: usize,
        view: Option<&str>,
        tell: impl FnMut(i64, Standing) -> bool,
    ) -> Result<(), Damage> {
        self.kept(server).map_or(Ok(()), |kept| kept.track.play(view, tell))
    }

    /// Bytes of memory that frames and their places take.
    pub fn held_bytes(&self) -> usize {
        (0..self.servers.len())
            .filter_map(|server| self.kept(server))
            .map(|kept| kept.track.held_bytes())
            .sum()
    }

    fn kept(&self, server: usize) -> Option<MutexGuard<'_, Kept>> {
        // A panic elsewhere leaves at worst a segment whose last frame is missing.
        Some(self.servers.get(server)?.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Kept {
    fn new(track: Track) -> io::Result<Mutex<Self>> {
        let cutter = FrameEncoder::new()?;
        Ok(Mutex::new(Self { cutter, track, is_away: false, waits_told: i64::MIN }))
    }
}

/// What keeps the standings of samplers: a history, and a recording if there is one.
#[derive(Clone, Debug)]
pub struct Keeper {
    /// What is kept in memory.
    pub history: Arc<History>,
    recorder: Option<Arc<Mutex<Recorder>>>,
}

impl Keeper {
    /// Keeps in memory, and in a file if there is one.
    pub fn new(history: History, recorder: Option<Recorder>) -> Self {
        let recorder = recorder.map(|recorder| Arc::new(Mutex::new(recorder)));
        Self { history: Arc::new(history), recorder }
    }

    /// Whether all views are wanted, in turn: a recording has every screen.
    pub fn wants_all_views(&self) -> bool {
        self.recorder.is_some()
    }

    /// Ends the recording, if there is one: all of it is on the disk then, and the file is not written any more.
    ///
    /// # Errors
    ///
    /// The disk did not take all.
    pub fn finish(&self) -> Result<(), RecordError> {
        let Some(recorder) = &self.recorder else { return Ok(()) };
        recorder.lock().unwrap_or_else(PoisonError::into_inner).finish()
    }

    /// What keeps one server's standings; gives a sentence when the recording begins to fail.
    pub fn for_server(
        &self,
        server: usize,
    ) -> impl FnMut(&Standing) -> Option<String> + Send + use<> {
        let keeper = self.clone();
        let mut has_failed = false;
        move |standing| {
            let kept = keeper.history.keep(server, standing, keeper.recorder.as_deref());
            let failed = kept.inspect_err(|error| tracing::error!(%error, "not recorded")).err();
            let is_news = failed.is_some() && !has_failed;
            has_failed = failed.is_some();
            failed.filter(|_| is_news).map(|error| crate::sampler::with_causes(&error))
        }
    }
}

#[cfg(test)]
mod tests;
