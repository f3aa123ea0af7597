//! Parts: a capture that several importers write, or a run that several workers write.
//!
//! Each part is a complete dataset in a sub-folder. Its writer knows nothing of the others.

use std::{fmt, io, path::Path, str::FromStr};

use howdah_traffic::session_hash;
use serde::{Deserialize, Serialize};

use crate::storage;

/// A share of the sessions: those whose bucket is `index`, of `count` buckets. The bucket of a
/// session is the [`session_hash`] of its name modulo `count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SessionShare {
    index: u32,
    count: u32,
}

/// The error for a text that is not a [`SessionShare`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "write INDEX/COUNT, such as 0/4 to 3/4 for four workers (at most {})",
    SessionShare::COUNT_MAX
)]
pub struct ParseShareError;

impl SessionShare {
    /// Maximum number of shares.
    pub const COUNT_MAX: u32 = 1_024;

    /// All sessions.
    pub const ALL: Self = Self { index: 0, count: 1 };

    /// Creates a share; `None` unless `index < count` and `count` is at most [`Self::COUNT_MAX`].
    pub fn new(index: u32, count: u32) -> Option<Self> {
        (index < count && count <= Self::COUNT_MAX).then_some(Self { index, count })
    }

    /// Returns the number of the share, from 0.
    pub fn index(self) -> u32 {
        self.index
    }

    /// Returns the number of shares.
    pub fn count(self) -> u32 {
        self.count
    }

    /// Whether a session belongs to the share.
    pub fn contains(self, session: &str) -> bool {
        self.count == 1 || self.contains_hash(session_hash(session))
    }

    /// Like [`Self::contains`], for a session whose [`session_hash`] is known.
    pub fn contains_hash(self, hash: u64) -> bool {
        hash % u64::from(self.count) == u64::from(self.index)
    }

    /// Whether the shares may have sessions in common. If neither number of shares is a multiple of
    /// the other, they always may.
    pub(crate) fn overlaps(self, other: Self) -> bool {
        let (less, more) = if self.count <= other.count { (self, other) } else { (other, self) };
        !more.count.is_multiple_of(less.count) || more.index % less.count == less.index
    }
}

/// Formats the share as `INDEX/COUNT`.
impl fmt::Display for SessionShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.index, self.count)
    }
}

impl FromStr for SessionShare {
    type Err = ParseShareError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (index, count) = text.split_once('/').ok_or(ParseShareError)?;
        let number = |text: &str| text.parse::<u32>().map_err(|_| ParseShareError);
        Self::new(number(index)?, number(count)?).ok_or(ParseShareError)
    }
}

/// The part of a capture: what one importer found of some of the sessions.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct CapturePart {
    /// The name of the importer.
    pub importer: String,
    /// The bucket of the sessions in it, from 0.
    pub bucket: u32,
    /// The number of buckets over which the importer distributed the sessions.
    pub buckets: u32,
}

impl CapturePart {
    /// Whether a text can be the name of an importer: up to 100 ASCII alphanumeric bytes, `.`, `_`
    /// and `-`.
    pub fn is_valid_name(name: &str) -> bool {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
        !name.is_empty() && name.len() <= 100 && name.bytes().all(is_plain)
    }

    /// Returns the name of the part's folder.
    pub(crate) fn folder_name(&self) -> String {
        let Self { importer, bucket, buckets } = self;
        format!("part-{importer}-{bucket:03}-of-{buckets:03}")
    }

    fn from_folder_name(name: &str) -> Option<Self> {
        let (rest, buckets) = name.strip_prefix("part-")?.rsplit_once("-of-")?;
        let (importer, bucket) = rest.rsplit_once('-')?;
        let (bucket, buckets) = (bucket.parse().ok()?, buckets.parse().ok()?);
        let part = Self { importer: importer.to_owned(), bucket, buckets };
        let is_valid = part.share().is_some() && part.folder_name() == name;
        is_valid.then_some(part)
    }

    /// Returns the share of the importer's sessions that the part has.
    pub(crate) fn share(&self) -> Option<SessionShare> {
        SessionShare::new(self.bucket, self.buckets)
    }
}

