//! A [`Campaign`] runs one target on many inputs.

use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    fmt,
    panic::{self, AssertUnwindSafe},
    sync::Once,
    time::Duration,
};

use rustix::time::{ClockId, clock_gettime};

use crate::{
    memory,
    mutate::{self, Material},
    random::Random,
    targets::{Shape, Target},
};

/// Runs one target on inputs that depend only on the campaign's seed.
#[derive(Debug)]
pub struct Campaign {
    target: &'static Target,
    seed: u64,
    random: Random,
    /// The target's seeds, then mutated inputs that produced a new shape.
    pool: Vec<Vec<u8>>,
    seeds: usize,
    /// Hashes of all behaviour observed so far.
    seen: HashSet<u64>,
    iterations: u64,
}

/// Most inputs in the pool. Once it is full, new inputs replace old mutated ones, never seeds.
const POOL_MAX: usize = 2000;

/// Most hashes remembered. A target that exceeds it reports too much detail for its shapes to be
/// useful.
const SEEN_MAX: usize = 200_000;

impl Campaign {
    /// Creates a campaign that has not run yet. Its first inputs are the target's seeds, unchanged.
    pub fn new(target: &'static Target, seed: u64) -> Self {
        let pool = target.seeds.inputs();
        assert!(!pool.is_empty(), "{} has no seeds", target.name);
        let seeds = pool.len();
        let random = Random::new(seed);
        Self { target, seed, random, pool, seeds, seen: HashSet::new(), iterations: 0 }
    }

    /// Returns the next input: first each seed, then mutations of pool entries.
    pub fn input(&mut self) -> Vec<u8> {
        if let Ok(at) = usize::try_from(self.iterations)
            && at < self.seeds
        {
            return self.pool[at].clone();
        }
        let mut input = self.random.pick(&self.pool).cloned().unwrap_or_default();
        let material = Material {
            words: self.target.words,
            others: &self.pool,
            bytes_max: self.target.bytes_max,
        };
        mutate::mutate(&mut input, material, &mut self.random);
        input
    }

    /// Runs the target on an input returned by [`Campaign::input`].
    ///
    /// # Errors
    ///
    /// The target panicked, or exceeded its memory or time limit.
    pub fn run(&mut self, input: &[u8]) -> Result<(), Box<Failure>> {
        self.iterations += 1;
        match check(self.target, input) {
            Ok(shape) => {
                self.keep(&shape, input);
                Ok(())
            }
            Err(message) => Err(Box::new(self.failure(input, message))),
        }
    }

    /// Number of inputs run.
    pub fn iterations(&self) -> u64 {
        self.iterations
    }

    /// Number of distinct behaviours observed.
    pub fn seen(&self) -> usize {
        self.seen.len()
    }

    fn keep(&mut self, shape: &Shape, input: &[u8]) {
        let known = self.seen.len();
        if known < SEEN_MAX {
            self.seen.extend(shape.hashes());
        }
        if self.seen.len() == known || self.iterations <= self.seeds as u64 {
            return;
        }
        if self.pool.len() < POOL_MAX {
            self.pool.push(input.to_vec());
        } else {
            let at = self.seeds + self.random.below(POOL_MAX - self.seeds);
            self.pool[at] = input.to_vec();
        }
    }

    fn failure(&self, input: &[u8], message: String) -> Failure {
        let started = processor_time();
        let has_time = || processor_time().saturating_sub(started) < SHRINK_TIME_MAX;
        let shrunk =
            mutate::shrink(input, |shorter| has_time() && check(self.target, shorter).is_err());
        Failure {
            target: self.target.name,
            seed: self.seed,
            iteration: self.iterations,
            message: check(self.target, &shrunk).err().unwrap_or(message),
            input: shrunk,
            bytes: input.len(),
        }
    }
}

/// An input on which the target violated one of its properties.
#[derive(Clone, Debug)]
pub struct Failure {
    /// The target's name on the command line.
    pub target: &'static str,
    /// The campaign's seed, with which the failure can be reproduced.
    pub seed: u64,
    /// Number of the input in the campaign, counted from 1.
    pub iteration: u64,
    /// The panic message with its source location, or the limit that was exceeded.
    pub message: String,
    /// The failing input, shrunk within a time limit.
    pub input: Vec<u8>,
    /// Length of the input before shrinking.
    pub bytes: usize,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { target, seed, iteration, message, input, bytes } = self;
        let hex = to_hex(input);
        write!(
            f,
            "{target}: {message}\n  input {iteration} of seed {seed}, {bytes} bytes, shrunk to {}: {}\n  \
             replay: cargo run -p howdah-fuzz -- replay {target} {hex}",
            input.len(),
            input.escape_ascii()
        )
    }
}

