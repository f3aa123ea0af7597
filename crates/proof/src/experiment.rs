//! The experiment: one way of warming after another, each from the same cold start.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use howdah_connect::{Client, Target};
use howdah_inspect::Process;
use howdah_warm::{
    CacheImage,
    dump::{self, Choice},
    load::{self, Observer, Options},
};

use crate::{
    cost::{self, Used},
    curve::{Curve, steady_rate},
    data,
    error::{InStep as _, ProofError},
    place::{Place, Server},
    points::{Measured, Points, Step},
    rank::Rows,
};

/// An experiment to be done.
#[derive(Clone, Debug)]
pub struct Proof {
    /// On which server.
    pub place: Place,
    /// Size of the table in units of 100 000 rows, about 15 MiB with its key; at least 1.
    pub scale: u32,
    /// How long the client reads after each start.
    pub duration: Duration,
    /// Resolution.
    pub step: Duration,
    /// Exponent of Zipf's law for the rows that are read; `None` is every row alike.
    pub skew: Option<f64>,
    /// How caches below the server's own are made cold.
    pub cold: Cold,
    /// How Howdah loads.
    pub load: Options,
    /// Set it, and the experiment ends within a moment.
    pub stop: Arc<AtomicBool>,
}

/// How the operating system's cache is made cold.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Cold {
    /// The server's data files are thrown out; others on the host keep theirs.
    #[default]
    Files,
    /// All of it is dropped, for everybody on the host. Needs root.
    System,
    /// It is left as it is: only the server's own cache is cold.
    Nothing,
}

/// How the cache is warmed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// By the client alone.
    Nothing,
    /// By contrib's autoprewarm.
    Autoprewarm,
    /// By Howdah's load.
    Howdah,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Findings {
    /// `server_version` of the server.
    pub server: String,
    /// As in [`Proof`].
    pub scale: u32,
    /// As in [`Proof`].
    pub step: Duration,
    /// As in [`Proof`].
    pub duration: Duration,
    /// As in [`Proof`].
    pub skew: Option<f64>,
    /// Pages in the warm cache, and bytes of a page.
    pub pages: (u64, u32),
    /// Reads a second with a warm cache: the median of what was read before the restarts, and in the second
    /// halves of the runs that were warmed. A host that is slower now than a minute ago is no cold cache.
    pub steady: f64,
    /// 99 of 100 reads took at most this then, in microseconds.
    pub steady_p99_us: u64,
    /// The ways, in the order they were tried.
    pub runs: Vec<Run>,
    /// Why a way is missing, and what was done to the operating system's cache.
    pub notes: Vec<String>,
}

/// One way of warming.
#[derive(Clone, Debug)]
pub struct Run {
    /// Which.
    pub way: Way,
    /// What the client read, from the moment the server let it in.
    pub steps: Vec<Step>,
    /// What that comes to.
    pub curve: Curve,
    /// 99 of 100 reads of the whole run took at most this, in microseconds.
    pub p99_us: u64,
    /// The longest, in microseconds.
    pub max_us: u64,
    /// What warming cost; nothing where nothing was warmed.
    pub warming: Option<Warming>,
}

/// What warming cost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Warming {
    /// From the moment the server let clients in until all was loaded.
    pub wall: Duration,
    /// Whether it ended within the time of the measurement.
    pub is_done: bool,
    /// Processor time of the server's processes beside that of the client's session; `None` where they
    /// cannot be seen.
    pub server_cpu: Option<Duration>,
    /// Processor time of our own threads.
    pub own_cpu: Duration,
    /// Bytes read from a disk, as `server_cpu`.
    pub read_bytes: Option<u64>,
    /// The share of the image that is resident at the end, 0 to 1, if somebody looked.
    pub share: Option<f64>,
    /// When a tenth of the pages was loaded, if that is known.
    pub tenth_at: Option<Duration>,
}

impl Way {
    /// All of them, in the order in which they are tried.
    pub const ALL: [Self; 3] = [Self::Nothing, Self::Autoprewarm, Self::Howdah];

    /// How it is named in output and files.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Nothing => "no warming",
            Self::Autoprewarm => "autoprewarm",
            Self::Howdah => "howdah",
        }
    }
}

impl Run {
    /// The rate of the step in which a tenth of the pages had been loaded, as a share of `steady`.
    #[must_use]
    pub fn share_after_a_tenth(&self, steady: f64, step: Duration) -> Option<f64> {
        let at = self.warming?.tenth_at?;
        let step_seconds = step.as_secs_f64();
        let found = self.steps.get((at.as_secs_f64() / step_seconds) as usize + 1)?;
        Some(found.transactions as f64 / step_seconds / steady)
    }
}