/// Returns the name of the folder of a worker's part of a run.
pub(crate) fn worker_folder_name(worker: SessionShare) -> String {
    format!("worker-{}-of-{}", worker.index, worker.count)
}

fn worker_from_folder_name(name: &str) -> Option<SessionShare> {
    let (index, count) = name.strip_prefix("worker-")?.split_once("-of-")?;
    let worker = SessionShare::new(index.parse().ok()?, count.parse().ok()?)?;
    (worker_folder_name(worker) == name).then_some(worker)
}

/// Whether a folder of this name is a part of a capture or of a run.
pub(crate) fn is_part_name(name: &str) -> bool {
    CapturePart::from_folder_name(name).is_some() || worker_from_folder_name(name).is_some()
}

/// Returns the parts of the capture in a folder, ordered by importer and bucket. There are none if
/// the folder does not exist.
pub(crate) fn capture_parts(dir: &Path) -> io::Result<Vec<CapturePart>> {
    parts(dir, CapturePart::from_folder_name)
}

/// Returns the workers that have a part of the run in a folder.
pub(crate) fn run_parts(dir: &Path) -> io::Result<Vec<SessionShare>> {
    parts(dir, worker_from_folder_name)
}

fn parts<P: Ord>(dir: &Path, from_name: impl Fn(&str) -> Option<P>) -> io::Result<Vec<P>> {
    let listing = match storage::list(dir) {
        Err(error)
            if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) =>
        {
            return Ok(Vec::new());
        }
        listing => listing?,
    };
    let mut parts: Vec<P> = listing.folders.iter().filter_map(|name| from_name(name)).collect();
    parts.sort();
    Ok(parts)
}

/// Applies a function to all items, several at once if the dataset is in a store, where each
/// request takes a while. Returns the results in the order of the items, or one of the errors.
pub(crate) fn map_parallel<I: Sync, T: Send, E: Send>(
    dir: &Path,
    items: &[I],
    apply: impl Fn(&I) -> Result<T, E> + Sync,
) -> Result<Vec<T>, E> {
    const THREADS: usize = 16;
    if !storage::is_store_url(dir) || items.len() < 2 {
        return items.iter().map(apply).collect();
    }
    let apply = &apply;
    let chunk = items.len().div_ceil(THREADS);
    std::thread::scope(|scope| {
        let work = |items: &'_ [I]| items.iter().map(apply).collect::<Result<Vec<_>, E>>();
        let threads: Vec<_> =
            items.chunks(chunk).map(|items| scope.spawn(move || work(items))).collect();
        let mut results = Vec::with_capacity(items.len());
        for thread in threads {
            results.extend(thread.join().expect("no panic")?);
        }
        Ok(results)
    })
}

#[test]
fn names_of_parts_round_trip() {
    let part = CapturePart { importer: "db-1.log-of-2".to_owned(), bucket: 3, buckets: 16 };
    assert_eq!(part.folder_name(), "part-db-1.log-of-2-003-of-016");
    assert_eq!(CapturePart::from_folder_name(&part.folder_name()), Some(part));
    for name in ["part-a-3-of-016", "part-a-016-of-016", "part-003-of-016", "events", "part-a"] {
        assert_eq!(CapturePart::from_folder_name(name), None, "{name}");
    }
    let worker = SessionShare { index: 2, count: 4 };
    assert_eq!(worker_from_folder_name(&worker_folder_name(worker)), Some(worker));
    assert_eq!(worker_from_folder_name("worker-4-of-4"), None);
}

#[test]
fn shares_overlap_if_a_session_can_be_in_both() {
    let share = |text: &str| text.parse::<SessionShare>().expect("valid");
    let names: Vec<String> = (0..1_000).map(|number| format!("65e1.{number:x}")).collect();
    for (a, b) in [("1/4", "5/8"), ("1/4", "2/8"), ("0/1", "3/7"), ("2/3", "1/2"), ("5/8", "1/4")] {
        let both = |name: &&String| share(a).contains(name) && share(b).contains(name);
        assert_eq!(share(a).overlaps(share(b)), names.iter().any(|name| both(&name)), "{a} {b}");
    }
    assert_eq!("4/4".parse::<SessionShare>(), Err(ParseShareError));
    assert_eq!("1".parse::<SessionShare>(), Err(ParseShareError));
}