/// Runs a target on one input.
///
/// # Errors
///
/// The message of the target's panic, or the memory or time limit that it exceeded.
pub fn check(target: &Target, input: &[u8]) -> Result<Shape, String> {
    let started = processor_time();
    let (result, bytes) = memory::peak_bytes(|| quietly(|| (target.run)(input)));
    let took = processor_time().saturating_sub(started);
    let shape = result?;
    let allowed = target.memory_max(input.len());
    if bytes > allowed {
        return Err(format!(
            "held {bytes} bytes for an input of {}, {allowed} are allowed",
            input.len()
        ));
    }
    if took > TIME_MAX {
        return Err(format!("took {took:?} of processor time"));
    }
    Ok(shape)
}

/// Processor time allowed for one input: a thousand times that of the slowest, so that only
/// super-linear or endless work exceeds it.
const TIME_MAX: Duration = Duration::from_secs(5);

/// Processor time spent on shrinking a failing input.
const SHRINK_TIME_MAX: Duration = Duration::from_secs(20);

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let nanos = u32::try_from(time.tv_nsec).unwrap_or(0);
    Duration::new(u64::try_from(time.tv_sec).unwrap_or(0), nanos)
}

thread_local! {
    static QUIET: Cell<bool> = const { Cell::new(false) };
    static SAID: RefCell<String> = const { RefCell::new(String::new()) };
}

/// Runs `work` and turns a panic into its message and location, without printing it.
fn quietly<T>(work: impl FnOnce() -> T) -> Result<T, String> {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let usual = panic::take_hook();
        panic::set_hook(Box::new(move |info| {
            if QUIET.get() {
                SAID.set(info.to_string());
            } else {
                usual(info);
            }
        }));
    });
    QUIET.set(true);
    // Targets share no mutable state, so nothing inconsistent survives a panic.
    let result = panic::catch_unwind(AssertUnwindSafe(work));
    QUIET.set(false);
    result.map_err(|_| SAID.take())
}

/// Encodes bytes as hexadecimal digits.
fn to_hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Decodes hexadecimal digits, or returns `None` if the text has anything else.
pub fn from_hex(text: &str) -> Option<Vec<u8>> {
    let digit = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    let pair = |[high, low]: &[u8; 2]| Some(digit(*high)? << 4 | digit(*low)?);
    pairs.iter().map(pair).collect::<Option<_>>().filter(|_| rest.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::targets::Seeds;

    const fn target(run: fn(&[u8]) -> Shape) -> Target {
        let seeds = Seeds::Made(|| vec![b"seed".to_vec()]);
        Target { name: "test", run, seeds, words: &[b"bad"], ..Target::PLAIN }
    }

    fn first_failure(target: &'static Target, seed: u64) -> Failure {
        let mut campaign = Campaign::new(target, seed);
        loop {
            let input = campaign.input();
            if let Err(failure) = campaign.run(&input) {
                return *failure;
            }
            assert!(campaign.iterations() < 100_000, "nothing was found");
        }
    }

    #[test]
    fn a_broken_promise_is_found_shrunk_and_found_again() {
        static TARGET: Target = target(|input| {
            assert!(!input.windows(3).any(|part| part == b"bad"), "that is bad");
            Shape::of(input.first())
        });
        let failure = first_failure(&TARGET, 1);
        assert_eq!(failure.input, b"bad");
        assert!(failure.to_string().contains("that is bad"), "{failure}");
        assert!(failure.to_string().ends_with("replay test 626164"), "{failure}");
        assert_eq!(first_failure(&TARGET, 1).iteration, failure.iteration);
        assert_eq!(from_hex("626164").as_deref(), Some(&b"bad"[..]));
        assert_eq!((from_hex("6"), from_hex("6x")), (None, None));
    }

    #[test]
    fn memory_and_time_are_watched() {
        static GREEDY: Target =
            target(|input| Shape::of(vec![0_u8; 10_000_000 + input.len()].len()));
        let failure = first_failure(&GREEDY, 1);
        assert!(failure.message.starts_with("held 100000"), "{failure}");
        let started = processor_time();
        assert!((0..1_000_000_u64).fold(0, |sum, n| sum ^ n.wrapping_mul(n)) > 0);
        assert!(processor_time() >= started);
    }
}