/// The rows that the client reads, the same for every way.
const SEED: u64 = 20_250_101;
/// The steady phase has other rows: none that it made hot by chance is to be read again.
const STEADY_SEED: u64 = 4;

impl Proof {
    /// Does it. `tell` gets a line at each stage.
    ///
    /// # Errors
    ///
    /// See [`ProofError`]. A server that was given is left as it was found even then, as far as it can be
    /// reached.
    pub fn run(&self, mut tell: impl FnMut(&str)) -> Result<Findings, ProofError> {
        tell("starting");
        let mut server = Server::of(&self.place, self.scale)?;
        let found = self.measure(&mut server, &mut tell);
        let ended = server.end();
        let found = found?;
        ended?;
        Ok(found)
    }

    fn measure(
        &self,
        server: &mut Server,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Findings, ProofError> {
        let target = server.target().clone();
        let mut client = Client::connect(&target)?;
        let version = client.parameter("server_version").unwrap_or("unknown").to_owned();
        let rows = u64::from(self.scale) * data::ROWS_PER_SCALE;
        tell(&format!("PostgreSQL {version}: making a table of {rows} rows"));
        data::make(&mut client, self.scale)?;
        self.go_on()?;
        data::warm(&mut client)?;
        let time = (self.duration / 3).max(self.step * 6);
        tell(&format!("measuring the warm cache for {:.0} s", time.as_secs_f64()));
        let steady = self.client(&target, STEADY_SEED)?.run(self.step, time, &self.stop)?;
        let mut notes = Vec::new();
        let without = server.autoprewarm(&mut client)?;
        let image = dump::dump(&target, Choice::Best)?.image;
        drop(client);
        if let Some(reason) = &without {
            notes.push(format!("autoprewarm is left out: {reason}"));
        }
        let mut runs = Vec::new();
        let mut rates = vec![steady_rate(&steady.steps, self.step)];
        for way in Way::ALL {
            if way == Way::Autoprewarm && without.is_some() {
                continue;
            }
            self.go_on()?;
            tell(&format!("{}: restarting, then {:.0} s", way.name(), self.duration.as_secs_f64()));
            let switch = without.is_none().then_some(way == Way::Autoprewarm);
            let done = server.restart(self.cold, switch)?;
            if !notes.contains(&done) && runs.is_empty() {
                notes.push(format!("before each start {done}"));
            }
            let run = self.one(way, server, &image)?;
            if run.warming.is_some_and(|warming| warming.is_done) {
                rates.push(steady_rate(&run.steps, self.step));
            }
            runs.push(run);
        }
        let rate = median(rates);
        for run in &mut runs {
            run.curve = Curve::of(&run.steps, self.step, rate);
        }
        Ok(Findings {
            server: version,
            scale: self.scale,
            step: self.step,
            duration: self.duration,
            skew: self.skew,
            pages: (image.page_count(), image.origin.page_bytes),
            steady: rate,
            steady_p99_us: steady.latencies.at_us(0.99).unwrap_or(0),
            runs,
            notes,
        })
    }

    fn client(&self, target: &Target, seed: u64) -> Result<Points, ProofError> {
        let rows = u64::from(self.scale) * data::ROWS_PER_SCALE;
        Points::connect(target, Rows::new(rows, self.skew, seed))
    }

    fn go_on(&self) -> Result<(), ProofError> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(ProofError::Interrupted),
            false => Ok(()),
        }
    }

    /// The server has just started: the client begins, and so does warming.
    fn one(&self, way: Way, server: &Server, image: &CacheImage) -> Result<Run, ProofError> {
        let (target, postmaster) = (server.target(), server.postmaster());
        let mut points = self.client(target, SEED)?;
        let scene = Scene {
            target,
            image,
            options: &self.load,
            postmaster,
            client: points.process_id(),
            client_thread: rustix::thread::gettid(),
            began: Instant::now(),
            is_over: AtomicBool::new(false),
        };
        let (measured, warming) = thread::scope(|scope| {
            // Without a sender there is nothing to wait for.
            let (sender, warmed) = mpsc::channel();
            let scene = &scene;
            if way == Way::Nothing {
                drop(sender);
            } else {
                scope.spawn(move || {
                    let warmed = match way {
                        Way::Howdah => scene.load(),
                        _ => scene.watch_autoprewarm(),
                    };
                    // Nobody waits for it only if the client failed, which is told instead.
                    let _ = sender.send(warmed);
                });
            }
            let measured = points.run(self.step, self.duration, &self.stop);
            scene.is_over.store(true, Ordering::Relaxed);
            (measured, warmed.recv().ok())
        });
        let Measured { steps, latencies } = measured?;
        let warming = warming.transpose()?;
        Ok(Run {
            way,
            curve: Curve::default(),
            steps,
            p99_us: latencies.at_us(0.99).unwrap_or(0),
            max_us: latencies.at_us(1.0).unwrap_or(0),
            warming,
        })
    }
}

/// The middle one; of two the smaller.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates.get(rates.len().saturating_sub(1) / 2).copied().unwrap_or(0.0)
}

/// What warming happens in, seen by the thread that warms or watches.
struct Scene<'a> {
    target: &'a Target,
    image: &'a CacheImage,
    options: &'a Options,
    postmaster: Option<Process>,
    /// The client's session, whose work is not the warming's.
    client: Option<i32>,
    client_thread: rustix::thread::Pid,
    began: Instant,
    is_over: AtomicBool,
}

/// A reading of all meters.
struct Meters {
    server: Option<Used>,
    own: Duration,
}

impl Scene<'_> {
    fn load(&self) -> Result<Warming, ProofError> {
        let before = self.meters(None);
        let progress = Progress { scene: self, planned: 0.into(), done: 0.into(), tenth: 0.into() };
        let loaded = load::load(self.image, self.target, self.options, &progress)?;
        let wall = self.began.elapsed();
        let tenth = progress.tenth.load(Ordering::Relaxed);
        let share = loaded.residency.is_ok().then(|| loaded.share());
        let tenth_at = (tenth > 0).then(|| Duration::from_micros(tenth));
        Ok(self.warming(&before, None, wall, !loaded.is_cut_short, share, tenth_at))
    }

    /// Waits until autoprewarm's workers are gone. There is one for each database, one after another,
    /// started by a leader who stays.
    fn watch_autoprewarm(&self) -> Result<Warming, ProofError> {
        const LOOK: Duration = Duration::from_millis(50);
        /// Looks without a worker after which none is to come.
        const QUIET: u32 = 4;
        /// A file of nothing is loaded before anybody looks.
        const PATIENCE: Duration = Duration::from_secs(2);
        let sql = "SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'autoprewarm worker'";
        let mut client = Client::connect(self.target)?;
        let own = client.process_id();
        let before = self.meters(own);
        let (mut quiet, mut was_seen, mut wall) = (0, false, Duration::ZERO);
        while !self.is_over.load(Ordering::Relaxed) {
            let workers = client.one_value(sql).step("a question about autoprewarm")?;
            if workers.is_some_and(|workers| workers != "0") {
                (quiet, was_seen) = (0, true);
            } else {
                if quiet == 0 {
                    wall = self.began.elapsed();
                }
                quiet += 1;
            }
            if quiet >= QUIET && (was_seen || self.began.elapsed() > PATIENCE) {
                return Ok(self.warming(&before, own, wall, true, None, None));
            }
            thread::sleep(LOOK);
        }
        Ok(self.warming(&before, own, self.began.elapsed(), false, None, None))
    }

    fn meters(&self, also_not: Option<i32>) -> Meters {
        let server = self.postmaster.and_then(|postmaster| {
            let all = cost::of_server(postmaster).ok()?;
            Some(all.since(cost::of_one(self.client)).since(cost::of_one(also_not)))
        });
        let own = cost::of_us().saturating_sub(cost::of_thread(self.client_thread));
        Meters { server, own }
    }

    fn warming(
        &self,
        before: &Meters,
        also_not: Option<i32>,
        wall: Duration,
        is_done: bool,
        share: Option<f64>,
        tenth_at: Option<Duration>,
    ) -> Warming {
        let after = self.meters(also_not);
        let server = after.server.zip(before.server).map(|(after, before)| after.since(before));
        Warming {
            wall,
            is_done,
            server_cpu: server.map(|used| used.cpu),
            own_cpu: after.own.saturating_sub(before.own),
            read_bytes: server.map(|used| used.read_bytes),
            share,
            tenth_at,
        }
    }
}

/// Notes when a tenth was loaded, and ends the load with the measurement.
struct Progress<'a> {
    scene: &'a Scene<'a>,
    planned: AtomicU64,
    done: AtomicU64,
    /// Microseconds; 0 until then.
    tenth: AtomicU64,
}

impl Observer for Progress<'_> {
    fn planned(&self, pages: u64) {
        self.planned.store(pages, Ordering::Relaxed);
    }

    fn advanced(&self, pages: u64) {
        let done = self.done.fetch_add(pages, Ordering::Relaxed) + pages;
        if done * 10 >= self.planned.load(Ordering::Relaxed) {
            let now = u64::try_from(self.scene.began.elapsed().as_micros()).unwrap_or(u64::MAX);
            let _ = self.tenth.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed);
        }
    }

    fn wants_end(&self) -> bool {
        self.scene.is_over.load(Ordering::Relaxed)
    }
}
